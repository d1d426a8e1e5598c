"""Wait until a reader has committed a batch. Runs in services, and in the command line."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from zeh_spark.client.http.publish_client import PublishClient, Receipt
from zeh_spark.client.http.retry import Retry
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import NotCommittedError, OptionError, PublishError
from zeh_spark.wire import problems
from zeh_spark.wire.phrases import counted

_POLL_SECONDS = 20.0
"""Most seconds for which the publisher holds one request."""

_PAUSE_SECONDS = 0.1
"""Seconds between two requests: a publisher that is about to stop answers at once."""


def wait_for(
    receipt: Receipt | str, url: str, *, cursor_set: str, timeout: float = 60.0, **options: object
) -> None:
    """Wait until a reader has committed a batch, and everything before it, to its sink.

    That is what it reads of them: with `only`, the events that it selects; and nothing of what was
    before, if it began at `last`, at a time, or at cursors that you gave; nor of what retention had
    removed when it began.
    A Spark query reports a micro-batch one trigger later, when it asks for the next one. A query
    with state may still hold rows back then, and one with `failOnDataLoss=false` has lost some.

    Args:
        receipt: The batch's receipt, or its `cursor`. Nothing is awaited of one without events.
        url: The feed's address, of a publisher of zeh_spark.
        cursor_set: The name under which the reader reports its positions: its option `cursorSet`.
        timeout: Seconds to wait, also for a publisher that is away; 0 asks once.
        **options: Options of the format that say how to reach the publisher, like `token`.

    Raises:
        NotCommittedError: The time is over. The message says how far the reader is.
        OptionError: An option is not valid.
        PublishError: Its `problem` is, at once, `receipt-of-another-history` if the batch is not in
            this feed, perhaps because a restore undid it; `receipt-gone` if retention removed it;
            `cursorset-unsupported` of a table; in the end `unknown-cursorset` if no reader began.
        PublisherError: The address is not that of a publisher of zeh_spark.
        UnavailableError: The publisher did not answer in this time.
    """
    if not isinstance(timeout, (int, float)) or not 0 <= timeout < math.inf:
        raise OptionError(f"timeout is {timeout!r}. Give seconds, like 60", option="timeout")
    if not isinstance(receipt, Receipt | str) or not isinstance(cursor_set, str):
        said = (
            f"receipt is {receipt!r:.100}, and cursor_set is {cursor_set!r}. Give the receipt of a "
        )
        said += "batch that was published, or its cursor, and the reader's option cursorSet"
        raise OptionError(said, option="receipt")
    cursor = receipt.cursor if isinstance(receipt, Receipt) else receipt
    if cursor is None:
        return
    given = parse(ClientOptions, {"url": url, **options})
    patience = min(given.read_timeout, min(timeout, _POLL_SECONDS) + 10)
    client = PublishClient(replace(given, first_contact=None, read_timeout=patience))
    poll, end = min(_POLL_SECONDS, patience / 2), time.monotonic() + timeout
    while True:
        left = max(0.0, end - time.monotonic())
        found = None
        try:
            found = client.awaited(cursor, cursor_set, min(left, poll), Retry(left))
            if found.committed:
                return
        except PublishError as exc:  # a reader that is not known may begin
            if exc.problem != problems.UNKNOWN_CURSORSET.name or time.monotonic() >= end:
                raise
        left = end - time.monotonic()
        if found and left <= 0:
            far = "how far it is, is not known: some partitions have no position of it, as with a "
            far += "reader that has set 'partitions', which is never told to have all"
            if lag := found.lag:
                events, age = counted(lag.events, "event"), (lag.ms or 0) / 1000
                far = (
                    f"{events} up to the feed's end are not committed, the oldest {age:,.1f} s old"
                )
            said = (
                f"the reader {cursor_set!r} of {given.url} has not committed the batch that ends "
                f"at {cursor} within {timeout:g} s: {far}. Wait for longer, or "
                f"see whether it runs; a query tells of a micro-batch when it asks for the next one"
            )
            raise NotCommittedError(said, cursor=cursor)
        time.sleep(min(max(0.0, left), _PAUSE_SECONDS))
