"""How a job's driver dies, so that a test sees what is left behind. Not a test.

For the programs beside it, which are run as scripts.
"""

import os
import shutil
import signal
import time
from pathlib import Path

STAGES = ("planned", "tasks", "written")
"""Of a batch: its offsets are logged, and no task has run; in the middle of a task; the sink has
it, and Spark has not noted that."""


class Deaths:
    """Several queries of a driver, each of which comes to a place of its own, `[batch, stage]`: the
    driver dies when all of them are there.
    """

    def __init__(self, folder, places):
        self.folder = folder
        self.places = {name: tuple(place) for name, place in places.items()}
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir(parents=True)

    def at(self, name, batch, stage):
        if self.places.get(name) == (batch, stage):
            self._end(name)()

    def amid(self, name, batch, frame):
        """At the stage `tasks`: the frame, in whose first task the query comes to its place."""
        if self.places.get(name) != (batch, "tasks"):
            return frame
        end = self._end(name)

        def die_in_the_middle(batches):
            for number, each in enumerate(batches):
                yield each
                if number == 0:
                    end()

        return frame.mapInArrow(die_in_the_middle, frame.schema)

    def _end(self, name):
        folder, names, driver = self.folder, list(self.places), os.getpid()

        def end():  # in here: a task cannot import this module
            Path(folder, name).touch()
            while not all(Path(folder, each).exists() for each in names):
                time.sleep(0.01)
            os.killpg(driver, signal.SIGKILL)

        return end
