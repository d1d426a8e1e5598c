"""Read a feed in any way, and judge each answer on the way.

Rule for editors: whatever way an answer was asked for, its framing and its lines are judged the
same. Only GET requests without `cursorset`, so that nothing is stored at the publisher.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from urllib.parse import quote

from requests.utils import get_encoding_from_headers

from zeh_spark.tools.check.asking import Answer, Asking, shown
from zeh_spark.tools.check.chains import Chain
from zeh_spark.tools.check.lines import Page, Part
from zeh_spark.tools.check.rules import Judgement, Verdict
from zeh_spark.tools.check.ways import PLAIN, Way
from zeh_spark.wire import wire
from zeh_spark.wire.phrases import counted

_MOST_EVENTS = 500
_LONG = 10.0
"""Seconds that wait=1 must not take."""


class Reading:
    """Reads one feed."""

    def __init__(self, asking: Asking, found: Judgement) -> None:
        self.asking = asking
        self.header_names: set[str] = set()
        self.contract: Callable[[str], str | None] | None = None
        """Returns why an event's data, as JSON, breaks the feed's schema; None without one."""
        self._found = found
        self._most = _MOST_EVENTS
        self._bytes = 0

    @property
    def large(self) -> int:
        """How many events a large page is asked for: by the size of those that were read."""
        events = self._found.events
        fitting = self.asking.most_bytes // 256 * events // self._bytes if events else 100
        return min(self._most, max(1, fitting))

    def query(self, way: Way, chains: Sequence[Chain]) -> str:
        """Return the query that continues some chains."""
        known = len((chains[0].known or chains[0]).events)
        small = max(2, min(100, known // 5))
        most = {"one": 1, "small": small, "hundred": 100, "large": _MOST_EVENTS}.get(way.hint)
        parts = [
            f"n={way.n or self._found.partitions or 1}",
            *(f"cursor{each.partition}={quote(each.cursor, safe='')}" for each in chains),
            f"pagesizehint={min(most, self.large)}" if most else "",
            way.more,
        ]
        return "&".join(filter(None, parts))

    def get(self, way: Way, chains: Sequence[Chain]) -> Answer:
        """Ask for a page. Raises LimitError if the time or the bytes are used up."""
        return self.asking.get(self.query(way, chains), way.headers)

    def page(self, answer: Answer, asked: Collection[int], way: Way = PLAIN) -> Page:
        """Return the page of an answer, and judge its framing and its lines."""
        found, query = self._found, shown(answer.query)
        self._judge_type(answer)
        may_be_packed = "Accept-Encoding" in way.headers
        if answer.headers.get("Content-Encoding", "identity") != "identity" and not may_be_packed:
            found.deviates("compression", f"{query}: packed without being asked")
        if answer.lost:
            found.fails("framing", f"{query}: the answer broke off: {answer.problem}")
        elif answer.broke:
            found.deviates("framing", f"{query}: the answer broke off once: {answer.broke}")
        elif answer.left:
            size = counted(len(answer.body), "byte")
            found.deviates("page-size-hint", f"{query}: more than {size}")
        elif not answer.proven:
            found.deviates("framing", f"{query}: neither Content-Length nor chunks")
        else:
            found.passes("framing", "all answers that were read")
        if may_be_packed and answer.lost:
            found.fails("compression", f"with Accept-Encoding: gzip: {answer.problem}")
        page = Page(answer.body, asked, found, whole=not (answer.lost or answer.left))
        if "wait=" in way.more and answer.seconds > _LONG and not page.count:
            found.deviates("wait", f"{query} took {answer.seconds:.0f} s")
        if "headers=" in way.more:
            self.header_names |= page.headers
        elif page.headers:
            name = min(page.headers)[:40]
            found.deviates("headers", f"{query}: the header {name!r}, which nobody asked for")
        if page.count:
            self._bytes += len(answer.body)
        if self.contract:
            self._judge_contract(page, query, self.contract)
        return page

    def _judge_contract(self, page: Page, query: str, broken: Callable[[str], str | None]) -> None:
        for event in [each for part in page.parts.values() for each in part.events]:
            if why := broken(event):
                self._found.notes("contract", f"{query}: {event[:80]}: {why}")
            else:
                self._found.passes("contract", "all events that were read")

    def _judge_type(self, answer: Answer) -> None:
        given = answer.headers.get("Content-Type", "")
        kind = given.partition(";")[0].strip().lower()
        charset = get_encoding_from_headers(answer.headers) or "utf-8"
        if kind == wire.CONTENT_TYPE and charset.lower() in ("utf-8", "utf8"):
            self._found.passes("content-type", given)
        elif answer.body:
            self._found.deviates("content-type", f"it is {given!r}" if given else "there is none")

    def follow(self, way: Way, *chains: Chain) -> Chain:
        """Continue chains, page after page, all in one request; return the first one."""
        for number in range(way.pages):
            answer = self.get(way, chains)
            if answer.status in (400, 422) and way.hint == "large" and self.large > 100:
                smaller = self.get(replace(way, hint="hundred"), chains)
                if smaller.ok:
                    self._found.deviates("page-size-hint", answer.refusal)
                    self._most, answer = 100, smaller
            if not answer.ok:
                refused = Verdict.FAILURE if number else way.refused
                rule = "resume" if number and way.rule == PLAIN.rule else way.rule
                self._found[rule].add(refused, answer.refusal)
            self.take(answer, way, *chains)
            if all(chain.ended or chain.stopped for chain in chains):
                break
        return chains[0]

    def take(self, answer: Answer, way: Way, *chains: Chain) -> None:
        """Add an answer to the chains that it continues."""
        asked = [chain.partition for chain in chains]
        page = self.page(answer, asked, way) if answer.ok else None
        for chain in chains:
            if page:
                self._advance(chain, page, way, alone=len(chains) == 1)
            chain.stopped |= page is None or answer.lost or answer.left

    def _advance(self, chain: Chain, page: Page, way: Way, *, alone: bool) -> None:
        """Add a partition's part of a page to its chain, and judge whether it leads on."""
        found, part, known = self._found, page.parts[chain.partition], set(chain.events)
        before, after = chain.cursor, part.marks[-1][0] if part.marks else ""
        if alone and chain.tail and not known.union(part.events).intersection(chain.tail):
            tail = counted(len(chain.tail), "event")
            found.fails("resume", f"{tail} after the last checkpoint did not come again")
        if alone or part.events:
            self._judge_end(part, before)
        leads = way.rule == PLAIN.rule or found["progress"].verdict is Verdict.FAILURE
        rule = "progress" if leads else way.rule
        if part.events and after in dict(chain.marks):
            found.fails(rule, f"{way.what}: after events, the cursor {after[:80]!r} came again")
            chain.stopped = True
            return
        all_known = len(part.events) > 1 and known.issuperset(part.events)
        if chain.idle and all_known and len(known) == len(chain.events):
            found.fails(rule, f"after an answer without events, {len(part.events)} came again")
        elif part.marks and part.events:
            found.passes(
                "progress", f"partition {chain.partition}, {counted(chain.pages + 1, 'page')}"
            )
        chain.add(part)
        chain.idle |= not part.events
        chain.ended = not page.count and chain.cursor == before

    def _judge_end(self, part: Part, cursor: str) -> None:
        events, found = counted(len(part.events), "event"), self._found
        left = len(part.events) - part.marks[-1][1] if part.marks else 0
        if part.events and not part.marks:
            found.fails("checkpoint", f"{events} and no checkpoint")
        elif left:
            found.deviates("checkpoint", f"of {events}, {left} came after the last one")
        elif part.events:
            found.passes("checkpoint", f"{counted(len(part.marks), 'checkpoint')} for {events}")
        elif part.marks:
            found.passes("idle", f"cursor {part.marks[-1][0][:40]!r}")
        else:
            found.deviates("idle", f"no checkpoint after the cursor {cursor[:40]!r}")
