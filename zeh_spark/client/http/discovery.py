"""Ask a publisher how many partitions its feed has, and which feed it is.

The request has no parameters. Our publisher answers 400 with a problem document (RFC 9457) that has
the members `partitionCount` and `feed` (see `wire.feed_identity`). Other publishers may answer
anything: a refusal without these members, a page, an error of their framework. Their feeds have no
identity of their own.

Rule for editors: a feed must never look like another one because its publisher did not answer for a
moment. So only a final answer means that a feed tells no identity.

Runs on the driver, in batch tasks and in commands.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from zeh_spark.client.http.responses import TransientError, body_text, problem_document
from zeh_spark.client.http.transport import Transport
from zeh_spark.errors import AccessError, OptionError, PublisherError, ZeroEventHubError
from zeh_spark.wire import problems
from zeh_spark.wire.direct_reads import OFFER
from zeh_spark.wire.feed_identity import FeedIdentity, parse, untold
from zeh_spark.wire.option_values import MAX_PARTITIONS
from zeh_spark.wire.phrases import counted

log = logging.getLogger(__name__)

_MISSING_PARAMETER = {400, 422}
_OF_A_FRAMEWORK = {500, 501}
"""Statuses that are retried elsewhere, and that another publisher may always answer here."""

_NO_INDEX = {400, 404, 405, 422}
_INDEX_BYTES = 16 << 20

_TRIES = 3
"""How often an answer has to come that may be one of a proxy before our publisher."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """What a publisher tells of a feed.

    Args:
        identity: the feed's identity; None if the publisher tells none.
        direct: whether executors can fetch chunks (`wire.direct_reads`).
    """

    partition_count: int
    identity: FeedIdentity | None = None
    direct: bool = False

    def named(self, name: str) -> FeedIdentity:
        """Return the identity, or one made of a name: the option `feedId`, or the URL."""
        return self.identity or untold(name)


def discover(
    transport: Transport,
    partition_count: int | None = None,
    *,
    otherwise: int | None = None,
    has_identity: bool = False,
) -> Discovered:
    """Ask for a feed's number of partitions (`otherwise` if none is told) and its identity.

    If the number of partitions is known (the option, a checkpoint), a feed may have no identity. An
    answer 200, 400 or 422 without one shows that; any other answer has to come three times. If the
    feed is known to have an identity, only 200, 400 and 422 are answers about it. Raises
    OptionError if the number of partitions is neither known nor told.
    """
    retry = transport.retry()
    document: dict[str, Any] | None = None
    while document is None:
        try:
            document = _asked(transport, partition_count is not None)
        except TransientError as failure:
            foreign = partition_count is not None and not has_identity and _is_foreign(failure)
            try:
                if not foreign or retry.attempts + 1 < _TRIES:
                    retry.wait(failure)
                else:
                    document = {}
            except ZeroEventHubError:
                if not foreign:
                    raise
                document = {}
    count = partition_count or _count(document, transport, otherwise)
    if type(told := document.get("partitionCount")) is int and told != count:
        _tell_other_count(str(transport.url), count, told)
    return Discovered(count, _identity(document, transport), _offers_direct_reads(document))


@lru_cache  # once
def _tell_other_count(url: str, count: int, told: int) -> None:
    log.warning(
        "%s: this reader works with %s, and the feed has %d. %s",
        url,
        counted(count, "partition"),
        told,
        f"The reader's partitions from {told} on stay empty"
        if count > told
        else "Each partition of the reader then has the events of several",
    )


def rediscover(
    transport: Transport, partition_count: int, feed: FeedIdentity, name: str, *, told: bool = True
) -> FeedIdentity:
    """Return the identity that the publisher tells now of a feed that is being read.

    `name` is the feed's name if none is told. Raises PublisherError for another feed and, unless
    its pages have `told` it, for another epoch, because events may have got the id of a wrong one.
    """
    now = discover(transport, partition_count, has_identity=feed.told).named(name)
    if not now.knows(feed.id) or (now != feed and not told):
        raise PublisherError(
            f"while this read went on, a new epoch began, or another feed is served: the publisher "
            f"of {transport.url} gave the feed's identity as {feed.document()} when the read "
            f"began, and now tells {now.document()}. Read again from where this read began"
        )
    return now


def index(transport: Transport) -> dict[str, Any]:
    """Return what a publisher of zeh_spark answers at its root: itself, and the feeds to be read.

    The transport is that of the publisher's address, without a feed.
    """

    def read() -> dict[str, Any]:
        with transport.request("GET") as response:
            return problem_document(body_text(response, _INDEX_BYTES))

    try:
        document = transport.retry().call(read)
    except PublisherError as exc:
        if exc.status not in _NO_INDEX:
            raise
        document = {}
    feeds = document.get("feeds")
    members = {"name": str, "partitions": int, "takesBatches": bool}
    if (
        document.get("server") != problems.SERVER
        or not isinstance(feeds, list)
        or not all(
            isinstance(each, dict)
            and all(isinstance(each.get(name), kind) for name, kind in members.items())
            for each in feeds
        )
    ):
        raise PublisherError(
            f"{transport.url} lists no feeds. Only publishers of zeh-spark list them, at their "
            f"address without a feed, like http://127.0.0.1:8080"
        )
    return document


def _asked(transport: Transport, count_known: bool) -> dict[str, Any]:
    """Return the answer's document; an empty one for an answer that says nothing.

    Raises TransientError for an answer that may be one of a proxy before our publisher.
    """
    try:
        with transport.request("GET", proven=True) as response:
            return {} if count_known else problem_document(body_text(response))
    except PublisherError as exc:
        refusal = exc
    except TransientError as failure:  # among others, a refusal whose framing does not show its end
        document = problem_document(failure.body or "")
        if not isinstance(failure.final, PublisherError) or not document:
            raise
        if failure.status is None or problems.is_transient(failure.status):
            raise
        refusal = failure.final  # the document's own end shows that it is whole
    return _refusal(refusal, count_known)


def _refusal(exc: PublisherError, count_known: bool) -> dict[str, Any]:
    """Return the document of a final refusal, if it is one of a missing parameter."""
    document = problem_document(exc.body or "")
    if exc.status in _MISSING_PARAMETER:
        return document
    ours = problems.name_in(document) is not None
    if exc.status is None or isinstance(exc, AccessError) or ours or not count_known:
        raise exc
    raise TransientError(exc, status=exc.status, body=exc.body)


def _is_foreign(failure: TransientError) -> bool:
    """Return whether another publisher may always answer so to a request without parameters."""
    if failure.status is None or problems.name_in(problem_document(failure.body or "")):
        return False
    return failure.status in _OF_A_FRAMEWORK or not problems.is_transient(failure.status)


def other_protocol(document: dict[str, Any], transport: Transport) -> PublisherError | None:
    """Return the error for a publisher of FeedAPI 2, the successor of the protocol, if it is one.

    It is refused by name. Rejected: reading it. A partition of it may split while it is read, and
    tells neither its end nor, after the split, an earlier batch; and its specification is a draft.
    """
    if not isinstance(document.get("token"), str) or type(document.get("partitions")) is not list:
        return None
    return PublisherError(
        f"the publisher of {transport.url} speaks FeedAPI 2 here, the successor of ZeroEventHub "
        f"(partitions listed: {len(document['partitions'])}). zeh-spark reads ZeroEventHub "
        f"(FeedAPI 1). Ask its owner for an address that serves it. If this address "
        f"serves both, set 'partitionCount' to the number that its documentation names",
        body=str(document)[:2000],
        anchor="the-publisher-speaks-feedapi-2",
    )


def _count(document: dict[str, Any], transport: Transport, otherwise: int | None) -> int:
    count = document.get("partitionCount")
    if type(count) is int and 0 < count <= MAX_PARTITIONS:
        return count
    if other := other_protocol(document, transport):
        raise other
    if otherwise:
        return otherwise
    raise OptionError(
        f"option 'partitionCount' is missing, and the publisher of {transport.url} "
        f"does not tell it. Give the number of partitions that its documentation names",
        option="partitionCount",
        anchor="partitioncount-is-missing",
    )


def _offers_direct_reads(document: dict[str, Any]) -> bool:
    """Return whether the feed can be read directly, by the versions that this client knows."""
    feed = document.get("feed")
    if problems.name_in(document) is None or not isinstance(feed, dict):
        return False
    reads = feed.get("reads")
    return isinstance(reads, dict) and all(reads.get(each) == OFFER[each] for each in OFFER)


def _identity(document: dict[str, Any], transport: Transport) -> FeedIdentity | None:
    """Return the identity in the member `feed`.

    Other publishers' documents may have such a member with another meaning.
    """
    if problems.name_in(document) is None or "feed" not in document:
        return None
    try:
        return parse(document["feed"])
    except ValueError as exc:
        raise PublisherError(
            f"the publisher of {transport.url} tells which feed it serves in a form that this "
            f"version of zeh-spark cannot read: {exc}. Upgrade zeh-spark here, or ask the "
            f"publisher's owner whether a proxy changes its answers",
            body=str(document["feed"]),
        ) from None
