"""Publish without Spark: batches of events from any Python program, each whole and once.

`open_batch` is a batch while it is filled; `batch_line` knows the producer's numbers;
`buffered_producer` publishes single events. Runs in services and in the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from zeh_spark.client.batch_line import BatchLine, ProducerProgress, Turn
from zeh_spark.client.buffered_producer import BufferedProducer
from zeh_spark.client.http.publish_client import PublishClient
from zeh_spark.client.open_batch import OpenBatch
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import OptionError
from zeh_spark.wire.wire import NAME

_MOST_PARTITION, _MOST_NUMBER = 1023, 2**53 - 1


class PublishedNumbers(NamedTuple):
    """The sequence numbers of a producer's events in one partition, both ends included."""

    first: int
    last: int


class Producer:
    """Publishes batches to one feed under one name, one after the other, from any thread.

    The constructor sends no request. The attributes `name` and `run` are the producer's name and
    the id of this run, which a receipt shows. As a context manager, it is closed at the end.

    Args:
        url: the feed's address.
        producer: the name: 1 to 100 letters, digits and `. _ : @ = -`. Two programs that publish at
            the same time need two names.
        max_wait: seconds for which a batch waits for another thread's batch to end.
        starting_sequence: the first sequence number by stored partition, if it is not 0: to
            continue the numbers of another system. It is refused for a partition in which the
            producer began with another number. Batches with names have numbers of their own.
        **options: options of the format that say how to reach the publisher, like `token` or
            `retryTimeout`. A value of None counts as not given.

    Raises:
        OptionError: an option or the name is not valid.

    Guarantee: a batch is published once and completely, or not at all. After an OutcomeUnknownError
    it is not known which of the two; after every other error it is not published.
    """

    def __init__(
        self,
        url: str,
        producer: str,
        *,
        max_wait: float = 60.0,
        starting_sequence: Mapping[int, int] | None = None,
        **options: object,
    ) -> None:
        parsed = parse(ClientOptions, {"url": url, **options})
        # A service may start while its publisher is being upgraded.
        self._client = PublishClient(replace(parsed, first_contact=None))
        self.name = _checked_name("producer", producer)
        starting = _checked_numbers(starting_sequence or {})
        self._turn = Turn(max_wait)
        self._line = BatchLine(self._client, self.name, starting, self._turn)
        self.run = self._line.run
        self._buffered: BufferedProducer | None = None

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, so that no batch begins any more."""
        return self._line.closed

    def close(self, timeout: float | None = None) -> None:
        """Close the buffered producer, wait for the open batch to end, and begin no other one.

        Then no request is sent, except by a batch's `settle`. Raises as `BufferedProducer.close`
        with this `timeout`, and as a `batch` that has to wait.
        """
        try:
            if self._buffered and not self._buffered.closed:
                self._buffered.close(timeout)
        except TimeoutError:
            self._client.stop()
            raise
        finally:
            self._line.close()

    @property
    def last(self) -> ProducerProgress:
        """The producer's progress: the publisher's first answer, and what this object added since.

        Raises:
            PublishError: the name belongs to a Spark query, whose numbers this would take.
            UnavailableError: the publisher did not answer within `retryTimeout`.
            OutcomeUnknownError: the publisher did not tell what became of a batch that `buffered`
                gave up.
        """
        return self._line.progress

    def numbers(self) -> dict[int, PublishedNumbers]:
        """Ask the publisher which sequence numbers the producer's events have, by partition.

        Events of named batches have numbers of their own, which are in the batches' receipts.

        Raises:
            PublishError: the publisher does not have the feed.
            UnavailableError: the publisher did not answer within `retryTimeout`.
        """
        self._line.check_open()
        known = self._client.producer(self.name)
        following, firsts = known["nextSequences"], known["firstSequences"]
        return {
            int(each): PublishedNumbers(firsts.get(each, 0), following[each] - 1)
            for each in following
        }

    def batch(
        self,
        name: str | None = None,
        *,
        allow: Mapping[str, str] | None = None,
        keep: bool = False,
    ) -> OpenBatch:
        """Return a batch to fill inside a `with` block, whose end publishes it.

        The block waits for a batch of another thread to end, for up to `max_wait` seconds.

        Args:
            name: the batch's name, of the same characters as a producer's. A batch that is
                published again under its name adds nothing. Without a name, the batch has the
                producer's next number.
            allow: overrides, by name, like `{"keepFirst": "5d41…"}`. A refusal has the ones that it
                accepts in `PublishError.facts["option"]`.
            keep: keep the events in memory, so that `OpenBatch.publish_again` can publish them
                after an error.

        Raises:
            OptionError: the name is not valid.
        """
        if name is not None:
            _checked_name("batch", name)
        return OpenBatch(self._line, name, dict(allow or {}), keep=keep)

    def buffered(
        self,
        *,
        linger: float = 0.1,
        max_events: int = 10_000,
        max_wait: float = 60.0,
        skip_wrong: bool = False,
    ) -> BufferedProducer:
        """Return a producer of single events, which go into batches in the background.

        A second one can be made when the first is closed.

        Args:
            linger: the most seconds that an event waits for others of its batch.
            max_events: the most events that wait for the next batch, with at most 16 MiB. As many
                may be on their way.
            max_wait: the most seconds that `send` waits for room.
            skip_wrong: whether an event that breaks the feed's schema only fails its own future,
                with RowError. `last.events` then does not count it, so a program that is started
                again cannot continue there. Otherwise, it ends the producer.

        Raises as `last`, and OptionError for a number that is not allowed.
        """
        given = {"linger": (linger, 0), "max_events": (max_events, 1), "max_wait": (max_wait, 0)}
        for name, (value, least) in given.items():
            if not isinstance(value, int | float) or not value >= least:
                raise OptionError(f"{name}={value!r} must be a number from {least}", option=name)
        if self._buffered and not self._buffered.closed:
            raise RuntimeError(f"producer {self.name!r} has a buffered one. Close that first")
        self._buffered = BufferedProducer(
            self._line, linger, max_events, max_wait, skip_wrong=skip_wrong
        )
        return self._buffered


def _checked_numbers(given: Mapping[int, int]) -> dict[int, int]:
    """Return numbers by partition. Raises OptionError if they are not valid."""
    for partition, number in given.items():
        for value, most in ((partition, _MOST_PARTITION), (number, _MOST_NUMBER)):
            if type(value) is not int or not 0 <= value <= most:
                raise OptionError(
                    f"starting_sequence={dict(given)!r} must have partitions and numbers from 0, "
                    f"like {{0: 1000}}; got {value!r}",
                    option="starting_sequence",
                )
    return dict(given)


def _checked_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise OptionError(
            f"the {what} is called {name!r}. Use 1 to 100 letters, digits and . _ : @ = -",
            option=what,
        )
    return name
