"""`zeh-spark check` names each bug of a suite of publishers, and raises no alarm on a legal one.

The publishers are in `tests/one_bug`. Each is judged as the command judges it, over sockets.
"""

from __future__ import annotations

import pytest

from tests.fix_raw_server import RawServer
from tests.one_bug import bugs_of_answers, bugs_of_cursors, oddities
from tests.one_bug.publisher import Publisher
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.tools.check.judge import judge
from zeh_spark.tools.check.rules import RULES, Judgement, Verdict

BUGS = {**bugs_of_cursors.BUGS, **bugs_of_answers.BUGS}
ODDITIES = oddities.ODDITIES
_ALARMS = {Verdict.DEVIATION, Verdict.FAILURE}
_MOST_REQUESTS = 200


def judged(server: RawServer, kind: type[Publisher]) -> Judgement:
    """What is found of a publisher; after its requests were counted."""
    server.respond = kind().respond
    options = parse(ClientOptions, {"url": server.url, "retryTimeout": "0"})
    found = judge(options, partitions=kind.native)
    assert len(server.requests) <= _MOST_REQUESTS
    assert {"GET"} == {request.method for request in server.requests}
    return found


def alarms(server: RawServer, kind: type[Publisher]) -> dict[str, str]:
    """The rules that a publisher breaks, with what was found."""
    found = judged(server, kind)
    return {each.rule.id: each.found for each in found if each.verdict in _ALARMS}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_named(raw_server: RawServer, name: str) -> None:
    """Each publisher has one bug that loses, doubles or breaks something for some client."""
    kind, rule = BUGS[name]

    assert rule in alarms(raw_server, kind), kind.__doc__


@pytest.mark.parametrize("name", ODDITIES)
def test_a_legal_publisher_raises_no_alarm(raw_server: RawServer, name: str) -> None:
    """Each does what the specification allows, although most publishers do not."""
    kind, _ = ODDITIES[name]

    assert {} == alarms(raw_server, kind), kind.__doc__


class LongAndUnordered(oddities.AnotherOrderEachTime):
    """More events than are read. Another n is accepted."""

    accepts = (4, 5)

    def __init__(self) -> None:
        super().__init__()
        self.log = [self.made(at) for at in range(12_000)]


def test_what_could_not_be_compared_is_not_tested(raw_server: RawServer) -> None:
    """The beginnings of an unordered feed, read with two numbers, say nothing of each other."""
    found = judged(raw_server, LongAndUnordered)["n-mismatch"]

    assert Verdict.SKIPPED is found.verdict
    assert "n=5 is accepted; not compared" == found.found


def test_the_suite_is_large_enough() -> None:
    """The promise is at least 44 of 46 bugs, and no alarm on 12 legal publishers."""
    assert (len(BUGS) >= 46, len(ODDITIES) >= 12) == (True, True)
    assert {rule for _, rule in BUGS.values()} <= {rule.id for rule in RULES}
