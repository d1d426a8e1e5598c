"""The small charts of the console."""

from __future__ import annotations

from zeh_spark.service.console.sparkline import HEIGHT, WIDTH, Sparkline, sparkline


def test_the_highest_count_reaches_the_top() -> None:
    line = "0,23 60,1 120,12"
    expected = Sparkline(line, f"0,{HEIGHT} {line} {WIDTH},{HEIGHT}")
    assert expected == sparkline([0, 4, 2])


def test_what_is_not_known_is_left_out() -> None:
    """The line goes straight on between two known counts, and ends where nothing is known."""
    line = "30,23 90,1"
    expected = Sparkline(line, f"30,{HEIGHT} {line} 90,{HEIGHT}")
    assert expected == sparkline([None, 0, None, 4, None])


def test_without_events_there_is_no_line() -> None:
    assert Sparkline("", "") == sparkline([0] * 60) == sparkline([None] * 60)


def test_points_on_a_level_line_are_left_out() -> None:
    """A page with many quiet feeds stays small."""
    assert "0,23 60,23 90,1 120,23" == sparkline([0, 0, 0, 5, 0]).line
