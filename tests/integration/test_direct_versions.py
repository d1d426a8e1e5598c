"""A publisher that is replaced by an older version, without direct reads, while a stream lives.

What happens within a run is in `test_direct_requests`; here the stream starts again.
"""

from __future__ import annotations

import json

import pytest

from zeh_spark.errors import OptionError


@pytest.fixture
def replaced(publisher, relay, start):
    """A batch that is pending when the publisher becomes an older one: the relay, where the batch
    begins and ends, and its rows.
    """
    publisher.publish(*range(10))
    relay.base = publisher.base
    run = start(url=relay.url, finite=True)
    begin = run.offset
    rows = run.next()
    assert relay.asked
    publisher.publish(*range(10, 20))
    relay.older = True
    return relay, begin, json.loads(json.dumps(run.offset)), rows


def test_a_stream_goes_on_page_by_page_and_directly_again(replaced, publisher, start):
    """After the downgrade of a publisher `auto` repeats the pending batch exactly, and reads on
    from pages; after the upgrade tasks fetch again. Each event comes once.
    """
    relay, begin, end, rows = replaced
    asked = len(relay.asked)
    again = start(url=relay.url, offset=begin, finite=True)
    assert rows == again.rows(begin, end)
    again.offset = end
    assert [*range(10, 20)] == sorted(again.to_the_end())
    assert asked == len(relay.asked)

    relay.older = False
    publisher.publish(*range(20, 30))
    upgraded = start(url=relay.url, offset=again.offset, finite=True)
    assert [*range(20, 30)] == sorted(upgraded.to_the_end())
    assert asked < len(relay.asked)


def test_a_stream_that_asks_for_executors_stops_by_name(replaced, start):
    """I said that executors fetch, so I am told that this publisher does not offer it."""
    relay, _, end, _ = replaced
    with pytest.raises(OptionError, match="an older version of zeh-spark"):
        start(url=relay.url, fetch="executors", offset=end, finite=True).next()
