"""Checkpoints and tables that a release has written are continued: see `tests.frozen`."""

from contextlib import closing

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_lake import why_absent
from tests.frozen import EVENTS, Queries, add, events, trusted, unpacked
from zeh_spark.publisher import migrate_store, open_store
from zeh_spark.testing import running_publisher

NEW = [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


@pytest.fixture(scope="module")
def queries(spark, tmp_path_factory):
    """The queries of the archive, whose feed got step 2 of each order, and step 1 once more."""
    folder = unpacked(tmp_path_factory.mktemp("frozen"))
    written = (folder / "spark").read_text()
    if _version(spark.version) < _version(written):
        pytest.skip(f"Spark {written} has written it")
    url = f"sqlite:///{folder}/feeds.db"
    migrate_store(url)
    with closing(trusted(open_store(url))) as store, running_publisher(store) as base:
        add(base, (2, 1), "second")
        yield Queries(spark, base, folder)


def _version(text):
    return tuple(int(each) for each in text.split(".")[:2])


def forget(queries, checkpoint):
    """As if the driver had ended before it noted its last batch."""
    commits = queries.folder / checkpoint / "commits"
    newest = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()


def test_deduplication_continues_with_the_events_that_it_has_seen(queries):
    assert sorted(queries.read("seen")) == NEW


def test_sessions_continue_with_what_they_hold(queries):
    """Step 3 was held; step 1 is a duplicate."""
    found = queries.read("sessions")

    assert [step for name, step in found if name == "a"] == [2, 3]
    assert [step for name, step in found if name == "b"] == [2, 3]


@pytest.mark.parametrize("name", ["driver", "executors"])
def test_a_batch_is_repeated_as_it_was_and_the_query_continues(queries, name):
    """Its digests are compared."""
    forget(queries, name)

    assert sorted(queries.read(name)) == sorted([*EVENTS, *NEW])


def test_what_was_published_stays(queries):
    """A batch that is repeated is known to the publisher, and compared."""
    forget(queries, "sink")

    queries.publish()

    assert events(f"{queries.base}/copies") == sorted([*EVENTS, *NEW])


@pytest.mark.slow
def test_a_table_continues(queries):
    """It has the batch that is repeated, and holds each event exactly once."""
    pytest.importorskip("delta", reason=why_absent())
    if not (queries.folder / "table").exists():
        pytest.skip("the archive is of a Spark without Delta")
    forget(queries, "delta")

    assert queries.keep() == sorted([*EVENTS, *NEW])
