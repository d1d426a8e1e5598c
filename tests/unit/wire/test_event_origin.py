"""Where an event was first published, as one text."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from zeh_spark.wire.event_origin import FORM, EventOrigin, is_origin, parse
from zeh_spark.wire.wire import MAX_LINE

NAME = "0-9a-zA-Z._:@=-"
names = st.text("abz09._:@=-AZ", min_size=1, max_size=100)
producers = st.one_of(names, st.tuples(names, names).map("#".join))
numbers = st.integers(0, 10**18 - 1)
feeds = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=100
) | st.sampled_from(["9f86d081884c7d65~1", "https://a.example/x%2Fy?z=1", "%", "/", "%2F"])
origins = st.builds(
    EventOrigin,
    feeds,
    producers,
    numbers,
    numbers,
    numbers,
    st.lists(numbers, max_size=21).map(tuple),
)


@given(origins)
def test_an_origin_comes_back_as_it_was(origin):
    text = str(origin)

    assert origin == parse(text)
    assert pc.match_substring_regex(pa.array([text]), FORM)[0].as_py()
    assert len(text.encode()) < MAX_LINE // 10


@given(origins, origins)
def test_no_two_origins_have_one_text(one, other):
    assert (one == other) == (str(one) == str(other))


@each_case(
    "text",
    [
        *("", "f/p/0/0", "f/p/0/0/0/", "f/p/0/0/0/1.", "f/p/00/0/0", "f/p/-1/0/0", "f/p/0/0/1e3"),
        *("/p/0/0/0", "f//0/0/0", "f/p q/0/0/0", "f/p#/0/0/0", "f/p/0/0/0\n"),
        *("f/p/0/0/" + "9" * 19, "f" * 901 + "/p/0/0/0"),
    ],
)
def test_other_texts_are_no_origins(text):
    assert not is_origin(text)
    assert not pc.match_substring_regex(pa.array([text]), FORM)[0].as_py()
    with pytest.raises(ValueError, match="must be feed/producer/partition/number/time"):
        parse(text)
