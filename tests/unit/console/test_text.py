"""Text as people see it: nothing hidden, nothing endless."""

from __future__ import annotations

from tests.cases import each_case
from zeh_spark.service.console.text import lasting, visible
from zeh_spark.wire.phrases import size_of


@each_case(
    ("text", "shown"),
    [
        ("plain, ünïcödé, 日本語, 😀", "plain, ünïcödé, 日本語, 😀"),
        ("evil\u202egnp.exe", "evil\\u202egnp.exe"),
        ("a\u2066b\u2069", "a\\u2066b\\u2069"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\x00\x1b[31m\r\n", "\\u0000\\u001b[31m\\u000d\\u000a"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_hidden_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    """An event cannot turn the direction of a page, nor hide a part of itself."""
    assert shown == visible(text, 100)


def test_a_text_is_cut() -> None:
    assert "abc" == visible("abcdef", 3)


@each_case(
    ("seconds", "words"),
    [(-5, "0 s"), (59.9, "59 s"), (60, "1 min"), (7200, "2 h"), (86_400 * 2000, "2,000 d")],
)
def test_a_duration_is_told_in_its_largest_unit(seconds: float, words: str) -> None:
    assert words == lasting(seconds)


@each_case(
    ("count", "words"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 41, "2.0 TiB")]
)
def test_a_size_is_told_in_the_unit_that_suits_it(count: int, words: str) -> None:
    assert words == size_of(count)
