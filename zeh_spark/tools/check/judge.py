"""Ask a publisher what the rules need, and judge its answers: `zeh-spark check`.

Rule for editors: the order of the parts is that of the requests; `agreement` has the longest one,
which compares the ways of reading.
"""

from __future__ import annotations

from zeh_spark.client.http.discovery import other_protocol
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.tools.check.agreement import Agreement
from zeh_spark.tools.check.asking import Answer, End, LimitError, refuse
from zeh_spark.tools.check.chains import Chain, Events
from zeh_spark.tools.check.reading import Reading, shown
from zeh_spark.tools.check.rules import Judgement
from zeh_spark.tools.check.ways import A_FEW, LAST, PLAIN, WAITING
from zeh_spark.wire import wire
from zeh_spark.wire.option_values import is_loopback
from zeh_spark.wire.phrases import counted

_TRIED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The numbers of partitions that are tried if none is known; the spec encourages powers of two."""

_ENOUGH = 4
"""No larger number is tried if one that is accepted has been found."""

_NEVER_SENT = "zeh-spark-check-never-sent"


def judge(
    options: ClientOptions,
    *,
    partitions: int | None = None,
    seconds: float = 120.0,
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
        self._found = Judgement(partitions)
        self._reading = Reading(options, self._found, seconds, most_bytes)
        self._agreement = Agreement(self._reading, self._found)
        self._emulates = False

    def run(self) -> Judgement:
        found, agreement = self._found, self._agreement
        complete = False
        try:
            self._address()
            if self._partitions():
                self._refusals()
                agreement.read()
                complete = not self._reading.cut
                agreement.judge_ways()
                agreement.judge_several()
                agreement.judge_numbers(emulates=self._emulates)
                self._ends()
                agreement.judge_parallel()
                agreement.judge_connection(self._options)
            found.passes("limits", "all requests were sent")
        except LimitError as exc:
            told = found.notes if complete else found.fails
            told("limits", f"{exc} used up; what comes after this was not tested")
        asking = self._reading.asking
        found.requests, found.bytes = asking.requests, asking.bytes
        return found

    def _address(self) -> None:
        found, url, answer = self._found, self._options.url, self._reading.ask("")
        refuse(answer, self._options)
        if self._options.token or self._options.token_file:
            if url.parts.scheme == "https" or is_loopback(url.parts.hostname or ""):
                found.passes("encrypted", url.parts.scheme)
            else:
                found.deviates("encrypted", "the token goes through the network as text")
        if answer.address.partition("?")[0] != str(url) and url.parts.path:
            found.deviates("address", "it redirects to another address")
        else:
            found.passes("address", str(url))
        if answer.status == 400:
            found.passes("n-missing", answer.told)
        elif other := other_protocol(dict(answer.document), self._reading.asking.transport):
            found.fails("n-missing", str(other.what))
        else:
            found.deviates("n-missing", f"answered {answer.told}")
        told = answer.document.get("partitionCount")
        if type(told) is int and told > 0 and not found.partitions:
            found.partitions = told
            found.passes("partitions", f"{told}, which the publisher tells")

    def _partitions(self) -> bool:
        """Find the number of partitions; return whether the feed can be read with it."""
        found, given = self._found, self._found.partitions
        accepted = 0
        for count in (given,) if given else _TRIED:
            answer = self._reading.ask(f"n={count}&cursor0={wire.FIRST}&pagesizehint=10")
            if answer.ok:
                accepted = count
                self._reading.page(answer, [0], A_FEW)
            may_be_more = not accepted and answer.status in (400, 422)
            if accepted >= _ENOUGH or not (answer.ok or may_be_more):
                break
        found.partitions = accepted or given
        if given and accepted:
            found.passes("partitions", f"{given} is accepted")
        elif accepted:
            found.notes("partitions", f"{accepted} is accepted; the publisher tells none")
        elif given:
            found.fails("first", f"{shown(answer.query)} answered {answer.told}")
        else:
            found.fails(
                "partitions",
                f"neither told nor found by trying powers of two (the last answer: {answer.told})",
            )
        return bool(accepted)

    def _refusals(self) -> None:
        n, get = self._found.partitions or 1, self._reading.get
        answer = get({0: wire.FIRST}, A_FEW, n + 1, {409})
        self._emulates = answer.ok
        if answer.ok:
            self._found.passes("n-mismatch", f"{shown(answer.query)} was answered: n is emulated")
        else:
            self._refused("n-mismatch", answer, {400})
        self._refused("cursor-missing", self._reading.ask(f"n={n}&pagesizehint=1"), {400})
        self._refused("partition-unknown", get({n: wire.FIRST}, A_FEW), {400})
        answer = get({0: _NEVER_SENT}, A_FEW, final={409})
        if answer.ok and answer.end is End.BROKEN:
            self._found.deviates("cursor-unknown", "the answer began with 200 and broke off")
        else:
            self._refused("cursor-unknown", answer, {400, 404, 409, 410})

    def _refused(self, rule: str, answer: Answer, statuses: set[int]) -> None:
        if answer.status in statuses:
            self._found.passes(rule, f"refused with {answer.told}")
        else:
            self._found.deviates(rule, f"{shown(answer.query)} answered {answer.told}")

    def _ends(self) -> None:
        """Begin at _last, continue from there, and once more if the cursor moves on."""
        for number, partition in enumerate(self._agreement.known):
            chain = Chain(wire.LAST)
            for way in (LAST, LAST if number else WAITING, LAST):
                before = chain.cursor
                answer = self._reading.get({partition: before}, way)
                said = f"{shown(answer.query)} answered {answer.told}"
                if not answer.ok and way is WAITING:
                    self._found.deviates("wait", said)
                    continue
                if not answer.ok:
                    self._found.fails("last", said)
                    break
                self._reading.take(answer, way, {partition: chain})
                if way is WAITING:
                    self._judge_wait(answer.seconds, bool(chain.events))
                if chain.cursor == before:
                    break
            if chain.marks:
                self._judge_last(partition, chain)
            elif answer.ok:
                self._found.deviates("last", "no checkpoint came with it")

    def _judge_last(self, partition: int, chain: Chain) -> None:
        known, events = self._agreement.known[partition], Events(chain.events)
        begin = known.events[:1]
        if len(known.events) >= 5 and known.events.count(begin[0]) == 1 and begin[0] in events:
            self._found.fails("last", f"partition {partition} begins at its first event")
            return
        self._found.passes(
            "last", f"{counted(len(chain.events), 'event')}, cursor {chain.cursor[:40]!r}"
        )
        if known.ended and (beyond := events - Events(known.events)):
            rest = self._reading.follow(PLAIN, {partition: known.cursor}, pages=1)[partition]
            if not rest.events:
                where = f"partition {partition} has an end, and _last brings events after it"
                self._agreement.tell("resume", where, beyond, Events())

    def _judge_wait(self, seconds: float, any_events: bool) -> None:
        if seconds > 10:
            self._found.deviates("wait", f"wait=1 took {seconds:.0f} s")
        else:
            known = "followed" if seconds > 0.7 and not any_events else "ignored"
            self._found.passes("wait", f"wait=1 took {seconds:.1f} s: {known}")
