"""Digests tell whether the same events came again."""

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.wire import hashes


@given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b"")), max_size=9), st.data())
def test_a_sum_does_not_depend_on_the_order(lines, data):
    """The same events in another order are the same batch; one more or less is not. The digest is
    the same for ever: a checkpoint written by one version can be replayed by the next.
    """
    each = [line + b"\n" for line in lines]
    other = data.draw(st.permutations(each))
    digest = hashes.sum_of_lines(b"".join(each))
    total = sum(xxhash.xxh3_128_intdigest(line) for line in lines)
    assert f"{total % 2**128:032x}" == digest == hashes.sum_of_lines(b"".join(other))
    if each:
        assert digest != hashes.sum_of_lines(b"".join(other[1:]))
        assert digest != hashes.sum_of_lines(b"".join([*other, other[0]]))
