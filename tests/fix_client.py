"""A client that does not sleep between tries, and the lines of a small page."""

from __future__ import annotations

import json

from zeh_spark.client.feed_client import FeedClient, PageRequest
from zeh_spark.client.transport import Patience
from zeh_spark.options import ClientOptions, parse


class Restless(FeedClient):
    """Does not sleep between tries."""

    def patience(self):
        return Patience(super().patience().timeout, sleep=lambda seconds: None)


def client(server, kind=Restless, max_interval=1 << 62, **given):
    url = given.pop("url", None) or server.url
    options = {"url": url, "retryTimeout": "20s", **given}
    return kind(parse(ClientOptions, options), max_interval=max_interval)


def ask(cursor="c0", **more):
    return PageRequest(0, cursor, 2, 100, **more)


def event(number):
    return b'{"partition":0,"data":%d}\n' % number


def checkpoint(cursor):
    return b'{"partition":0,"cursor":%b}\n' % json.dumps(cursor).encode()


def read(page):
    """The numbers of a page's events."""
    return [int(json.loads(line)["data"]) for each in page for line in each.lines.splitlines()]


BODY = event(1) + checkpoint("c1") + event(2) + checkpoint("c2")
