"""Read a feed in any way, and judge each answer on the way.

Rule for editors: whatever way an answer was asked for, its framing and its lines are judged the
same. Only GET requests without `cursorset`, so that nothing is stored at the publisher.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import quote

from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.tools.check.asking import Answer, Asking, End, LimitError
from zeh_spark.tools.check.chains import Chain
from zeh_spark.tools.check.lines import Page, judged
from zeh_spark.tools.check.rules import Judgement, Verdict
from zeh_spark.tools.check.ways import PLAIN, Way
from zeh_spark.wire import wire
from zeh_spark.wire.phrases import counted

_MOST_EVENTS = 500


class Reading:
    """Reads one feed."""

    def __init__(
        self, options: ClientOptions, found: Judgement, seconds: float, most_bytes: int
    ) -> None:
        self.asking = Asking(options, seconds, most_bytes)
        self.small = 100
        self._found = found
        self._most = _MOST_EVENTS
        self._page_bytes = max(1, most_bytes // 256)
        self._events = self._bytes = 0
        self.cut = False
        self.header_names: set[str] = set()

    @property
    def large(self) -> int:
        """How many events a large page is asked for: by the size of those that were read."""
        fitting = self._page_bytes * self._events // self._bytes if self._events else 100
        return min(self._most, max(1, fitting))

    def query(self, cursors: Mapping[int, str], way: Way, n: int | None = None) -> str:
        """Return the query of a request."""
        hints = {"none": None, "one": 1, "small": min(self.small, self.large), "large": self.large}
        hint = hints[way.hint]
        named = [f"cursor{each}={quote(cursor, safe='')}" for each, cursor in cursors.items()]
        parts = [f"n={n or self._found.partitions or 1}", *named]
        parts += [f"pagesizehint={hint}"] if hint else []
        return "&".join([*parts, way.more] if way.more else parts)

    def get(
        self,
        cursors: Mapping[int, str],
        way: Way = PLAIN,
        n: int | None = None,
        final: Collection[int] = (),
    ) -> Answer:
        """Ask for a page. Raises LimitError if the time or the bytes are used up."""
        headers = {"Accept": way.accept} if way.accept else {}
        if way.packed:
            headers["Accept-Encoding"] = "gzip"
        return self.ask(self.query(cursors, way, n), headers, final)

    def ask(
        self,
        query: str,
        headers: Mapping[str, str] | None = None,
        final: Collection[int] = (),
    ) -> Answer:
        """Send a request with any query."""
        answer = self.asking.get(query, headers, final)
        if answer.end is End.LATE:
            self._found.fails("limits", f"{shown(query)}: {answer.problem}")
            raise LimitError("the time is")
        return answer

    def page(self, answer: Answer, asked: Collection[int], way: Way = PLAIN) -> Page:
        """Return the page of an answer, and judge its framing and its lines."""
        found, query = self._found, shown(answer.query)
        self._judge_type(answer)
        packing = answer.headers.get("Content-Encoding", "identity")
        if packing != "identity" and not way.packed:
            found.deviates("compression", f"{query}: packed without being asked")
        if answer.end is End.BROKEN:
            found.fails("framing", f"{query}: the answer broke off: {answer.problem}")
        elif answer.broke:
            found.deviates("framing", f"{query}: the answer broke off once: {answer.broke}")
        elif answer.end is End.UNPROVEN:
            found.deviates("framing", f"{query}: neither Content-Length nor chunks")
        elif answer.end is End.LEFT:
            self.cut = True
            size = counted(len(answer.body), "byte")
            found.deviates("page-size-hint", f"{query}: more than {size}")
        else:
            found.passes("framing", "all answers that were read")
        if way.packed and (answer.end is End.BROKEN or answer.final):
            found.fails("compression", f"with Accept-Encoding: gzip: {answer.problem}")
        page = judged(answer.body, asked, found, whole=answer.ended)
        if "headers=" in way.more:
            self.header_names |= page.headers
        elif page.headers:
            name = sorted(page.headers)[0][:40]
            found.deviates("headers", f"{query}: the header {name!r}, which nobody asked for")
        if page.count:
            self._events += page.count
            self._bytes += len(answer.body)
        return page

    def _judge_type(self, answer: Answer) -> None:
        given = answer.headers.get("Content-Type", "")
        kind, _, parameters = given.lower().partition(";")
        charset = parameters.partition("charset=")[2].strip(' "')
        if kind.strip() == wire.CONTENT_TYPE and charset in ("", "utf-8", "utf8"):
            self._found.passes("content-type", given)
        elif answer.body:
            self._found.deviates("content-type", f"it is {given!r}" if given else "there is none")

    def follow(
        self, way: Way, begins: Mapping[int, str], n: int | None = None, pages: int | None = None
    ) -> dict[int, Chain]:
        """Read partitions page after page from their cursors, and return what came of each."""
        chains = {partition: Chain(cursor) for partition, cursor in begins.items()}
        for number in range(pages or way.pages):
            answer = self._next(chains, way, n)
            if not answer.ok:
                refused = Verdict.FAILURE if number else way.refused
                said = f"{shown(answer.query)} answered {answer.told}"
                rule = "resume" if number and way is PLAIN else way.rule
                self._found[rule].add(refused, said)
            if not self.take(answer, way, chains):
                break
        return chains

    def _next(self, chains: Mapping[int, Chain], way: Way, n: int | None) -> Answer:
        cursors = {partition: chain.cursor for partition, chain in chains.items()}
        hint = self.large
        answer = self.get(cursors, way, n)
        if answer.status in (400, 422) and way.hint == "large" and hint > 100:
            self._most = 100
            if (smaller := self.get(cursors, way, n)).ok:
                self._found.deviates(
                    "page-size-hint", f"pagesizehint={hint} answered {answer.told}"
                )
                return smaller
            self._most = _MOST_EVENTS
        return answer

    def take(self, answer: Answer, way: Way, chains: Mapping[int, Chain]) -> bool:
        """Add an answer to the chains that it continues; return whether they can go on."""
        if not answer.ok:
            for chain in chains.values():
                chain.stopped = True
            return False
        page = self.page(answer, chains.keys(), way)
        for partition, chain in chains.items():
            self._advance(chain, page, partition, way, alone=len(chains) == 1)
            chain.stopped |= not answer.ended
        return not all(chain.ended or chain.stopped for chain in chains.values())

    def _advance(self, chain: Chain, page: Page, partition: int, way: Way, *, alone: bool) -> None:
        found, before, known = self._found, chain.cursor, set(chain.events)
        unique = len(known) == len(chain.events)
        used = {chain.begin, *(cursor for cursor, _ in chain.marks)}
        events, cursors = page.of(partition), page.cursors(partition)
        repeats = bool(events and cursors) and cursors[-1].cursor in used
        if alone and chain.tail and not known.union(events).intersection(chain.tail):
            tail = counted(len(chain.tail), "event")
            found.fails("resume", f"{tail} after the last checkpoint did not come again")
        restarted = chain.idle and unique and len(events) > 1 and known.issuperset(events)
        if not repeats:
            chain.add(page, partition)
        if alone or events:
            self._judge_end(page, partition, before)
        is_known = way is PLAIN or found["progress"].verdict is Verdict.FAILURE
        rule = "progress" if is_known else way.rule
        if repeats:
            again = cursors[-1].cursor[:80]
            found.fails(rule, f"{way.what}: after events, the cursor {again!r} came again")
            chain.stopped = True
        elif not events:
            chain.idle = True
            chain.ended = not page.count and chain.cursor == before
        elif restarted:
            found.fails(rule, f"after an answer without events, {len(events)} came again")
        elif cursors:
            found.passes("progress", f"partition {partition}, {counted(chain.pages, 'page')}")

    def _judge_end(self, page: Page, partition: int, cursor: str) -> None:
        cursors, events = page.cursors(partition), len(page.of(partition))
        if events and not cursors:
            self._found.fails("checkpoint", f"{counted(events, 'event')} and no checkpoint")
        elif events and (left := events - cursors[-1].events):
            self._found.deviates(
                "checkpoint", f"of {counted(events, 'event')}, {left} came after the last one"
            )
        elif events:
            self._found.passes(
                "checkpoint",
                f"{counted(len(cursors), 'checkpoint')} for {counted(events, 'event')}",
            )
        elif cursors:
            self._found.passes("idle", f"cursor {cursors[-1].cursor[:40]!r}")
        else:
            self._found.deviates("idle", f"no checkpoint after the cursor {cursor[:40]!r}")


def shown(query: str) -> str:
    """Return a query as messages show it."""
    return f"?{query[:120]}" if query else "the request without parameters"
