"""Secrets in the words of a publisher, which errors repeat."""

import pytest

from zeh_spark.client.credentials import _Mask

SECRET = "zeh_2c18a578_x7Qm9vR2kLpT4wYb"


@pytest.fixture
def masked():
    mask = _Mask()
    mask.add(SECRET, "short", None)
    return mask


@pytest.mark.parametrize("length", range(12, len(SECRET) + 1))
def test_a_secret_is_hidden_also_where_a_text_was_cut_in_it(masked, length):
    text = f"no: {SECRET[:length]}"

    assert masked(text) == "no: (hidden)"
    assert masked(f"{text}… ({SECRET})") == "no: (hidden)… ((hidden))"


@pytest.mark.parametrize("text", ["", "short of time", "zeh_2c18", "other"])
def test_other_texts_stay(masked, text):
    assert masked(text) == text


def test_a_secret_that_is_forgotten_is_not_searched_for(masked):
    masked.forget(SECRET)

    assert masked(SECRET) == SECRET
