"""The messages that the docs name for alerts, as the logs of tests have to have them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_DOCS = Path(__file__).parents[1] / "docs" / "operate"
_QUOTED = r"`[^`]+`"


@dataclass(frozen=True)
class Documented:
    """A message that an alert may look for, with the logger and the levels that the docs name."""

    text: str
    logger: str
    levels: tuple[str, ...]

    def is_in(self, record: logging.LogRecord) -> bool:
        return (
            self.pattern.search(record.getMessage()) is not None
            and record.levelname in self.levels
            and f"{record.name}.".startswith(f"{self.logger}.")
        )

    @property
    def pattern(self) -> re.Pattern[str]:
        """It with anything for `…`, and any number for a number."""
        return re.compile(re.sub(r"\\?…", ".+", re.sub(r"\d+", r"[\\d.]+", re.escape(self.text))))


def documented() -> list[Documented]:
    """All of them: the table of `monitor.md`, and the section of the log of the publisher."""
    found = []
    table = (_DOCS / "monitor.md").read_text(encoding="utf-8").partition("Log messages that matter")
    for row in re.findall(r"^\| `([\w.]+)` \| ([A-Z, ]+) \| (.+) \|$", table[2], re.MULTILINE):
        logger, levels, said = row
        quoted = re.match(f"(?:{_QUOTED}(?:, )?)*", said)
        for text in re.findall(_QUOTED, quoted[0] if quoted else ""):
            found.append(Documented(text.strip("`"), logger, tuple(levels.split(", "))))
    section = (_DOCS / "monitor-publisher.md").read_text(encoding="utf-8").partition("## The log")
    prose = re.sub(r"^```.*?^```", "", section[2], flags=re.MULTILINE | re.DOTALL)
    for text in re.findall(_QUOTED, prose):
        text = " ".join(text.strip("`").split())
        if re.search(r" fails: |works again|refused before", text):
            found.append(Documented(text, "zeh_spark.publisher", ("INFO", "WARNING", "ERROR")))
    return found


def check_documented(records: Iterable[logging.LogRecord], part: str) -> None:
    """Fail if no record is the message that the docs name with these words."""
    records = list(records)
    wanted = [each for each in documented() if part in each.text]
    assert wanted, f"the docs name no message with {part!r}"
    for each in wanted:
        assert any(map(each.is_in, records)), f"{each} is in none of {records}"
