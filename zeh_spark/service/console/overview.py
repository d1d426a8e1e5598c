"""What the first page shows: feeds, and the consumers that are behind.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zeh_spark.service.console.viewer import Viewer
from zeh_spark.service.reads.feed import Feed
from zeh_spark.service.store.interface import Store
from zeh_spark.service.telemetry.lag import Lag
from zeh_spark.service.telemetry.store_gauges import StoreGauges

FEEDS = 50
"""Feeds on a page."""

BEHIND = 5
"""Consumers on the first page, those with the most events before them."""


def overview(
    store: Store | None,
    tables: Mapping[str, Feed],
    gauges: StoreGauges,
    viewer: Viewer,
    named: str,
    after: str,
) -> dict[str, Any]:
    """Return a page of the list of feeds, for its template.

    `total` is how many feeds the visitor sees, on all pages; `following` the name after which the
    next page begins, "" on the last one; `now` the time by the store's clock, None without a store.
    Of a feed, `staged` are the bytes that are uploaded and not committed; `behind` the most events
    that a cursor set of it has not passed, None without one; `more` whether there may be more.
    """
    stored = {each.name: each for each in (store.feeds() if store else [])}
    names = [
        each
        for each in sorted({*stored, *filter(None, tables)})
        if named in each and viewer.sees(each)
    ]
    shown = [each for each in names if each > after][: FEEDS + 1]
    page = shown[:FEEDS]
    staged = store.staged() if store else {}
    seen = [(feed, lag) for feed, lag in gauges.lags() if viewer.sees_consumer(feed, lag.name)]
    lags: dict[str, list[Lag]] = {}
    for feed, lag in seen:
        lags.setdefault(feed, []).append(lag)
    rows = [
        {
            "name": name,
            "partitions": (stored if name in stored else tables)[name].partitions,
            "state": stored.get(name),
            "newest": (look := gauges.table(name)) and look.last,
            "staged": staged.get(name, 0),
            "behind": max((lag.events for lag in lags.get(name, ())), default=None),
            "more": any(lag.more for lag in lags.get(name, ())),
        }
        for name in page
    ]
    some = (each for each in seen if each[1].events or each[1].more)
    behind = sorted(some, key=lambda each: -each[1].events)
    return {
        "rows": rows,
        "total": len(names),
        "following": page[-1] if len(shown) > FEEDS else "",
        "behind": behind[:BEHIND],
        "now": store.now() if store else None,
    }
