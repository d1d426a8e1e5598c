"""What plans and chunk answers tell of chunks, and how the chunks of one partition are found."""

from zeh_spark.service.store.log import Chunk, header_records
from zeh_spark.wire.direct_reads import HEADERS, name_hash


def test_a_header_record_has_what_the_chunk_has():
    """Each field is where it was, so digests in checkpoints stay valid, also of no events."""
    records = {
        Chunk(7, 3, 2, 90, 1_764_000_000_000, "0a1b2cff", "till-7", 4, 12, 5):
            (7, 1_764_000_000_000, name_hash("till-7"), 4, 12, 0x0A1B2CFF, 3, 2, 90),
        Chunk(2, 0, 1, 10, 5, "ffffffff", "p", 0, 0, 2):
            (2, 5, name_hash("p"), 0, 0, 0xFFFFFFFF, 0, 1, 10),
    }  # fmt: skip

    assert [*records.values()] == header_records([*records]).tolist()
    none = header_records([])
    assert (0, HEADERS) == (len(none), none.dtype)
