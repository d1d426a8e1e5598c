"""The tables of a SQL store. A change here is a new `sqlite.SCHEMA_VERSION`."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

metadata = MetaData()
_ROW_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only an INTEGER

feeds = Table(
    "feeds",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("partitions", Integer, nullable=False),
    Column("origin", LargeBinary, nullable=False),
    Column("head", BigInteger, nullable=False),
    Column("history", LargeBinary, nullable=False),
    Column("time", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)
blobs = Table(
    "blobs",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column("frame", LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # an id that was once read never means other bytes
)
staged = Table(
    "staged",
    metadata,
    Column("blob", ForeignKey("blobs.id"), primary_key=True),
    Column("batch", String(100), nullable=False, index=True),
    Column("partition", Integer, nullable=False),
    Column("events", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("created", BigInteger, nullable=False),
)
chunks = Table(
    "chunks",
    metadata,
    Column("feed", ForeignKey("feeds.id"), primary_key=True),
    Column("g", BigInteger, primary_key=True, autoincrement=False),
    Column("partition", Integer, nullable=False),
    Column("events", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("tag", String(8), nullable=False),
    Column("blob", ForeignKey("blobs.id"), nullable=False),
    Index("chunks_by_partition", "feed", "partition", "g", unique=True),
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
