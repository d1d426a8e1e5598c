"""Reading a whole feed in order of position: all partitions in one request, page after page.

Rule for editors: what was cut is asked for again from the last checkpoints. That a feed has ended
is known by the position it was to be read to, never by the end of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from zeh_spark.audit.pieces import Cutter, Piece, StrangeFeedError
from zeh_spark.client.responses import TransientError
from zeh_spark.client.transport import Transport
from zeh_spark.errors import PublisherError, UnavailableError
from zeh_spark.options import ClientOptions
from zeh_spark.protocol import wire

HINT = 500_000
"""Events that an answer brings, about: few requests, and their size costs no memory on either side.
Where answers break off before they have brought anything, shorter ones are asked for.
"""


class FeedReader:
    """Reads a feed of `partitions` partitions. Never hands out what no checkpoint has closed."""

    def __init__(self, options: ClientOptions, partitions: int) -> None:
        self._transport = Transport(options)
        self._partitions = partitions

    def head(self) -> int:
        """The position after which nothing is committed, as of now."""
        return self._position(wire.LAST)

    def removed(self) -> int:
        """The position up to which retention has removed everything, as of now."""
        return self._position(wire.FIRST)

    def _position(self, special: str) -> int:
        cursors = dict.fromkeys(range(self._partitions), special)
        pieces = self._transport.retry().call(lambda: list(self._answer(cursors, 0)))
        told = {each.partition: each.position for each in pieces}
        if told.keys() != cursors.keys():
            raise self._not_ours(f"it does not tell what {special} is of each partition")
        return max(told.values())

    def pieces(self, head: int) -> Iterator[Piece]:
        """Chunks up to that position; fewer only if the publisher says, in a whole answer, that
        there are no more.
        """
        cursors = dict.fromkeys(range(self._partitions), wire.FIRST)
        retry, at, hint = self._transport.retry(), 0, HINT
        while at < head:
            before = at
            try:
                for piece in self._answer(cursors, hint):
                    asked = cursors.get(piece.partition)
                    repeats = not piece.lines and asked in (piece.cursor, wire.FIRST)
                    cursors[piece.partition] = piece.cursor
                    retry.progress()
                    if repeats:
                        continue
                    if piece.position > head:
                        return
                    yield piece
                    at = max(at, piece.position)
                    if at == head:
                        return
                if at == before:
                    return
                hint = min(HINT, 2 * hint)
            except TransientError as failure:
                hint = hint if at > before else max(1, hint // 16)
                retry.wait(_located(failure, at))

    def _answer(self, cursors: dict[int, str], hint: int) -> Iterator[Piece]:
        """Raises TransientError for one that is not whole, after what came of it."""
        asked = {f"cursor{partition}": cursor for partition, cursor in cursors.items()}
        query = {"n": self._partitions, **asked, "pagesizehint": hint, "headers": wire.ALL_HEADERS}
        body = self._transport.body(urlencode(query))
        cutter = Cutter()
        try:
            for data in body:
                yield from cutter.feed(data)
        except StrangeFeedError as exc:
            raise self._not_ours(str(exc)) from None
        finally:
            body.close()
        if not body.proven:
            raise TransientError(self._not_ours("the end of its answer is not certain"))
        if cutter.held:
            raise self._not_ours("its answer does not end with a checkpoint")

    def _not_ours(self, reason: str) -> PublisherError:
        return not_ours(str(self._transport.url), reason)


def not_ours(url: str, reason: str) -> PublisherError:
    return PublisherError(
        f"{url}: {reason}; only feeds that a publisher of zeh_spark serves can be audited"
    )


def _located(failure: TransientError, at: int) -> TransientError:
    if not isinstance(failure.final, UnavailableError):
        return failure
    said = f"after position {at:,}: {failure.final.what}"
    final = UnavailableError(said, advice=failure.final.advice)
    return TransientError(final, failure.retry_after, str(failure))
