"""Rows that an older version merged, which do not name their feed. The feed is recorded once.

Runs on the driver.
"""

from __future__ import annotations

from zeh_spark.errors import LakehouseError, OptionError
from zeh_spark.lakehouse.delta_table import LakeTable
from zeh_spark.protocol import feed_identity

UNNAMED = "zeh_spark.unnamedFeed"
"""The property of a merged table that has the feed of its rows that name none."""

ACCEPT = "rows without a feed are of "
"""The beginning of a value of `accept` that names that feed."""


def accepted_feed(accept: str | None) -> str | None:
    """Return the feed that `accept` names for the rows without one; None if it names none."""
    if accept is None or not accept.startswith(ACCEPT):
        return None
    feed = accept.removeprefix(ACCEPT).strip()
    if not (feed_identity.ID.fullmatch(feed) or ":" in feed or "/" in feed):
        raise OptionError(
            f"accept={accept!r} names no feed. Give its id, 16 hexadecimal digits, as the header "
            f"zeh-feed of its events has it; or its URL, if its publisher tells no id",
            option="accept",
        )
    return feed


def name_unnamed(table: LakeTable, feed: str | None = None) -> str | None:
    """Record in a property of the table the feed of those rows that name none.

    Returns:
        The feed that the table has recorded before, or else `feed`; None if it is not known.

    Raises:
        LakehouseError: The table has recorded another feed.
    """
    state = table.state()
    known = state.properties.get(UNNAMED) if state else None
    if known and feed and known != feed:
        raise LakehouseError(
            f"table {table.text}: its rows without a feed are of {known}, as its property "
            f"{UNNAMED} says, and accept names {feed}: leave accept out",
            table=table.text,
            expected=known,
            got=feed,
            anchor="the-table-was-merged-by-an-older-version",
        )
    if feed and not known:
        table.set_properties({UNNAMED: feed})
    return known or feed
