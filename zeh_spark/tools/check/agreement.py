"""Whether all ways of reading a feed bring the same events.

First some partitions are read in large pages. What came is known then, and is read again in each of
`ways`. A difference counts only if the plain way, asked once more, still shows it: meanwhile events
may have been added, updated or deleted.

Rule for editors: what one answer teaches about the next request is decided here; `chains` and
`ways` are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPException

from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.tools.check import ways
from zeh_spark.tools.check.asking import Answer
from zeh_spark.tools.check.chains import Chain, Events, confirmed, differences
from zeh_spark.tools.check.connection import exchange
from zeh_spark.tools.check.reading import Reading
from zeh_spark.tools.check.rules import Judgement, Verdict
from zeh_spark.tools.check.ways import PLAIN, SMALL, Way
from zeh_spark.wire import wire
from zeh_spark.wire.phrases import counted

_PARTITIONS = 4
"""How many partitions are read."""

_COMPARED = (1, 2, 4)
"""The numbers of partitions whose events are compared, if the publisher accepts them."""

_HEADER_NAME = re.compile("[A-Za-z0-9-]+")


class Agreement:
    """Compares the ways of reading one feed.

    Attributes:
        known: what the plain way brought of some partitions.
        complete: whether that was read as far as intended.
    """

    def __init__(self, reading: Reading, found: Judgement) -> None:
        self.known: list[Chain] = []
        self.complete = False
        self._reading = reading
        self._found = found
        self._ordered = True

    def read(self) -> None:
        """Read the first partitions and the last in the plain way, for others to compare with."""
        count = self._found.partitions or 1
        for each in sorted({*range(min(count, _PARTITIONS - 1)), count - 1}):
            chain = self._reading.follow(PLAIN, Chain(each))
            self.known.append(chain)
            if chain.pages:
                events = counted(len(chain.events), "event")
                self._found.passes("first", f"{events} in partition {each}")
        self.complete = not any(chain.stopped for chain in self.known)
        self._richest = max(self.known, key=lambda each: len(each.events))

    def judge_ways(self) -> None:
        """Read the richest partition in all ways, and the others in small pages."""
        for way in ways.WAYS:
            chain = self._compare(way, self._richest.again())
            if way.rule == "repeatable":
                self._judge_repetition(self._richest, chain)
            elif way is SMALL:
                self._steps = chain  # has cursors in the middle
        self._ask_for_a_header()
        for known in self.known:
            self._continue_within(known, 3 if known is self._richest else 1)
            if known is not self._richest:
                self._compare(replace(SMALL, pages=3), known.again())
        for mark in {self._steps.middle, self._steps.marks[-1]}:
            self._compare(ways.AGAIN, self._steps.again(*mark))

    def _judge_repetition(self, known: Chain, chain: Chain) -> None:
        """Note whether a repeated answer has the order and the cursors of the first one."""
        self._ordered = known.events[: len(chain.events)] == chain.events
        if not self._ordered:
            self._found.notes("repeatable", "the same events come in another order")
        elif known.marks[: len(chain.marks)] != chain.marks:
            self._found.notes("repeatable", "the same events come with other checkpoints")

    def _ask_for_a_header(self) -> None:
        """Ask for one header by its name, if there are some."""
        names = filter(_HEADER_NAME.fullmatch, sorted(self._reading.header_names))
        if not (name := next(names, None)):
            return
        self._reading.header_names.clear()
        way = Way("headers", f"with headers={name}", more=f"headers={name}")
        self._compare(way, self._richest.again())
        if others := self._reading.header_names - {name}:
            self._found.deviates("headers", f"headers={name} brought {min(others)[:40]!r}, too")

    def _continue_within(self, known: Chain, count: int) -> None:
        """Continue from some checkpoints: the first, one in the middle, and one near the end."""
        first = {events: cursor for cursor, events in reversed(known.marks)}
        places = sorted(first.keys() - {0})
        for place in sorted({places[at * (len(places) - 1) // 4] for at in range(count) if places}):
            self._compare(ways.WITHIN, known.again(first[place], place))

    def _compare(self, way: Way, chain: Chain) -> Chain:
        """Read a chain in a way, and judge whether the events are those that are known."""
        self._judge(way, self._reading.follow(way, chain))
        return chain

    def _judge(self, way: Way, chain: Chain) -> None:
        """Judge whether a chain agrees with what is known."""
        known = chain.known
        if not known or not chain.pages:
            return
        lost, more = differences(known, chain, self._ordered)
        if (lost or more) and self._found[way.rule].verdict is not Verdict.FAILURE:
            again = self._reading.follow(ways.CONFIRMING, Chain(chain.partition))
            lost, more = confirmed(lost, more, Events(known.events), Events(again.events))
        where = f"{way.what}, partition {chain.partition} from {chain.begin[:40]!r}"
        self._tell(way.rule, where, lost, more)

    def _tell(self, rule: str, where: str, lost: Events, more: Events) -> None:
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
        asked = self.known[:-1] if (self._found.partitions or 1) > _PARTITIONS else self.known
        # so they are contiguous, as the specification recommends
        for way in ways.SEVERAL if len(asked) > 1 else ():
            chains = [known.again() for known in asked]
            self._reading.follow(way, *chains)
            for chain in chains:
                self._judge(way, chain)

    def judge_numbers(self, *, emulates: bool) -> None:
        """Compare the events of all partitions, read as one, as two, and as four.

        `emulates` tells whether one partition more than there are was accepted.
        """
        native = self._found.partitions or 1
        unions = {native: self.known} if native <= _PARTITIONS else {}
        one_more = native + (emulates and native <= _PARTITIONS)
        for n in sorted({*_COMPARED, one_more} - {native}):
            if self._reading.asking.get(
                f"n={n}&cursor0={wire.FIRST}&pagesizehint=10", final={409}
            ).ok:
                unions[n] = self._union(n)
        known = native if native in unions else min(unions, default=0)
        for n in sorted(unions.keys() - {known}):
            if not (apart := self._apart(unions[known], unions[n])):
                continue
            lost, more = apart
            if lost or more:
                again = _all(self._union(known))
                lost, more = confirmed(lost, more, _all(unions[known]), again)
            self._tell("n-mismatch", f"with n={n} instead of n={known}", lost, more)

    def _union(self, n: int) -> list[Chain]:
        way = replace(ways.OTHER_N, n=n)
        return [self._reading.follow(way, Chain(each)) for each in range(n)]

    def _apart(self, known: list[Chain], other: list[Chain]) -> tuple[Events, Events] | None:
        """Return the events that the partitions of the other number lack, and those they add.

        If they were not read to their ends, an event near the beginning of a few partitions is
        near the beginning of one of many, as far as there is an order. None if there is none, or
        too little was read.
        """
        if all(each.ended for each in (*known, *other)):
            return _all(known) - _all(other), _all(other) - _all(known)
        few, many = (known, other) if len(known) < len(other) else (other, known)
        upto = min((len(each.events) for each in many if not each.ended), default=1 << 30)
        if not self._ordered or upto < 2:
            return None
        begun = Events(event for each in few for event in each.events[: upto // 2])
        missing = begun - _all(many)
        return (missing, Events()) if few is known else (Events(), missing)

    def judge_ends(self) -> None:
        """Begin at _last, continue from there, and once more if the cursor moves on."""
        for known in self.known:
            chain = Chain(known.partition, wire.LAST)
            for way in (ways.LAST, ways.LAST if known.partition else ways.WAITING, ways.LAST):
                if not chain.ended:
                    self._reading.follow(way, chain)
            if len(chain.marks) > 1:
                self._judge_last(known, chain)
            elif chain.pages:
                self._found.deviates("last", "no checkpoint came with it")

    def _judge_last(self, known: Chain, chain: Chain) -> None:
        begin, events, partition = known.events[:1], Events(chain.events), known.partition
        if len(known.events) >= 5 and known.events.count(begin[0]) == 1 and begin[0] in events:
            self._found.fails("last", f"partition {partition} begins at its first event")
            return
        came = counted(len(chain.events), "event")
        self._found.passes("last", f"{came}, cursor {chain.cursor[:40]!r}")
        if known.ended and (beyond := events - Events(known.events)):
            if not self._reading.follow(ways.ONCE, Chain(partition, known.cursor)).events:
                where = f"partition {partition} has an end, and _last brings events after it"
                self._tell("resume", where, beyond, Events())

    def judge_parallel(self) -> None:
        """Send four requests at the same time, and judge each as if it was alone."""
        begins = [(known, known.marks[0]) for known in self.known if known is not self._richest]
        places = [(self._richest, self._richest.marks[0]), (self._steps, self._steps.middle)]
        chains = [known.again(*mark) for known, mark in ([*places, *begins] * 2)[:4]]
        with ThreadPoolExecutor(len(chains)) as pool:
            answers = pool.map(lambda chain: self._reading.get(ways.PARALLEL, [chain]), chains)
        for chain, answer in zip(chains, answers, strict=True):
            if not answer.ok:
                self._found.fails("parallel", answer.refusal)
            self._reading.take(answer, ways.PARALLEL, chain)
            self._judge(ways.PARALLEL, chain)

    def judge_connection(self, options: ClientOptions) -> None:
        """Send three requests on one connection, and judge each as if it was alone."""
        found, asking, steps = self._found, self._reading.asking, self._steps
        sent = [
            (ways.TOGETHER, steps.again()),
            (ways.TOGETHER, steps.again(*steps.middle)),
            (ways.PACKED, steps.again()),
        ]
        asked = [(self._reading.query(way, [chain]), way.headers) for way, chain in sent]
        came: list[Answer] = []
        asking.within(lambda: came.extend(exchange(options, asking.transport.token, asked)))
        asking.sizes += [len(answer.body) for answer in came]
        for (way, chain), answer in zip(sent, came, strict=False):
            if answer.ok and not answer.problem:
                self._reading.take(answer, way, chain)
                self._judge(way, chain)
            elif answer.ok:
                found.deviates("compression", f"{answer.problem}, which some clients do not read")
            elif len(came) > 1 and isinstance(answer.error, ConnectionError):
                found.deviates("connection", "closed after an answer that did not say so")
            elif len(came) > 1 and isinstance(answer.error, HTTPException):
                said = f"after {counted(len(came) - 1, 'whole answer')}: {answer.problem}"
                found.fails("connection", said)


def _all(chains: Iterable[Chain]) -> Events:
    return Events(event for each in chains for event in each.events)
