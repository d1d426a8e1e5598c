"""A client that does not sleep between tries, and the lines of a small page."""

import json

from zeh_spark.client.http.feed_client import FeedClient, PageRequest
from zeh_spark.client.http.retry import Retry
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse


def restless(timeout):
    return Retry(timeout, sleep=lambda seconds: None)


def client(server, retry=restless, max_interval=1 << 62, **given):
    """A client with these retries, or with its own if there are none."""
    url = given.pop("url", None) or server.url
    options = parse(ClientOptions, {"url": url, "retryTimeout": "20s", **given})
    made = FeedClient(options, max_interval=max_interval)
    if retry:
        made.transport.retry = lambda: retry(options.retry_timeout)
    return made


def ask(cursor="c0", **more):
    return PageRequest(0, cursor, 2, 100, **more)


def event(number):
    return b'{"partition":0,"data":%d}\n' % number


def checkpoint(cursor):
    return b'{"partition":0,"cursor":%b}\n' % json.dumps(cursor).encode()


def read(page):
    """The numbers of a page's events."""
    return read_whole(page)[0]


def read_whole(page):
    """The numbers of a page's events, and its end."""
    lines = [line for each in page for line in each.lines.splitlines()]
    return [int(json.loads(line)["data"]) for line in lines], page.end


BODY = event(1) + checkpoint("c1") + event(2) + checkpoint("c2")
