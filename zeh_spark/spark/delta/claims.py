"""Claims: which name keeps a feed in a table.

The same feed under two names would be in the table twice. A name therefore claims its feeds before
it writes their first rows, in properties of the table:

    zeh_spark.feed.<hash of the feed's id>    {"feed": <id>, "name": <name>}

Delta refuses the second of two transactions that change a table's properties. So one of two names
that claim a feed at the same time is refused and reads the other's claim. Rejected: looking for the
feed in the records of others, which does not find what is written at the same time.

A feed's id is the one that its publisher tells (see `wire.feed_identity`), so that a feed is
known at each of its addresses; otherwise the option `feedId` or the URL. The module has no side
effects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import orjson
import xxhash

from zeh_spark.errors import LakehouseError

_CLAIM = "zeh_spark.feed."


def property_of(feed: str) -> str:
    """Return the name of the property that holds a feed's claim."""
    return f"{_CLAIM}{xxhash.xxh3_64_hexdigest(feed.encode())}"


def missing(
    table: str, identifier: str, name: str, feeds: Iterable[str], properties: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties to set, so that `name` has claimed all of these feeds.

    `table` is as the user named it, and `identifier` as SQL names it, both for the error. Raises
    LakehouseError if another name has claimed one of the feeds.
    """
    wanted = {}
    for feed in feeds:
        key = property_of(feed)
        if key not in properties:
            wanted[key] = json.dumps({"feed": feed, "name": name})
        elif (owner := _owner(properties[key])) != name:
            raise LakehouseError(
                f"table {table}: the feed {feed} is kept in it under name={owner!r}, and this "
                f"query has name={name!r}: its events would be there twice. Continue under that "
                f"name, or take another table. If no query writes the feed under that name any "
                f"more, and none of its rows are left: ALTER TABLE {identifier} "
                f"UNSET TBLPROPERTIES ('{key}')",
                table=table,
                expected=owner,
                got=name,
                anchor="the-feed-is-kept-under-another-name",
            )
    return wanted


def _owner(claim: str) -> str:
    """Return the name in a claim; the claim itself if this package did not write it."""
    try:
        return str(orjson.loads(claim)["name"])
    except (ValueError, TypeError, KeyError):
        return claim
