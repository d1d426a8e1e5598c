"""When a read that has to end has reached its end: the cases of the module's head, one by one."""

from tests.cases import each_case
from zeh_spark.client.http.feed_client import PageEnd
from zeh_spark.client.polling.feed_end import Ending, events_before
from zeh_spark.wire.wire import Interval


def page(events=0, *, moved=False, tail=b""):
    """The end of a page."""
    return PageEnd("c1", "c2" if moved else "c1", events, complete=True, tail=tail)


def read(target, *seen, line=None, start="c1", most=3):
    """The ending of a partition after it saw these intervals and page ends."""
    ending = Ending(target, most, line=line)
    ending.page_begins(start)
    for each in seen:
        if isinstance(each, Interval):
            ending.sees(each)
        else:
            ending.page_ended(each)
    return ending


def interval(*lines, cursor="c2"):
    return Interval(b"".join(each + b"\n" for each in lines), len(lines), cursor)


@each_case(
    ("pages", "expected"),
    [
        ([page()], False),
        ([page()] * 2, True),
        ([page(), page(3), page()], False),
        ([page(), page(moved=True), page()], False),
        ([page(moved=True)] * 9, False),
        ([page(moved=True)] * 10, True),
        ([page(3)] * 20, False),
    ],
)
def test_a_answers_without_events(pages, expected):
    """(a) Without a target two answers in a row without news, or many that only move the cursor.
    A page's length says nothing. With a target silence proves nothing, which may be a hiccup, or a
    replica that lags: the publisher is asked where it lies.
    """
    assert expected == read(None, *pages, most=10).ended
    quiet = read("t", *[page()] * 9, most=10)
    assert (False, 9) == (quiet.ended, quiet.quiet_answers)


def test_b_the_target_comes():
    """(b) The checkpoint that was last when the read began; nothing, if the read begins there."""
    assert not read("t", interval(b"1", cursor="c2")).ended
    assert read("t", interval(b"1", cursor="t")).ended
    assert read("c1", start="c1").ended
    assert not read(None, start="c1").ended


HEARTBEATS = [interval(b"1", b"2", b"3"), interval(b"2", cursor="c3"), page(4)]


@each_case(
    ("seen", "candidates"),
    [
        (HEARTBEATS, [("c1", 1), ("c2", 0)]),
        ([page(1, tail=b"0\n2\n")], [("c1", 1)]),
        ([interval(*[b"2"] * 50), page(50)], [("c1", events) for events in range(8)]),
    ],
)
def test_c_equal_events_are_only_places_to_ask_about(seen, candidates):
    """(c) Bytes prove nothing: heartbeats are all alike. The page's tail counts too, else a feed
    with rare checkpoints would be read on; a few places in each page are asked about.
    """
    ending = read("t", *seen, line=b"2")

    assert (False, candidates) == (ending.ended, ending.candidates)


def test_c_the_line_is_asked_for_now_and_then():
    """(c) A long history of a feed that has not grown costs few questions."""
    ending = Ending("t")
    asked = []
    for number in range(20):
        if ending.wants_line:
            asked.append(number)
        ending.page_ended(page(3, moved=True))

    assert asked == [0, 1, 2, 4, 8, 16]  # and every eighth from there
    assert not Ending(None).wants_line
    assert not Ending("t", line=b"1").wants_line


def test_c_what_was_read_while_nothing_was_after_the_target_is_remembered():
    """(c) Once there is something, these events are looked through again."""
    ending = Ending("t")
    ending.line_is(None, "c1")
    ending.sees(interval(b"1", b"2"))
    ending.line_is(b"3", "c2")

    assert (b"3", "c1", 2) == (ending.line, ending.quiet_at, ending.events_since)


def test_a_target_that_is_gone_proves_nothing():
    """A table loses single rows: the read continues to the target that the feed tells now."""
    ending = read("t", interval(b"1", b"2"), page(2), line=b"2")
    assert ending.candidates

    ending.target_is_gone("u")

    assert (False, "u", None, []) == (ending.ended, ending.target, ending.line, ending.candidates)
    ending.page_begins("u")
    assert ending.ended


@each_case(
    ("lines", "expected"),
    [
        (b"12\n", [0]),
        (b"1\n12\n", [1]),
        (b"12\n3\n12\n12\n", [0, 2]),
        (b"012\n", []),
        (b"123\n", []),
        (b"1\n2\n", []),
        (b"", []),
        (b"12", []),
    ],
)
def test_only_a_whole_line_is_the_line(lines, expected):
    """An event that only looks like it is none."""
    assert events_before(lines, b"12", 2) == expected
