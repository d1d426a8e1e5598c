"""The reload at SIGHUP: apply changed settings of the file while the publisher runs.

The log names changed settings that need a restart. A file that is not valid changes
nothing. Runs in the publisher's event loop.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType

import msgspec

from zeh_spark.errors import ZeroEventHubError
from zeh_spark.service.app.config import Config

log = logging.getLogger("zeh_spark.publisher")

Use = Callable[[Config], object]
"""Takes a setting over; returns False, and has logged why, if it cannot be used."""


class Hangups:
    """Notes SIGHUPs from now on. Without it, one ends a publisher that starts."""

    def __init__(self) -> None:
        self._came = False
        signal.signal(signal.SIGHUP, self._told)

    def take(self) -> bool:
        """Return whether one came since the last call."""
        came, self._came = self._came, False
        return came

    def _told(self, number: int, frame: FrameType | None) -> None:
        self._came = True


@dataclass
class Reload:
    """Reads the settings again when that is asked for.

    Attributes:
        live: What takes a setting over, by its name. Several may share one, which is called once.
        also: Is called, too, for what is read from other files.
    """

    config: Config
    load: Callable[[], Config]
    live: Mapping[str, Use]
    also: Callable[[], object] = lambda: None
    is_asked: Callable[[], bool] = lambda: False

    def look(self) -> None:
        if self.is_asked():
            try:
                self.read()
            except Exception:  # whatever a file holds, the publisher goes on
                log.exception("the settings were not read again, because of an error of zeh-spark")

    def read(self) -> None:
        """Read the settings, and take over what can change. Values are not logged: some are secret.

        What needs a restart is told at each call, as long as it differs from what is used.
        """
        try:
            found = self.load()
        except ZeroEventHubError as exc:
            log.error("the settings stay as they were: %s", exc.what)
            return
        self.also()
        changed = [
            name for name in found.__struct_fields__
            if getattr(found, name) != getattr(self.config, name)
        ]  # fmt: skip
        used = self._take_over(found, [name for name in changed if name in self.live])
        log.info("settings were read again; changed: %s", ", ".join(used) or "none")
        if later := [name for name in changed if name not in self.live]:
            log.warning("settings that need a restart of the publisher: %s", ", ".join(later))

    def _take_over(self, found: Config, changed: list[str]) -> list[str]:
        done: dict[Use, bool] = {}
        for name in changed:
            use = self.live[name]
            if use not in done:
                done[use] = use(found) is not False
        used = [name for name in changed if done[self.live[name]]]
        now = {name: getattr(found, name) for name in used}
        self.config = msgspec.structs.replace(self.config, **now)
        return used
