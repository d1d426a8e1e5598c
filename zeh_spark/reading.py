"""Read a feed without Spark: pages of events in Arrow, each with the cursors after it.

    for page, cursors in reader("https://shop.example/orders", cursors=kept, token=token):
        ...  # keep page.to_pylist() and cursors in one transaction

This module holds the name that users import, from `client.reader`. It runs in services.
"""

from __future__ import annotations

from zeh_spark.client.reader import reader

__all__ = ["reader"]
