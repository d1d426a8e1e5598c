"""Whether all ways of reading a feed bring the same events.

First some partitions are read in large pages. What came is known then, and is read again in each of
`ways`. A difference counts only if the plain way, asked once more, still shows it: meanwhile events
may have been added, updated or deleted.

Rule for editors: what one answer teaches about the next request is decided here; `chains` and
`ways` are pure.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.tools.check.chains import Chain, Events, confirmed, differences
from zeh_spark.tools.check.connection import Exchange, exchange, is_direct
from zeh_spark.tools.check.lines import judged
from zeh_spark.tools.check.reading import Reading, shown
from zeh_spark.tools.check.rules import Judgement, Verdict
from zeh_spark.tools.check.ways import (
    A_FEW,
    AGAIN,
    OTHER_N,
    PARALLEL,
    PLAIN,
    SEVERAL,
    SMALL,
    TOGETHER,
    WAYS,
    WITHIN,
    Way,
)
from zeh_spark.wire import wire
from zeh_spark.wire.phrases import counted

_PARTITIONS = 4
"""How many partitions are read."""

_COMPARED = (1, 2, 4)
"""The numbers of partitions whose events are compared, if the publisher accepts them."""

_HEADER_NAME = re.compile("[A-Za-z0-9-]+")


class Agreement:
    """Compares the ways of reading one feed."""

    def __init__(self, reading: Reading, found: Judgement) -> None:
        self.known: dict[int, Chain] = {}
        self._reading = reading
        self._found = found
        self._ordered = True
        self._steps = Chain(wire.FIRST)
        """The richest partition in small pages, which has cursors in the middle."""

    @property
    def richest(self) -> int:
        """The partition of which the most events are known."""
        return max(self.known, key=lambda each: len(self.known[each].events))

    def read(self) -> None:
        """Read some partitions in the plain way, which the other ones are compared with."""
        for each in _some(self._found.partitions or 1):
            chain = self._reading.follow(PLAIN, {each: wire.FIRST})[each]
            self.known[each] = chain
            if chain.pages:
                events = counted(len(chain.events), "event")
                self._found.passes("first", f"{events} in partition {each}")

    def judge_ways(self) -> None:
        """Read the richest partition in all ways, and the others in small pages."""
        richest = self.richest
        for way in WAYS:
            chain = self._compare(way, richest)
            if way.rule == "repeatable":
                self._judge_repetition(self.known[richest], chain)
            elif way is SMALL:
                self._steps = chain
        self._ask_for_a_header(richest)
        for partition in self.known:
            self._continue_within(partition, 3 if partition == richest else 1)
            if partition != richest:
                self._compare(replace(SMALL, pages=3), partition)
        for begin, cursor in {self._steps.middle, self._steps.last}:
            chain = self._reading.follow(AGAIN, {richest: cursor})[richest]
            self._judge(AGAIN, richest, begin, chain, self._steps)

    def _judge_repetition(self, known: Chain, chain: Chain) -> None:
        """Note whether a repeated answer has the order and the cursors of the first one."""
        size, marks = len(chain.events), len(chain.marks)
        self._ordered = known.events[:size] == chain.events
        if not self._ordered:
            self._found.notes("repeatable", "the same events come in another order")
        elif known.marks[:marks] != chain.marks:
            self._found.notes("repeatable", "the same events come with other checkpoints")

    def _ask_for_a_header(self, partition: int) -> None:
        """Ask for one header by its name, if there are some."""
        names = filter(_HEADER_NAME.fullmatch, sorted(self._reading.header_names))
        if not (name := next(names, None)):
            return
        self._reading.header_names.clear()
        self._compare(Way("headers", f"with headers={name}", more=f"headers={name}"), partition)
        if others := self._reading.header_names - {name}:
            other = sorted(others)[0][:40]
            self._found.deviates("headers", f"headers={name} brought {other!r}, too")

    def _continue_within(self, partition: int, count: int) -> None:
        """Continue from some checkpoints: the first, one in the middle, and one near the end."""
        marks = self.known[partition].marks
        places = sorted({events for _, events in marks if events})
        chosen = {places[at * (len(places) - 1) // 4] for at in range(count) if places}
        for cursor, events in marks:
            if events in chosen:
                chosen.remove(events)
                self._compare(WITHIN, partition, events, cursor)

    def _compare(self, way: Way, partition: int, begin: int = 0, cursor: str = wire.FIRST) -> Chain:
        """Read a partition in a way, and judge whether the events are those that are known."""
        self._reading.small = max(2, min(100, len(self.known[partition].events) // 5))
        chain = self._reading.follow(way, {partition: cursor})[partition]
        self._judge(way, partition, begin, chain)
        return chain

    def _judge(
        self, way: Way, partition: int, begin: int, chain: Chain, known: Chain | None = None
    ) -> None:
        """Judge what came from a place that `begin` events precede, in what is known."""
        if not chain.pages:
            return
        known = known or self.known[partition]
        lost, more = differences(known, begin, chain, self._ordered)
        if (lost or more) and self._found[way.rule].verdict is not Verdict.FAILURE:
            pages = self.known[partition].pages + 2
            again = self._reading.follow(PLAIN, {partition: wire.FIRST}, pages=pages)[partition]
            lost, more = confirmed(lost, more, Events(known.events), Events(again.events))
        where = f"{way.what}, partition {partition} from {chain.begin[:40]!r}"
        self.tell(way.rule, where, lost, more)

    def tell(self, rule: str, where: str, lost: Events, more: Events) -> None:
        """Judge a rule by the events that are missing, and those that are too many."""
        if not lost and not more:
            self._found.passes(rule, where)
            return
        parts = [f"{counted(lost.total(), 'event')} missing"] if lost else []
        parts += [f"{more.total()} twice or at the wrong place"] if more else []
        example = next(iter(lost or more))[:60]
        self._found.fails(rule, f"{where}: {', '.join(parts)}, like {example}")

    def judge_several(self) -> None:
        """Read several partitions in one request."""
        begins = dict.fromkeys(list(self.known), wire.FIRST)
        if (self._found.partitions or 1) > _PARTITIONS:
            del begins[max(begins)]  # the others are contiguous, as the specification recommends
        for way in SEVERAL if len(begins) > 1 else ():
            for partition, chain in self._reading.follow(way, begins).items():
                self._judge(way, partition, 0, chain)

    def judge_numbers(self, *, emulates: bool) -> None:
        """Compare the events of all partitions, read as one, as two, and as four.

        `emulates` tells whether one partition more than there are was accepted.
        """
        native = self._found.partitions or 1
        unions = {native: self.known} if native <= _PARTITIONS else {}
        more_than_native = {native + 1} if emulates and native <= _PARTITIONS else set()
        for n in sorted({*_COMPARED, *more_than_native} - {native}):
            if self._reading.get({0: wire.FIRST}, A_FEW, n, {409}).ok:
                unions[n] = self._union(n)
        known = native if native in unions else min(unions, default=0)
        for n in sorted(unions.keys() - {known}):
            lost, more = self._apart(unions[known], unions[n])
            if lost or more:
                again = _all(self._union(known))
                lost, more = confirmed(lost, more, _all(unions[known]), again)
            self.tell("n-mismatch", f"with n={n} instead of n={known}", lost, more)

    def _union(self, n: int) -> dict[int, Chain]:
        follow = self._reading.follow
        return {each: follow(OTHER_N, {each: wire.FIRST}, n)[each] for each in range(n)}

    def _apart(
        self, known: Mapping[int, Chain], other: Mapping[int, Chain]
    ) -> tuple[Events, Events]:
        """Return the events that the partitions of the other number lack, and those they add.

        If they were not read to their ends, an event near the beginning of a few partitions is
        near the beginning of one of many, as far as there is an order.
        """
        if all(each.ended for each in (*known.values(), *other.values())):
            return _all(known) - _all(other), _all(other) - _all(known)
        if not self._ordered:
            return Events(), Events()
        few, many = (known, other) if len(known) < len(other) else (other, known)
        upto = min((len(each.events) for each in many.values() if not each.ended), default=1 << 30)
        begun = Events(event for each in few.values() for event in each.events[: upto // 2])
        missing = begun - _all(many)
        return (missing, Events()) if few is known else (Events(), missing)

    def judge_parallel(self) -> None:
        """Send four requests at the same time, and judge each as if it was alone."""
        richest = self.richest
        places = [(richest, 0, wire.FIRST), (richest, *self._steps.middle)]
        places += [(each, 0, wire.FIRST) for each in self.known if each != richest]
        chosen = (places * 2)[:4]
        with ThreadPoolExecutor(len(chosen)) as pool:
            get = self._reading.get
            answers = pool.map(lambda place: get({place[0]: place[2]}, PARALLEL), chosen)
        for (partition, begin, cursor), answer in zip(chosen, answers, strict=True):
            chain = Chain(cursor)
            if not answer.ok:
                self._found.fails("parallel", f"{shown(answer.query)} answered {answer.told}")
            self._reading.take(answer, PARALLEL, {partition: chain})
            self._judge(PARALLEL, partition, begin, chain, self._steps if begin else None)

    def judge_connection(self, options: ClientOptions) -> None:
        """Send three requests on one connection, and judge each as if it was alone."""
        if not is_direct(options):
            return
        found, partition, asking = self._found, self.richest, self._reading.asking
        places = [(0, wire.FIRST), self._steps.middle, (0, wire.FIRST)]
        asked = [
            (self._reading.query({partition: cursor}, TOGETHER), encoding)
            for (_, cursor), encoding in zip(places, ("identity", "identity", "gzip"), strict=True)
        ]
        came = Exchange()
        asking.within(lambda: exchange(options, asking.transport.token, asked, came))
        asking.requests += len(came.answers)
        answers = counted(len(came.answers), "whole answer")
        if came.problem:
            found.fails("connection", f"after {answers}: {came.problem}")
        elif came.closed:
            found.deviates("connection", f"closed after {answers}, which did not say so")
        for (begin, cursor), (body, packing) in zip(places, came.answers, strict=False):
            if packing == "gzip":
                body, rest = _unpacked(body)
                if rest:
                    said = "come after the first gzip member, which some clients do not read"
                    found.deviates("compression", f"{rest:,} bytes {said}")
                    continue
            chain = Chain(cursor)
            chain.add(judged(body, [partition], Judgement()), partition)
            self._judge(TOGETHER, partition, begin, chain, self._steps)


def _all(chains: Mapping[int, Chain]) -> Events:
    return Events(event for each in chains.values() for event in each.events)


def _some(count: int) -> Iterator[int]:
    """Yield the first partitions, and the last one."""
    yield from range(min(count, _PARTITIONS - 1))
    if count > _PARTITIONS - 1:
        yield count - 1


def _unpacked(body: bytes) -> tuple[bytes, int]:
    """Return what the first gzip member holds, and how many bytes come after it."""
    unpack = zlib.decompressobj(31)
    try:
        return unpack.decompress(body), len(unpack.unused_data)
    except zlib.error:
        return b"", 0
