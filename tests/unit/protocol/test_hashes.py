"""Digests tell whether the same events came again."""

from __future__ import annotations

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from zeh_spark.protocol import hashes


def test_the_digest_is_the_same_for_ever():
    """A checkpoint written by one version can be replayed by the next."""
    events = [b'{"partition":0,"data":1}\n', b'{"partition":0,"data":2}\n']
    assert "99aa06d3014798d86001c324468d497f" == hashes.digest_in_order([])
    assert "19e42a072f69fab97e10515bf52ed38f" == hashes.digest_in_order(events)
    assert "0" * 32 == hashes.sum_of_lines([])
    assert f"{sum(xxhash.xxh3_128_intdigest(each[:-1]) for each in events):032x}" == (
        hashes.sum_of_lines(events)
    )


# Laws


@given(st.lists(strategies.feed_lines()).map(b"".join), st.data())
def test_the_digest_depends_on_the_bytes_alone(lines, data):
    """In what pieces the events are held changes nothing."""
    assert hashes.digest_in_order([lines]) == hashes.digest_in_order(
        data.draw(strategies.cut(lines))
    )


@given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b"")), max_size=9), st.data())
def test_a_sum_does_not_depend_on_the_order(lines, data):
    """The same events in another order are the same batch; one more or less is not."""
    each = [line + b"\n" for line in lines]
    other = data.draw(st.permutations(each))
    assert hashes.sum_of_lines([b"".join(each)]) == hashes.sum_of_lines(other)
    if each:
        assert hashes.sum_of_lines(other[1:]) != hashes.sum_of_lines(other)
        assert hashes.sum_of_lines([*other, other[0]]) != hashes.sum_of_lines(other)
