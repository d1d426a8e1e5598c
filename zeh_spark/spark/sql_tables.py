"""Options of tables that are created in SQL: `CREATE TABLE f USING zeroeventhub OPTIONS (…)`.

Spark shows a Python data source the options of a table once, when it asks for the schema of the new
table. Afterwards it keeps them in its catalog, and hands them to no query. What it does hand over
is the table's schema. So the options are written into the metadata of the schema's columns, and a
query finds them there. Rejected: to ask the catalog, because a data source runs in a process
without a session.

Rule for editors: a write never uses them. The columns that Spark hands to a writer may be those of
another table (`INSERT INTO g SELECT * FROM f`), and the rows would go to the wrong feed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import orjson
from pyspark.sql.types import StructField, StructType

from zeh_spark.client.options.client_options import NO_TOKENS, ClientOptions
from zeh_spark.client.options.option_metadata import declared, option_name
from zeh_spark.errors import OptionError
from zeh_spark.wire.option_values import SECRET_HEADER_PREFIX, parse_token, parse_url

_METADATA = "zeroeventhub.options"
_PREFIX = "option."
_PROVIDER = "provider"
_OF_TOKENS = {option_name(name).lower() for name in NO_TOKENS}


def options_of_new_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is being created; None if no table is.

    For a new table Spark adds facts of its catalog to the options (`provider`, `owner`, `location`,
    `comment` and others), adds the table's properties, and repeats each option with a prefix.
    """
    named = {str(name).lower(): str(value) for name, value in given.items() if value is not None}
    if _PROVIDER not in named:
        return None
    own = {
        name.removeprefix(_PREFIX): value
        for name, value in named.items()
        if name.startswith(_PREFIX)
    }
    location = named.get("location", "")
    if "url" not in own and location.startswith(("http:", "https:")):
        own["url"] = location
    return own


def refuse_secrets(options: Mapping[str, str], kinds: Collection[type[ClientOptions]]) -> None:
    """Raise OptionError if options of a new table hold a secret. A URL's query may be one."""
    known = {
        name.lower(): (name, option.parse)
        for kind in kinds
        for name, option in declared(kind).items()
    }
    for option, text in options.items():
        name, parse = known.get(option, (option, None))
        has_query = parse is parse_url and "?" in text
        if has_query or parse is parse_token or option.startswith(SECRET_HEADER_PREFIX):
            raise OptionError(
                f"option {name!r} is refused for a table{' with its query (?…)' * has_query}, "
                f"because Spark keeps a table's options as they are, in its catalog and in files "
                f"that are written from the table. Use 'tokenFile', or give the secret to each "
                f"query: spark.read.option('token', …).table(…)",
                option=name,
                anchor="a-table-in-sql-does-not-find-its-feed",
            )


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return a table's schema that keeps the table's options in the metadata of its columns."""
    text = orjson.dumps(dict(options), option=orjson.OPT_SORT_KEYS).decode()
    return StructType(
        [
            StructField(each.name, each.dataType, each.nullable, {**each.metadata, _METADATA: text})
            for each in schema
        ]
    )


def options_of_table(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options for a query: its own, after those that the table was created with.

    Of two sources of tokens the query's own is used. A query that names a feed itself gets its own
    options alone: its schema may come from the frame of another feed's table.
    """
    own = {str(name).lower(): value for name, value in given.items()}
    if {"url", "path", "paths"} & own.keys():
        return own
    text = next((each.metadata[_METADATA] for each in schema if _METADATA in each.metadata), "{}")
    kept = orjson.loads(text)
    sources = {_source_of(name) for name in _OF_TOKENS & own.keys()}
    others = {name for name in _OF_TOKENS if sources and _source_of(name) not in sources}
    return {**{name: value for name, value in kept.items() if name not in others}, **own}


def _source_of(name: str) -> str:
    """Return which source of tokens an option is about: `oauth` for `oauth.scope`."""
    return name.partition(".")[0]
