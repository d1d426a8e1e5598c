"""A publisher that is replaced by an older version, without direct reads, while a stream lives.

What happens within a run is in `test_direct_requests`; here the stream starts again.
"""

from __future__ import annotations

import pytest

from zeh_spark.errors import OptionError


def test_a_stream_goes_on_page_by_page_and_directly_again(publisher, relay, start):
    """After the downgrade of a publisher `auto` repeats the pending batch exactly, and reads on
    from pages; after the upgrade tasks fetch again. Each event comes once. If I said that executors
    fetch, I am told that this publisher does not offer it.
    """
    publisher.publish(*range(10))
    relay.base = publisher.base
    run = start(url=relay.url, finite=True)
    rows = run.next()
    asked = len(relay.asked)
    publisher.publish(*range(10, 20))

    relay.older = True
    with pytest.raises(OptionError, match="it is another publisher, or serves a table"):
        start(url=relay.url, fetch="executors", offset=run.offset, finite=True).next()
    again = start(url=relay.url, offset=run.start, finite=True)
    assert rows == again.rows(run.start, run.offset)
    again.offset = run.offset
    assert [*range(10, 20)] == sorted(again.to_the_end())
    assert 0 < asked == len(relay.asked)

    relay.older = False
    publisher.publish(*range(20, 30))
    upgraded = start(url=relay.url, offset=again.offset, finite=True)
    assert [*range(20, 30)] == sorted(upgraded.to_the_end())
    assert asked < len(relay.asked)
