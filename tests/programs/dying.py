"""How a job's driver dies, so that a test sees what is left behind. Not a test.

For the programs beside it, which are run as scripts.
"""

import os
import signal


class Death:
    """At `[batch, stage]`, with SIGKILL for the whole process group; never if that is None."""

    def __init__(self, place):
        self.place = tuple(place or ())

    def at(self, batch, stage):
        if self.place == (batch, stage):
            os.killpg(os.getpid(), signal.SIGKILL)

    def amid(self, batch, frame):
        """At the stage `tasks`: the frame, in whose first task the driver dies half way."""
        if self.place != (batch, "tasks"):
            return frame
        driver = os.getpid()

        def die_in_the_middle(batches):  # in here: a task cannot import this module
            for number, each in enumerate(batches):
                yield each
                if number == 0:
                    os.killpg(driver, signal.SIGKILL)

        return frame.mapInArrow(die_in_the_middle, frame.schema)
