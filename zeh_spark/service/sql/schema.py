"""The tables of a SQL store.

Rule for editors: a change here needs a new VERSION, and a step in `upgrades` that
upgrades an older store to it. Times are in milliseconds since 1970.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

VERSION = 12

metadata = MetaData()
_ROW_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only an INTEGER
_PRODUCER_NAME = String(201).with_variant(String(201, collation="C"), "postgresql")
"""Sorted by its bytes, as in SQLite and in Python."""


class IsReplica(GenericFunction[bool]):
    """Whether the database is a replica, which may lag, and takes no writes."""

    name = "pg_is_in_recovery"
    type = Boolean()
    inherit_cache = True


@compiles(IsReplica, "sqlite")
def _never(*_: object, **__: object) -> str:
    return "false"


feeds = Table(
    "feeds",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column(
        "name",
        String(100).with_variant(String(100, collation="C"), "postgresql"),
        nullable=False,
        unique=True,
    ),
    Column("partitions", Integer, nullable=False),
    Column("origin", LargeBinary, nullable=False),
    Column("head", BigInteger, nullable=False),
    Column("history", LargeBinary, nullable=False),
    Column("time", BigInteger, nullable=False),
    # The totals of its chunks, kept by the transactions that add and remove some.
    Column("events", BigInteger, nullable=False, server_default="0"),
    Column("size", BigInteger, nullable=False, server_default="0"),
    # Of its schema in `contracts`; 0 for a feed without one.
    Column("schema_version", Integer, nullable=False, server_default="0"),
    Column("schema_since", Integer, nullable=False, server_default="0"),
    sqlite_autoincrement=True,
)
# The versions of the feeds' schemas (`store.contracts`).
contracts = Table(
    "contracts",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("since", Integer, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("document", LargeBinary, nullable=False),
)
# The epochs of a feed after its first one, which has the feed's id and no row.
epochs = Table(
    "epochs",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # 1, 2, …: their order
    Column("id", String(26), nullable=False),
    Column("time", BigInteger, nullable=False),
)
blobs = Table(
    "blobs",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column("frame", LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # an id that was once read never means other bytes
)
# Chunks that are in no pack yet. The table has another name than before there were packs, because
# older programs would take the first one for the beginning of the feed.
chunks = Table(
    "recent_chunks",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("g", BigInteger, primary_key=True, autoincrement=False),
    Column("partition", Integer, nullable=False),
    Column("events", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("tag", String(8), nullable=False),
    # Its frame, which is of no other row. No foreign key: PostgreSQL would scan this table for each
    # frame that is deleted. Measured with 150,000 chunks: 64 frames took 958 ms.
    Column("blob", _ROW_ID, nullable=False),
    Column("producer", String(201), nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Index("chunks_by_partition", "feed", "partition", "g", unique=True),
)
# Packs (`store.packs`): all chunks of a feed before the recent ones.
packs = Table(
    "packs",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("last", BigInteger, primary_key=True, autoincrement=False),
    Column("first", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),  # of the first chunk
    Column("headers", LargeBinary, nullable=False),  # with the ids of the blobs that it has
    Column("totals", LargeBinary, nullable=False),
)
# Segments (`sql.segments`): objects that have the blocks of packs, which are no blobs any more.
segments = Table(
    "segments",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("last", BigInteger, primary_key=True, autoincrement=False),
    Column("first", BigInteger, nullable=False),
    Column("location", String, nullable=False),
    Column("name", String(100), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("copied", BigInteger),  # the first of its blocks that may be a blob, too, if one may
    Column("encoded", LargeBinary, nullable=False),  # the last column: it is long
)
# The nonces that markers of locations may have (`segments.ownership`).
nonces = Table(
    "segment_nonces",
    metadata,
    Column("nonce", String(16), primary_key=True),
    Column("time", BigInteger, nullable=False),
)
# Objects that are no segments: those that are written now, and those that nobody needs any more.
garbage = Table(
    "segment_garbage",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("location", String, nullable=False),
    Column("due", BigInteger, nullable=False),  # from when it is deleted; 0: now
)
# The last chunk that retention has removed of each partition, and how much retention keeps.
anchors = Table(
    "anchors",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("g", BigInteger, nullable=False),
    Column("tag", String(8), nullable=False),
)
retentions = Table(
    "retentions",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("age_ms", BigInteger),
    Column("bytes", BigInteger),
    Column("readers", String, nullable=False),  # JSON: names of cursor sets
    Column("names_ms", BigInteger),  # NULL: for ever
    Column("producers_ms", BigInteger),  # NULL: for ever
)
cursor_sets = Table(
    "cursor_sets",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("name", String(50), primary_key=True),
    Column("n", Integer, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("cursor", String, nullable=False),
)
# The consumers to which the names of cursor sets are bound.
cursor_set_names = Table(
    "cursor_set_names",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("name", String(50), primary_key=True),
    Column("consumer", String(100), nullable=False),  # empty: bound to nobody
)
# Who may do what (`store.token_rights`). A token that is revoked keeps its row: without any row, a
# publisher on a loopback address asks nobody for a token.
tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("grants", String, nullable=False),  # JSON: a list of [right, feed, name]
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("revoked", BigInteger),
)
# Which client began the name of a producer or of a cursor set, while it counts for that client
# (`makers`). Names that nobody is counted for have no row.
makers = Table(
    "makers",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("kind", String(10), primary_key=True),
    Column("name", _PRODUCER_NAME, primary_key=True),
    Column("client", String(200), nullable=False),
    Index("makers_by_client", "client", "kind"),
)
# The latest time that is known to be right (`store.clock`): one row, or none.
clocks = Table(
    "clocks",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seen", BigInteger, nullable=False),
)

# Administrative acts (`store.acts`). Rows are only added: triggers refuse to change or delete them.
acts = Table(
    "acts",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column("time", BigInteger, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("via", String(20), nullable=False),
    Column("action", String(50), nullable=False),
    Column("feed", String(100), nullable=False),  # its name; empty: the store as a whole
    Column("subject", String(200), nullable=False),
    Column("details", String, nullable=False),  # JSON: a small object
    sqlite_autoincrement=True,
)

# Batches that are uploaded and not committed yet: one staging for each run that uploads one.
stagings = Table(
    "stagings",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column("feed", ForeignKey("feeds.id"), nullable=False),
    Column("producer", _PRODUCER_NAME, nullable=False),
    Column("incarnation", String(100), nullable=False),
    Column("batch", BigInteger, nullable=False),  # -1: gets its number at its commit
    Column("run", String(100), nullable=False),
    Column("touched", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    UniqueConstraint("feed", "producer", "run", "batch", "incarnation"),
    sqlite_autoincrement=True,
)
uploads = Table(
    "uploads",
    metadata,
    Column("staging", ForeignKey("stagings.id"), primary_key=True),
    Column("task", Integer, primary_key=True, autoincrement=False),
    Column("attempt", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("sum", LargeBinary, nullable=False),
    # With which its events were checked; 0 for none.
    Column("schema_version", Integer, nullable=False, server_default="0"),
    Column("chunks", LargeBinary, nullable=False),  # msgpack of [blob, partition, events, …]
)

# Producers, and what they published.
producers = Table(
    "producers",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column("feed", ForeignKey("feeds.id"), nullable=False),
    Column("name", _PRODUCER_NAME, nullable=False),
    Column("incarnation", String(100), nullable=False),
    Column("level", BigInteger, nullable=False),
    Column("run", String(100), nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("receipts", BigInteger, nullable=False),
    Column("chain", String(64), nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("deleted", Boolean, nullable=False),
    UniqueConstraint("feed", "name"),
    sqlite_autoincrement=True,
)
former_incarnations = Table(
    "former_incarnations",
    metadata,
    Column("producer", ForeignKey("producers.id"), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("last", BigInteger, nullable=False),
)
sequences = Table(
    "sequences",
    metadata,
    Column("producer", ForeignKey("producers.id"), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("next", BigInteger, nullable=False),
    Column("first", BigInteger, nullable=False),
)
receipts = Table(
    "receipts",
    metadata,
    Column("producer", ForeignKey("producers.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("incarnation", String(100), nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("run", String(100), nullable=False),
    Column("document", LargeBinary, nullable=False),
    Index("receipts_by_batch", "producer", "incarnation", "batch", unique=True),
    Index("receipts_by_run", "producer", "incarnation", "run"),
)
