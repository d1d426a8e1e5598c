"""Delta tables to which feeds go, and from which they come, in a driver that is killed."""

from collections import Counter
from contextlib import ExitStack

import pytest

from tests.fix_killed import reached, run_until_killed, stopped
from tests.fix_lake import DATA, why_absent
from tests.fix_sink import call_of
from tests.programs.several_queries import PLACES

pytest.importorskip("delta", reason=why_absent())

TABLES = {"append": ("tasks", {}), "merge": ("written", {"merge_keys": ["i"]})}
FEEDS = {"upload": "orders", "commit": "copy"}


@pytest.mark.kill
@pytest.mark.slow
def test_each_event_is_there_once_when_the_driver_is_killed(lake, source, sink, tmp_path):
    """A feed goes into tables, and a table's rows into feeds. The driver dies in the middle of a
    Delta write and after its commit, before a batch is staged and before it is committed; and the
    feed and the table's files change before the queries continue. [PU-11, ZE-02]
    """
    assert {*PLACES["keep"]} == {place for place, _ in TABLES.values()}
    assert {*PLACES["publish"]} == {*FEEDS}
    source.add(*(range(i, i + 100) for i in range(0, 200, 100)))
    lake.add(range(50))
    how = {"key": "i", "maxFilesPerTrigger": 1}
    jobs = [
        {
            "kind": "keep",
            "place": f"0 {place}",
            "url": lake.url(),
            "table": lake.at(name),
            "checkpoint": lake.at(f"{name}-checkpoint"),
            "settings": settings,
            "data": DATA,
        }
        for name, (place, settings) in TABLES.items()
    ]
    publishing = {
        place: {"url": sink.target.feed(feed), "producerId": place} for place, feed in FEEDS.items()
    }
    jobs += [
        {
            "kind": "publish",
            "place": place,
            "table": source.path,
            "how": how,
            "checkpoint": str(tmp_path / place),
            "options": options,
        }
        for place, options in publishing.items()
    ]

    with ExitStack() as stack:
        for number, place in enumerate(FEEDS, len(TABLES)):
            call = call_of(place, producer=place)
            stack.enter_context(stopped(sink.target.gateway, call, reached(tmp_path, number)))
        run_until_killed(tmp_path, jobs)
    source.compact()
    source.add(range(200, 300))
    lake.add(range(50, 100))
    for name, (_, settings) in TABLES.items():
        lake.run(name, checkpoint=f"{name}-checkpoint", **settings)
        assert lake.numbers(name) == Counter(range(100))
    for place, options in publishing.items():
        sink.run(source.feed(**how), tmp_path / place, **options)
        sink.target.check_once(range(300), FEEDS[place])
