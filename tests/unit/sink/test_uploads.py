"""How chunks of a task become requests while it goes on."""

from __future__ import annotations

import threading

import pytest

from zeh_spark.protocol.upload_format import Chunker, parse_upload
from zeh_spark.sink.uploads import Uploader

SIZE = 1000


class Publisher:
    """Takes uploads; says from number `known` on that the batch is committed."""

    def __init__(self, known=None):
        self.bodies = {}
        self.threads = set()
        self.known = known

    def __call__(self, number, body):
        assert number not in self.bodies
        self.bodies[number] = body
        self.threads.add(threading.current_thread())
        return self.known is None or number < self.known

    @property
    def events(self):
        """Of each upload, in order."""
        listed = [parse_upload(self.bodies[each]) for each in sorted(self.bodies)]
        return [sum(entry.events for entry, _ in each) for each in listed]


def uploader(send, gave_up=lambda: None, size=SIZE):
    return Uploader(send, size, gave_up)


def chunk(events=1, noise=400):
    """One whose frame is a little longer than `noise`, which hardly compresses."""
    import random

    chunker = Chunker()
    for each in range(events):
        chunker.add(0, {}, b'"%s"' % random.Random(each).randbytes(noise // events).hex().encode())
    return chunker.close()[0]


def test_a_small_task_sends_one_request_and_starts_no_thread():
    """Most tasks are small."""
    publisher = Publisher()

    with uploader(publisher) as uploads:
        uploads.add([chunk(), chunk()])
        uploads.finish()

    assert [2] == publisher.events
    assert {threading.current_thread()} == publisher.threads
    assert (1, True) == (uploads.sent, uploads.wanted)


def test_a_task_without_rows_sends_nothing():
    """Its commit names it all the same."""
    publisher = Publisher()

    with uploader(publisher) as uploads:
        uploads.finish()

    assert (0, {}) == (uploads.sent, publisher.bodies)


def test_a_large_task_sends_as_it_goes():
    """Requests of about the size asked for, numbered in order, each chunk in one of them."""
    publisher = Publisher()

    with uploader(publisher) as uploads:
        for _ in range(7):
            uploads.add([chunk()])
        uploads.finish()

    assert [2, 2, 2, 1] == publisher.events
    assert uploads.sent == 4
    assert all(len(body) < SIZE + 100 for body in publisher.bodies.values())


def test_what_compresses_well_is_not_kept_for_ever():
    """An upload holds at most twice its size before compression."""
    publisher = Publisher()
    flat = Chunker()
    for _ in range(10):
        flat.add(0, {}, b'"%s"' % (b"x" * 480))
    (small,) = flat.close()

    with uploader(publisher) as uploads:
        for _ in range(4):
            uploads.add([small])
        uploads.finish()

    assert [10] * 4 == publisher.events


def test_two_uploads_hold_back_the_third():
    """One is on its way and one waits, however fast the rows come."""
    begun, go = threading.Semaphore(0), threading.Event()

    def send(number, body):
        begun.release()
        assert go.wait(10)
        return True

    def fill():
        with uploader(send) as uploads:
            for _ in range(100):
                uploads.add([chunk()])
                added.append(1)
            uploads.finish()

    added = []
    thread = threading.Thread(target=fill)
    thread.start()
    assert begun.acquire(timeout=10)
    thread.join(0.2)
    held = len(added)
    go.set()
    thread.join(10)

    assert held == 4
    assert len(added) == 100


def test_a_batch_that_is_committed_needs_no_more_requests():
    """The publisher says so at the second upload; the rest is counted only."""
    publisher = Publisher(known=1)

    with uploader(publisher) as uploads:
        for _ in range(9):
            uploads.add([chunk()])
        uploads.finish()

    assert [0, 1] == sorted(publisher.bodies)
    assert not uploads.wanted


def test_what_sending_raises_reaches_the_task():
    """Also where it was raised in the background."""

    def send(number, body):
        raise ConnectionError(f"upload {number}")

    with pytest.raises(ConnectionError, match="upload 0"), uploader(send) as uploads:
        for _ in range(9):
            uploads.add([chunk()])


def test_a_task_that_fails_leaves_no_thread_behind():
    """Spark reuses the process for other tasks: a request under way is given up first."""
    gave_up, begun = threading.Event(), threading.Event()

    def send(number, body):
        begun.set()
        assert gave_up.wait(10)
        return True

    before = threading.active_count()
    with pytest.raises(ValueError, match="a bad row"), uploader(send, gave_up.set) as uploads:
        for _ in range(3):
            uploads.add([chunk()])
        assert begun.wait(10)
        raise ValueError("a bad row")

    assert threading.active_count() == before


def test_a_task_that_ends_well_gives_nothing_up():
    """And leaves no thread either."""
    before = threading.active_count()

    with uploader(Publisher(), gave_up=pytest.fail) as uploads:
        for _ in range(9):
            uploads.add([chunk()])
        uploads.finish()

    assert threading.active_count() == before
