"""What a frame's plan tells: whether it has a watermark, and which feeds it reads.

Rule for editors: a session of Spark Connect shows the plan that the client sends, before tables and
views in it are resolved, and the text of `explain`, in which addresses may be hidden.

Runs on the driver, or in a client of Spark Connect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from zeh_spark.spark.frames.compat import is_connect

_FORMAT = "zeroeventhub"


def text(df: DataFrame) -> str:
    """Return the frame's analyzed plan as text; on Spark Connect, together with its other plans."""
    if is_connect(df.sparkSession):
        frame: Any = df
        return str(frame._explain_string(extended=True))
    return str(df._jdf.queryExecution().analyzed().toString())


def feeds_read(df: DataFrame) -> int:
    """Count the feeds that the frame reads: sources of our format, by their URLs.

    On Spark Connect a query in SQL, and a streaming table or view, count as a feed each.
    """
    return len(set(_sent(df) if is_connect(df.sparkSession) else _analyzed(df)))


def _analyzed(df: DataFrame) -> Iterator[str]:
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    plans = [leaves.apply(number) for number in range(leaves.size())]
    streams = [each for each in plans if each.getClass().getSimpleName() == "StreamingRelationV2"]
    options = [each.extraOptions() for each in streams if each.sourceName().lower() == _FORMAT]
    for each in options:
        yield str(each.get("url") or each.get("path"))


def _sent(df: DataFrame) -> Iterator[str]:
    frame: Any = df
    for message in _messages(frame._plan.to_proto(frame.sparkSession.client)):
        name = message.DESCRIPTOR.full_name
        if name == "spark.connect.SQL":
            yield str(message.query)
        elif name == "spark.connect.Read":
            source, table = message.data_source, message.named_table.unparsed_identifier
            if source.format.lower() == _FORMAT and message.is_streaming:
                options = {key.lower(): value for key, value in source.options.items()}
                yield options.get("url") or "".join(source.paths) or options.get("path", "")
            elif table and (message.is_streaming or df.sparkSession.table(table).isStreaming):
                yield str(table)


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message of protobuf and, at any depth, those in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in [value] if hasattr(value, "ListFields") else value:
            yield from _messages(each)
