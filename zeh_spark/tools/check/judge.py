"""Ask a publisher what the rules need, and judge its answers: `zeh-spark check`.

Rule for editors: the order of the parts is that of the requests; `agreement` has the longest one,
which compares the ways of reading.
"""

from __future__ import annotations

import msgspec

from zeh_spark.client.http.discovery import other_protocol
from zeh_spark.client.http.responses import TransientError, problem_document
from zeh_spark.client.http.transport import Body
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.errors import PublisherError
from zeh_spark.tools.check.agreement import Agreement
from zeh_spark.tools.check.asking import Asking, LateError, LimitError
from zeh_spark.tools.check.reading import Reading
from zeh_spark.tools.check.rules import Judgement
from zeh_spark.wire import wire
from zeh_spark.wire.option_values import is_loopback
from zeh_spark.wire.phrases import no_power_of_two

_TRIED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The numbers of partitions that are tried if none is known; the spec encourages powers of two."""

_ENOUGH = 4
"""No larger number is tried if one that is accepted has been found."""

_REFUSED = {"cursor-unknown": {400, 404, 409, 410}}
"""The statuses that refuse what breaks a rule, if other ones than 400 do."""

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
    found = Judgement(partitions)
    reading = Reading(Asking(options, seconds, most_bytes), found)
    agreement = Agreement(reading, found)
    try:
        _judge_address(reading, found, options)
        if _find_partitions(reading, found):
            emulates = _judge_refusals(reading, found)
            agreement.read()
            agreement.judge_ways()
            agreement.judge_several()
            agreement.judge_numbers(emulates=emulates)
            agreement.judge_ends()
            agreement.judge_parallel()
            agreement.judge_connection(options)
        found.passes("limits", "all requests were sent")
    except LimitError as exc:
        enough = agreement.complete and not isinstance(exc, LateError)
        told = found.notes if enough else found.fails
        told("limits", f"{exc.what}; what comes after this was not tested")
    sizes = reading.asking.sizes
    found.requests, found.bytes = len(sizes), sum(sizes)
    return found


def _judge_address(reading: Reading, found: Judgement, options: ClientOptions) -> None:
    """Ask without parameters. Raises the client's error if there is no feed to judge."""
    url, answer = options.url, reading.asking.get("")
    answer.refuse()
    if sent := options.credentials:
        if url.parts.scheme == "https" or is_loopback(url.parts.hostname or ""):
            found.passes("encrypted", url.parts.scheme)
        else:
            found.deviates("encrypted", f"sent through the network as text: {', '.join(sent)}")
    else:
        found["encrypted"].found = f"{url.parts.scheme}, no token"
    if answer.address.partition("?")[0] != str(url) and url.parts.path:
        found.deviates("address", "it redirects to another address")
    else:
        found.passes("address", str(url))
    if answer.status == 400:
        found.passes("n-missing", answer.told)
    elif other := other_protocol(dict(answer.document), reading.asking.transport):
        found.fails("n-missing", str(other.what))
    else:
        found.deviates("n-missing", f"answered {answer.told}")
    told = answer.document.get("partitionCount")
    if type(told) is int and told > 0 and not found.partitions:
        found.partitions = told
        found.passes("partitions", f"{told}, which the publisher tells")
    feed = answer.document.get("feed")
    if isinstance(feed, dict) and feed.get("schemaVersion"):  # of a publisher of ours
        _find_schema(reading, found)


def _find_schema(reading: Reading, found: Judgement) -> None:
    """Ask for the feed's schema, with which events are compared."""
    transport = reading.asking.transport
    try:
        from jsonschema_rs import Draft202012Validator, RegexOptions

        with transport.request("GET", "/schema") as response:
            document = problem_document(Body(response, transport.url).whole().decode())
        linear = RegexOptions()
        check = Draft202012Validator(
            document, validate_formats=False, pattern_options=linear, offline=True
        )
    except ImportError:
        found["contract"].found = "not tested: it needs pip install 'zeh-spark[publisher]'"
        return
    except (TransientError, PublisherError, ValueError) as exc:  # also of a schema that is none
        found["contract"].found = f"not tested: {exc}"
        return

    def why(event: str) -> str | None:
        error = next(check.iter_errors(msgspec.json.decode(event)), None)
        at = "".join(f"/{each}" for each in error.instance_path) if error else ""
        return f"{at or 'the event'}: {error.message}" if error else None

    reading.contract = why


def _find_partitions(reading: Reading, found: Judgement) -> bool:
    """Find the number of partitions; return whether the feed can be read with it."""
    given, accepted = found.partitions, 0
    for count in (given,) if given else _TRIED:
        answer = reading.asking.get(f"n={count}&cursor0={wire.FIRST}&pagesizehint=10")
        if answer.ok:
            accepted = count
            reading.page(answer, [0])
        if accepted >= _ENOUGH or not (answer.ok or (answer.status in (400, 422) and not accepted)):
            break
    found.partitions = accepted or given
    if accepted and (advice := no_power_of_two(accepted)):
        found.notes("partitions", advice)
    if accepted and given:
        found.passes("partitions", f"{given} is accepted")
    elif accepted:
        found.notes("partitions", f"{accepted} is accepted; the publisher tells none")
    elif given:
        found.fails("first", answer.refusal)
    else:
        tried = "neither told nor found by trying powers of two (the last answer: "
        found.fails("partitions", f"{tried}{answer.told})")
    return bool(accepted)


def _judge_refusals(reading: Reading, found: Judgement) -> bool:
    """Send what has to be refused; return whether the publisher emulates other numbers."""
    n, emulates = found.partitions or 1, False
    wrong = {
        "n-mismatch": f"n={n + 1}&cursor0={wire.FIRST}",
        "cursor-missing": f"n={n}",
        "partition-unknown": f"n={n}&cursor{n}={wire.FIRST}",
        "cursor-unknown": f"n={n}&cursor0={_NEVER_SENT}",
    }
    for rule, query in wrong.items():
        refusing = _REFUSED.get(rule, {400})
        answer = reading.asking.get(f"{query}&pagesizehint=10", final=refusing)
        if rule == "n-mismatch" and answer.ok:
            found[rule].found = f"n={n + 1} is accepted; not compared"
            emulates = True
        elif answer.status in refusing:
            found.passes(rule, f"refused with {answer.told}")
        elif answer.ok and answer.lost:
            found.deviates(rule, "the answer began with 200 and broke off")
        else:
            found.deviates(rule, answer.refusal)
    return emulates
