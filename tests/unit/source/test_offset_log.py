"""What a checkpoint's files say."""

import pytest

from tests.cases import each_case
from zeh_spark.source.offset_log import query_id, source_offsets


def test_the_querys_id_is_found():
    """As Spark writes it."""
    assert query_id('{"id":"10a441ee"}') == "10a441ee"


@each_case("text", ["", "{}", "[]", "10a441ee"])
def test_another_text_has_no_query(text):
    """What is no checkpoint is refused."""
    with pytest.raises(ValueError):
        query_id(text)


@each_case(
    "text",
    [
        'v1\n{"conf":{}}\n{"feed":"a:b"}\n-\n7\nearliest',
        'v2\n{"conf":{}}\n0:{"feed":"a:b"}\norders:-\n2:7\n3:earliest\n',
    ],
)
def test_each_source_has_its_offset(text):
    """In both of Spark's formats; "-" is none yet, and not all are JSON."""
    assert [{"feed": "a:b"}, None, 7, "earliest"] == source_offsets(text)


@each_case("text", ["", "v3\n{}\n{}", "{}"])
def test_a_format_of_the_future_is_refused(text):
    """It is not guessed at."""
    with pytest.raises(ValueError):
        source_offsets(text)
