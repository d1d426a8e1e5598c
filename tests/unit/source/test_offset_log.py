"""What a checkpoint's files say."""

import pytest

from tests.cases import each_case
from zeh_spark.spark.source.offsets import query_id, source_offsets


def test_the_querys_id_is_found():
    """As Spark writes it; what is no checkpoint, or of a future format, is refused."""
    assert query_id('{"id":"10a441ee"}') == "10a441ee"
    for read, texts in (
        (query_id, ["", "{}", "[]", "10a441ee"]),
        (source_offsets, ["", "v3\n{}\n{}", "{}"]),
    ):
        for text in texts:
            with pytest.raises(ValueError):
                read(text)


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
