"""The publisher: the service that keeps feeds in a store and serves them over HTTP.

This module holds the names that users import, from `service`. It runs in the publisher's process,
and needs the extra `publisher`.
"""

from __future__ import annotations

from zeh_spark.service.app.app import create_app
from zeh_spark.service.app.stores import migrate_store, open_store, shown_url
from zeh_spark.service.outbox.feed import SqlTableFeed, TableState
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.sql.upgrades import Migration
from zeh_spark.service.store.acts import Act, ActFilter, Action, Actor, Via
from zeh_spark.service.store.feed import Feed
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire.served_lines import Block

__all__ = [
    "Act", "ActFilter", "Action", "Actor", "Block", "Feed", "Migration", "Problem", "Pruner",
    "SqlTableFeed", "Store", "TableState", "Via", "create_app", "migrate_store", "open_store",
    "shown_url",
]  # fmt: skip
