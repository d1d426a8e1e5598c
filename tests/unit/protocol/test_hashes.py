"""Digests tell whether the same events came again."""

from __future__ import annotations

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.protocol import hashes


def test_the_digest_is_the_same_for_ever():
    """A checkpoint written by one version can be replayed by the next."""
    events = [b'{"partition":0,"data":1}\n', b'{"partition":0,"data":2}\n']
    assert "0" * 32 == hashes.sum_of_lines(b"")
    assert f"{sum(xxhash.xxh3_128_intdigest(each[:-1]) for each in events):032x}" == (
        hashes.sum_of_lines(b"".join(events))
    )


# Laws


@given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b"")), max_size=9), st.data())
def test_a_sum_does_not_depend_on_the_order(lines, data):
    """The same events in another order are the same batch; one more or less is not."""
    each = [line + b"\n" for line in lines]
    other = data.draw(st.permutations(each))
    digest = hashes.sum_of_lines(b"".join(each))
    assert digest == hashes.sum_of_lines(b"".join(other))
    if each:
        assert digest != hashes.sum_of_lines(b"".join(other[1:]))
        assert digest != hashes.sum_of_lines(b"".join([*other, other[0]]))
