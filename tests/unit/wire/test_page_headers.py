"""What the header fields of a page tell."""

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from zeh_spark.wire.direct_reads import MAX_LIMIT, PartitionLag
from zeh_spark.wire.feed_identity import Epoch
from zeh_spark.wire.page_headers import FEED, HEAD, LAG, MOST_LAGS, Standing, parse_fields

counts = st.integers(0, MAX_LIMIT)
epochs = st.builds(
    Epoch, st.from_regex(r"[0-9a-f]{16}(~[0-9]{1,9})?", fullmatch=True), st.integers(0, 10**15 - 1)
)
lags = st.dictionaries(
    st.integers(0, 65_535).map(str),
    st.builds(PartitionLag, counts, counts | st.none(), st.booleans()),
    max_size=MOST_LAGS,
)
standings = st.builds(
    Standing,
    st.none() | epochs,
    st.none() | st.from_regex(r"[0-9]{1,18}\.[0-9a-f]{8}", fullmatch=True),
    st.none() | lags,
)


@given(standings)
def test_a_reader_is_told_what_the_publisher_knows(standing):
    """And the fields fit beside those of other servers on the way."""
    fields = standing.fields()

    assert standing == parse_fields(fields)
    assert sum(map(len, fields.values())) < 3000


@each_case(
    ("name", "text"),
    [
        (FEED, "orders"),
        (FEED, "9f86d081884c7d65"),
        (FEED, "9f86d081884c7d65;since=-1"),
        (FEED, "9f86d081884c7d65;since=" + "9" * 16),
        (HEAD, "17.0a1b2c3d 18.0a1b2c3d"),
        (HEAD, "1" * 101),
        (LAG, "12"),
        (LAG, '{"0":{"events":12}}'),
        (LAG, '{"0":{"events":-1,"ms":0}}'),
        (LAG, '{"0":{"events":1e300,"ms":0}}'),
        (LAG, "[" * 2000),
        (LAG, " " * 4096 + '{"0":{"events":12,"ms":0}}'),
    ],
)
def test_what_cannot_be_read_is_not_told(name, text):
    """Another publisher may use such a field, or a proxy change it: then the reader asks."""
    assert Standing() == parse_fields({name: text})
