"""When a read that has to end has reached its end: the cases of the module's head, one by one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zeh_spark.source.ending import Ending, has_line
from zeh_spark.wire import Interval


def page(events=0, *, moved=False, complete=True, tail=b""):
    """What a page says at its end."""
    return SimpleNamespace(
        events=events,
        complete=complete,
        tail=tail,
        cursor="c2" if moved else "c1",
        request=SimpleNamespace(cursor="c1"),
    )


def ended(target, *seen, line=None, start="c1"):
    """Whether a partition has ended after it saw these intervals and page ends."""
    ending = Ending(target, line)
    ending.starts_at(start)
    for each in seen:
        if isinstance(each, Interval):
            ending.sees(each)
        else:
            ending.page_ended(each)
    return ending.ended


def interval(*lines, cursor="c2"):
    return Interval(b"".join(each + b"\n" for each in lines), len(lines), cursor)


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([page()], True),
        ([page(complete=False)], False),
        ([page(complete=False), page(complete=False)], True),
        ([page(moved=True)], False),
        ([page(moved=True), page(moved=True)], True),
        ([page(moved=True), page(3), page(moved=True)], False),
        ([page(3)], False),
        ([page(1), page(1), page(1)], False),
    ],
)
def test_a_an_answer_without_events(pages, expected):
    """(a) A whole answer without news, or the second in a row that only moves the cursor. A page's
    length says nothing.
    """
    assert expected == ended(None, *pages)


def test_b_the_target_comes():
    """(b) The checkpoint that was last when the read began."""
    assert not ended("t", interval(b"1", cursor="c2"))
    assert ended("t", interval(b"1", cursor="t"))


def test_b_a_start_at_the_target_has_ended():
    """(b) There is nothing between the start and what was last."""
    assert ended("c1", start="c1")
    assert not ended(None, start="c1")


def test_c_the_first_line_behind_the_target_ends_with_its_page():
    """(c) The target itself does not come again, but an event behind it does: the page may be read
    to its end, no further.
    """
    seen = interval(b"1", b"2", b"3")

    assert not ended("t", seen, line=b"2")
    assert ended("t", seen, page(3), line=b"2")


def test_c_the_line_may_be_behind_the_last_checkpoint():
    """(c) The page's tail counts too, else a feed with rare checkpoints would be read on."""
    assert ended("t", page(1, tail=b"0\n2\n"), line=b"2")


def test_c_without_the_line_it_goes_on():
    """(c) Nothing behind the target was seen yet."""
    assert not ended("t", interval(b"1", b"3"), page(2), line=b"2")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"12\n", True),
        (b"1\n12\n", True),
        (b"12\n3\n", True),
        (b"012\n", False),
        (b"123\n", False),
        (b"1\n2\n", False),
        (b"", False),
        (b"12", False),
    ],
)
def test_only_a_whole_line_is_the_line(lines, expected):
    """An event that only looks like it ends nothing."""
    assert expected == has_line(lines, b"12")
