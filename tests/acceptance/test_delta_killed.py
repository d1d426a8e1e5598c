"""Delta tables to which feeds go, and from which they come, in a driver that is killed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fix_killed import reached, run_until_killed, stopped
from tests.fix_lake import DATA, why_absent
from tests.fix_sink import CALLS
from tests.programs.several_queries import PLACES

pytest.importorskip("delta", reason=why_absent())

TABLES = {"append": {}, "merge": {"merge_keys": ["i"]}}
DEATHS = [
    {"append": "0 tasks", "merge": "0 written", "publish": "upload"},
    {"append": "0 written", "merge": "1 tasks", "publish": "commit"},
]


@pytest.mark.kill
@pytest.mark.slow
def test_each_event_is_there_once_when_the_driver_is_killed(lake, source, sink, tmp_path):
    """Two feeds go into tables, and a table's rows into a feed. The driver dies in the middle of a
    Delta write and after its commit, before a batch is staged and before it is committed, while the
    feed and the table's files change; then the checkpoints of the tables are lost as well.
    [PU-11, ZE-02]
    """
    ends = {name: [each[name].split()[-1] for each in DEATHS] for name in DEATHS[0]}
    assert {"append": [*PLACES["keep"]], "merge": [*PLACES["keep"]][::-1]} == {
        name: ends[name] for name in TABLES
    }
    assert ends["publish"] == [*PLACES["publish"]]
    source.add(*(range(i, i + 100) for i in range(0, 300, 100)))
    how = {"key": "i", "maxFilesPerTrigger": 1}
    jobs = {
        name: {
            "kind": "keep",
            "url": lake.url(),
            "table": lake.at(name),
            "checkpoint": lake.at(f"{name}-checkpoint"),
            "settings": settings,
            "data": DATA,
        }
        for name, settings in TABLES.items()
    }
    jobs["publish"] = {
        "kind": "publish",
        "table": source.path,
        "how": how,
        "checkpoint": str(sink.checkpoint),
        "options": {"url": sink.target.url, "producerId": "spark"},
    }

    for number, places in enumerate(DEATHS):
        lake.add(range(50 * number, 50 * number + 50))
        with stopped(sink.target.gateway, CALLS[places["publish"]], reached(tmp_path, 2)):
            run_until_killed(
                tmp_path, ({**job, "place": places[name]} for name, job in jobs.items())
            )
        source.compact()
    lake.add(range(100, 150))
    for name, settings in TABLES.items():
        lake.drop(f"{name}-checkpoint")
        lake.run(name, checkpoint=f"{name}-checkpoint", **settings)
    sink.run(source.feed(**how))

    assert [lake.numbers(name) for name in TABLES] == [Counter(range(150))] * 2
    sink.target.check_once(range(300))
    assert sink.target.batches() == [0, 1, 2]
