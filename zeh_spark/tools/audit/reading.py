"""Read a whole feed in order of position: all partitions in one request, page after page.

Rule for editors: after an answer that breaks off, the rest is asked for from the last checkpoint
lines. A feed ends at the position that it was to be read to, never at the end of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from zeh_spark.client.http.responses import TransientError
from zeh_spark.client.http.transport import Body, Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.errors import PublisherError, UnavailableError
from zeh_spark.tools.audit.pieces import Cutter, Piece, StrangeFeedError
from zeh_spark.wire import wire

HINT = 500_000
"""About how many events are asked for in one request.

So there are few requests, and their size costs no memory on either side. If answers break off
before they have brought anything, shorter ones are asked for.
"""

_FROM_THE_STORE = {"Cache-Control": "no-cache"}
"""What the publisher keeps in memory may be right although the store is damaged."""


class FeedReader:
    """Reads all partitions of a feed in order of position.

    Guarantee: it never hands out lines that no checkpoint line has closed.
    """

    def __init__(self, options: ClientOptions, partitions: int) -> None:
        self._transport = Transport(options)
        self._partitions = partitions

    def head(self) -> int:
        """Return the feed's last position, as of now."""
        return self._position(wire.LAST)

    def removed(self) -> int:
        """Return the position up to which retention has removed everything, as of now."""
        return self._position(wire.FIRST)

    def _position(self, special: str) -> int:
        cursors = dict.fromkeys(range(self._partitions), special)
        pieces = self._transport.retry().call(lambda: list(self._answer(cursors, 0)))
        told = {each.partition: each.position for each in pieces}
        if told.keys() != cursors.keys():
            raise self._not_ours(f"it does not give the cursor {special} of each partition")
        return max(told.values())

    def pieces(self, head: int) -> Iterator[Piece]:
        """Yield the chunks up to the position `head`.

        There are fewer only if the publisher says so, in a whole answer.
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
                    if repeats:
                        continue
                    if piece.cursor != asked:
                        retry.progress()
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
        """Yield the pieces of one answer. Raises TransientError at the end if it is not whole."""
        asked = {f"cursor{partition}": cursor for partition, cursor in cursors.items()}
        query = {"n": self._partitions, **asked, "pagesizehint": hint, "headers": wire.ALL_HEADERS}
        answer = self._transport.request("GET", query=urlencode(query), headers=_FROM_THE_STORE)
        body = Body(answer, self._transport.url)
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
    """Return the error for a feed that another kind of publisher serves."""
    return PublisherError(
        f"{url}: {reason}. Only feeds that a publisher of zeh_spark serves can be audited."
    )


def _located(failure: TransientError, at: int) -> TransientError:
    """Return the failure with the position up to which the feed was read in its message."""
    if not isinstance(failure.final, UnavailableError):
        return failure
    said = f"after position {at:,}: {failure.final.what}"
    final = failure.final.reworded(said, anchor="the-publisher-does-not-answer")
    return TransientError(final, failure.retry_after, str(failure))
