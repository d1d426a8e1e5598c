"""The type of a feed's events, from the JSON Schema that their publisher checks them with.

What a schema does not describe by one type becomes STRING, which has the JSON text of the value.
Rejected: a parser with the rules of JSON Schema, because the publisher has checked the events.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from zeh_spark.client.http.responses import TransientError
from zeh_spark.client.http.transport import Body, Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import OptionError, PublisherError, UnavailableError

_SCALARS = {"boolean": BooleanType, "integer": LongType, "number": DoubleType}


def feed_schema(url: str, *, version: int | None = None, **options: object) -> DataType:
    """Return the type of a feed's events, for `parsed`, from the schema that the feed has.

    Args:
        url: The feed's address, of a publisher of zeh_spark.
        version: The version of the schema; None for the latest. A query that names one keeps its
            columns when the schema changes.
        **options: Options of the format that say how to reach the publisher, like `token`.

    Returns:
        A struct with a field for each property; or an array or a map. docs/guides/read.md has the
        type of each kind of value.

    Raises:
        OptionError: An option is not valid, or the schema names no fields.
        PublisherError: The feed has no schema, or no such version; or it is of another publisher.
        UnavailableError: The publisher did not answer within `retryTimeout`.
    """
    transport = Transport(parse(ClientOptions, {"url": url, **options}))
    query = "" if version is None else urlencode({"version": version})
    text = transport.retry().call(lambda: _asked(transport, query))
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise PublisherError(
            f"{transport.url}/schema is no JSON object. Only publishers of zeh_spark tell the "
            f"schema of a feed: give parsed a type of your own"
        ) from None
    found = spark_type(document)
    if isinstance(found, StringType):
        raise OptionError(
            f"the schema of {transport.url} names no fields, so it gives no columns. Give parsed a "
            f"type of your own, like 'VARIANT'",
            option="url",
        )
    return found


def _asked(transport: Transport, query: str) -> bytes:
    with transport.request("GET", "/schema", query, proven=True) as response:
        body = Body(response, transport.url)
        text = body.whole()
    if not body.proven:
        raise TransientError(UnavailableError(f"{transport.url}: the end of a schema is missing"))
    return text


def spark_type(document: dict[str, Any]) -> DataType:
    """Return the type of the values that a JSON Schema describes."""
    return _type(document, document, ())


def _type(schema: Any, root: dict[str, Any], within: tuple[str, ...]) -> DataType:
    """Return the type of a part of a schema. `within` are the references that led to it."""
    while isinstance(schema, dict) and (to := schema.get("$ref")) is not None:
        if to in within:
            return StringType()  # it contains itself, and a type cannot
        within = *within, to
        schema = _at(root, to)
    if not isinstance(schema, dict):
        return StringType()
    kinds = schema.get("type")
    some = [each for each in (kinds if isinstance(kinds, list) else [kinds]) if each != "null"]
    if some == [None]:
        either = schema.get("anyOf") or schema.get("oneOf") or ()
        parts = [each for each in either if each != {"type": "null"}]
        return _type(parts[0], root, within) if len(parts) == 1 else StringType()
    kind = some[0] if len(some) == 1 else None
    inner = schema.get("items" if kind == "array" else "additionalProperties")
    if kind in _SCALARS:
        return _SCALARS[kind]()
    if kind == "object" and schema.get("properties"):
        fields = schema["properties"].items()
        return StructType([StructField(name, _type(each, root, within)) for name, each in fields])
    if kind in ("object", "array") and isinstance(inner, dict):
        part = _type(inner, root, within)
        return ArrayType(part) if kind == "array" else MapType(StringType(), part)
    return StringType()


def _at(root: Any, reference: str) -> Any:
    """Return the part of a document that `#/…` names (RFC 6901); None for anything else."""
    where, *names = reference.split("/")
    part = root if where == "#" else None
    for name in names:
        name = name.replace("~1", "/").replace("~0", "~")
        part = part.get(name) if isinstance(part, dict) else None
    return part
