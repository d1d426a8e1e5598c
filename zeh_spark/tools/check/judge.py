"""Ask a publisher what the rules need, and judge its answers.

Rule for editors: only GET requests without `cursorset`, so that nothing is stored at the publisher.
What one answer teaches about the next request is decided here; `lines` and `rules` hold the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from zeh_spark.client.http.discovery import other_protocol
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.tools.check.asking import Answer, Asking, End, LimitError, refuse
from zeh_spark.tools.check.comparison import compared, events_before, resumed
from zeh_spark.tools.check.lines import Page, judged
from zeh_spark.tools.check.rules import Judgement, Verdict
from zeh_spark.wire import wire
from zeh_spark.wire.option_values import is_loopback
from zeh_spark.wire.phrases import counted

HINT = 100
_PAGES = 5
"""How many pages of a partition are followed, which is enough to see whether reading moves on."""

_PARTITIONS = 8
"""How many partitions are asked for their first event."""

_TRIED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The numbers of partitions that are tried if none is known; the spec encourages powers of two."""

_NEVER_SENT = "zeh-spark-check-never-sent"


def judge(
    options: ClientOptions,
    *,
    partitions: int | None = None,
    seconds: float = 60.0,
    most_bytes: int = 64 << 20,
) -> Judgement:
    """Return what rule by rule is to be said about the publisher of a feed.

    `seconds` and `most_bytes` bound all requests together. Raises UnavailableError, AccessError or
    PublisherError if there is no feed to judge at the address, and OptionError if a file of the
    options cannot be used.
    """
    return _Judge(options, partitions, seconds, most_bytes).run()


class _Judge:
    """Judges one publisher."""

    def __init__(
        self, options: ClientOptions, partitions: int | None, seconds: float, most_bytes: int
    ) -> None:
        self._options = options
        self._asking = Asking(options, seconds, most_bytes)
        self._found = Judgement(partitions)

    def run(self) -> Judgement:
        found = self._found
        try:
            self._address()
            if self._partitions():
                self._refusals()
                pages = self._read()
                self._parameters(pages)
                self._ends(pages)
            found.passes("limits", "all requests were sent")
        except LimitError as exc:
            found.fails("limits", f"{exc} used up; the rules after this one were not tested")
        found.requests, found.bytes = self._asking.requests, self._asking.bytes
        return found

    def _get(
        self, cursors: dict[int, str], more: str = "", *, n: int | None = None, packed: bool = False
    ) -> Answer:
        count = n or self._found.partitions or 1
        named = [f"cursor{each}={quote(cursor, safe='')}" for each, cursor in cursors.items()]
        parts = [f"n={count}", *named]
        return self._asked("&".join([*parts, more] if more else parts), packed=packed)

    def _asked(self, query: str, *, packed: bool = False) -> Answer:
        answer = self._asking.get(query, packed=packed)
        if answer.end is End.LATE:
            self._found.fails("limits", f"{_shown(query)}: {answer.problem}")
            raise LimitError("the time is")
        return answer

    def _page(self, answer: Answer, asked: Sequence[int]) -> Page:
        """Return the page of an answer, and judge its framing and its lines."""
        found, query = self._found, _shown(answer.query)
        kind = answer.headers.get("Content-Type", "")
        if kind.partition(";")[0].strip().lower() == wire.CONTENT_TYPE:
            found.passes("content-type", kind)
        elif answer.body:
            found.deviates("content-type", f"it is {kind!r}" if kind else "there is none")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            found.deviates("compression", f"{query}: packed without being asked")
        if answer.end is End.BROKEN:
            found.fails("framing", f"{query}: the answer broke off: {answer.problem}")
        elif answer.end is End.UNPROVEN:
            found.deviates("framing", f"{query}: neither Content-Length nor chunks")
        elif answer.end is End.WHOLE:
            found.passes("framing", "all answers that were read")
        whole = answer.end in (End.WHOLE, End.UNPROVEN)
        return judged(answer.body, asked, found, whole=whole)

    def _read_page(self, rule: str, partition: int, cursor: str) -> tuple[Answer, Page] | None:
        """Ask for a page of a partition, and judge it; if there is none, the rule fails."""
        answer = self._get({partition: cursor}, f"pagesizehint={HINT}")
        if not answer.ok:
            self._found.fails(rule, f"{_shown(answer.query)} answered {answer.told}")
            return None
        return answer, self._page(answer, [partition])

    def _address(self) -> None:
        url, answer = self._options.url, self._asked("")
        refuse(answer, self._options)
        if self._options.token or self._options.token_file:
            if url.parts.scheme == "https" or is_loopback(url.parts.hostname or ""):
                self._found.passes("encrypted", url.parts.scheme)
            else:
                self._found.deviates("encrypted", "the token goes through the network as text")
        if answer.address.partition("?")[0] != str(url) and url.parts.path:
            self._found.deviates("address", "it redirects to another address")
        else:
            self._found.passes("address", str(url))
        if answer.status == 400:
            self._found.passes("n-missing", answer.told)
        elif other := other_protocol(dict(answer.document), self._asking.transport):
            self._found.fails("n-missing", str(other.what))
        else:
            self._found.deviates("n-missing", f"answered {answer.told}")
        told = answer.document.get("partitionCount")
        if type(told) is int and told > 0:
            if self._found.partitions not in (None, told):
                self._found.fails(
                    "partitions",
                    f"the publisher says {told}, --partitions {self._found.partitions}",
                )
            self._found.partitions = told
            self._found.passes("partitions", f"{told}, which the publisher tells")

    def _partitions(self) -> bool:
        """Find the number of partitions; return whether the feed can be read with it."""
        found = self._found
        if found.partitions:
            answer = self._get({0: wire.FIRST}, "pagesizehint=1")
            if not answer.ok:
                found.fails("first", f"{_shown(answer.query)} answered {answer.told}")
            else:
                found["partitions"].add(Verdict.PASS, f"{found.partitions}, as given")
            return answer.ok
        for count in _TRIED:
            answer = self._get({0: wire.FIRST}, "pagesizehint=1", n=count)
            if answer.ok:
                found.partitions = count
                found.deviates("partitions", f"{count} was accepted; the publisher tells none")
                return True
            if answer.status not in (400, 422):
                break
        found.fails(
            "partitions",
            f"neither told nor found by trying powers of two (the last answer: {answer.told})",
        )
        return False

    def _refusals(self) -> None:
        found, n = self._found, self._found.partitions or 1
        answer = self._get({0: wire.FIRST}, "pagesizehint=1", n=n + 1)
        emulated = answer.ok and not self._get({n: wire.FIRST}, "pagesizehint=1", n=n + 2).ok
        self._refused("n-mismatch", answer, {400}, as_well=answer.ok)
        self._refused("cursor-missing", self._asked(f"n={n}&pagesizehint=1"), {400})
        if not answer.ok and not emulated:
            self._refused("partition-unknown", self._get({n: wire.FIRST}, "pagesizehint=1"), {400})
        answer = self._get({0: _NEVER_SENT}, "pagesizehint=1")
        if answer.ok and answer.end is End.BROKEN:
            found.deviates("cursor-unknown", "the answer began with 200 and broke off")
        else:
            self._refused("cursor-unknown", answer, {400, 404, 409, 410})

    def _refused(
        self, rule: str, answer: Answer, statuses: set[int], *, as_well: bool = False
    ) -> None:
        if answer.status in statuses:
            self._found.passes(rule, f"refused with {answer.told}")
        elif as_well:
            self._found.passes(rule, f"{_shown(answer.query)} was answered: n is emulated")
        else:
            self._found.deviates(rule, f"{_shown(answer.query)} answered {answer.told}")

    def _read(self) -> list[tuple[str, Page]]:
        """Ask each partition for its beginning, and follow one; return its cursors and pages."""
        count, partition, most = self._found.partitions or 1, 0, -1
        for each in _some(count):
            if not (read := self._read_page("first", each, wire.FIRST)):
                continue
            page = read[1]
            self._found.passes("first", f"{counted(page.count, 'event')} in partition {each}")
            if page.count > most:
                partition, most = each, page.count
        return self._follow(partition)

    def _follow(self, partition: int) -> list[tuple[str, Page]]:
        found, cursor = self._found, wire.FIRST
        pages: list[tuple[str, Page]] = []
        used = {cursor}
        for _ in range(_PAGES):
            if not (read := self._read_page("resume", partition, cursor)):
                return pages
            answer, page = read
            pages.append((cursor, page))
            if answer.end not in (End.WHOLE, End.UNPROVEN):
                return pages
            cursors = page.cursors(partition)
            self._closed(page, partition, cursor)
            if not cursors:
                return pages
            cursor = cursors[-1].cursor
            if not page.count:
                return pages
            if cursor in used:
                found.fails("progress", f"after events, the cursor {cursor[:80]!r} came again")
                return pages
            found.passes("progress", f"partition {partition}, {counted(len(pages), 'page')}")
            used.add(cursor)
        return pages

    def _closed(self, page: Page, partition: int, cursor: str) -> None:
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

    def _parameters(self, pages: list[tuple[str, Page]]) -> None:
        found, count = self._found, self._found.partitions or 1
        for cursor, page in pages[:1]:
            partition = next(iter(page.events), 0)
            self._again(cursor, page, partition)
            self._from_within(page, partition)
            if page.headers:
                found.deviates(
                    "headers", f"{counted(page.headers, 'event')} with headers nobody asked for"
                )
        answer = self._get({0: wire.FIRST}, f"pagesizehint={HINT}&headers=_all")
        self._accepted("headers", answer, "headers=_all")
        answer = self._get({0: wire.FIRST})
        self._accepted("page-size-hint", answer, "without pagesizehint")
        answer = self._get({0: wire.FIRST}, "pagesizehint=1")
        if answer.ok and (events := self._page(answer, [0]).count) > 1000:
            found.deviates("page-size-hint", f"{counted(events, 'event')} for pagesizehint=1")
        if count > 1:
            answer = self._get({0: wire.FIRST, 1: wire.FIRST}, "pagesizehint=10")
            self._accepted("several-cursors", answer, "cursor0 and cursor1")
            if answer.ok:
                self._page(answer, [0, 1])
        answer = self._get({0: wire.FIRST}, f"pagesizehint={HINT}", packed=True)
        if answer.end is End.BROKEN or answer.final:
            found.fails("compression", f"with Accept-Encoding: gzip: {answer.problem}")
        elif answer.ok:
            kind = answer.headers.get("Content-Encoding", "not packed")
            found.passes("compression", f"with Accept-Encoding: gzip: {kind}")

    def _accepted(self, rule: str, answer: Answer, what: str) -> None:
        if answer.ok and answer.end in (End.WHOLE, End.UNPROVEN, End.LEFT):
            self._found.passes(rule, what)
        else:
            self._found.deviates(rule, f"{what}: answered {answer.told} {answer.problem}".strip())

    def _again(self, cursor: str, page: Page, partition: int) -> None:
        answer = self._get({partition: cursor}, f"pagesizehint={HINT}")
        if not answer.ok:
            return
        again = self._page(answer, [partition])
        for known, other in ((page, again), (again, page)):
            for each in reversed(known.cursors(partition)):
                if (same := events_before(other, partition, each.cursor)) is not None:
                    self._found["repeatable"].add(
                        *compared(known, other, partition, each.events, same)
                    )
                    return
        if page.count or again.count:
            self._found.deviates("repeatable", "the second answer has none of the checkpoints")

    def _from_within(self, page: Page, partition: int) -> None:
        """Continue from the first checkpoint, and compare with what the whole page had after it."""
        for each in page.cursors(partition):
            if not 0 < each.events < len(page.of(partition)):
                continue
            if read := self._read_page("resume", partition, each.cursor):
                for verdict, said in resumed(page, read[1], partition, each.events):
                    self._found["resume"].add(verdict, said)
            return
        self._whole_pages(partition, page)

    def _whole_pages(self, partition: int, page: Page) -> None:
        """Compare a page with the next one: no event of it may come again."""
        cursors = page.cursors(partition)
        if not cursors or not page.of(partition):
            return
        if not (read := self._read_page("resume", partition, cursors[-1].cursor)):
            return
        after = read[1].of(partition)
        before = page.of(partition)[: cursors[-1].events]
        if len(before) > 1 and after[: len(before)] == before and len(set(before)) > 1:
            self._found.fails(
                "resume", f"{counted(len(before), 'event')} before a checkpoint came again"
            )
        else:
            self._found.passes("resume", "the next page has other events")

    def _ends(self, pages: list[tuple[str, Page]]) -> None:
        found = self._found
        if not (read := self._read_page("last", 0, wire.LAST)):
            return
        page = read[1]
        cursors = page.cursors(0)
        if not cursors:
            found.deviates("last", "no checkpoint came with it")
            return
        found.passes("last", f"{counted(page.count, 'event')}, cursor {cursors[-1].cursor[:40]!r}")
        answer = self._get({0: cursors[-1].cursor}, f"pagesizehint={HINT}&wait=1")
        if not answer.ok:
            found.deviates("wait", f"wait=1 answered {answer.told}")
            return
        ended = self._page(answer, [0])
        if not ended.count:
            self._closed(ended, 0, cursors[-1].cursor)
        if answer.seconds > 10:
            found.deviates("wait", f"wait=1 took {answer.seconds:.0f} s")
        else:
            known = "followed" if answer.seconds > 0.7 and not ended.count else "ignored"
            found.passes("wait", f"wait=1 took {answer.seconds:.1f} s: {known}")


def _some(count: int) -> Iterator[int]:
    """Yield the first partitions, and the last one."""
    yield from range(min(count, _PARTITIONS - 1))
    if count > _PARTITIONS - 1:
        yield count - 1


def _shown(query: str) -> str:
    return f"?{query[:120]}" if query else "the request without parameters"
