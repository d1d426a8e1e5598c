"""Loads whose commit is interrupted, or whose store does not tell: nothing is loaded twice."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fix_cli import call
from tests.fix_publish import events_of
from zeh_spark.errors import OutcomeUnknownError, StoreError
from zeh_spark.publisher import open_store
from zeh_spark.service.store.batches import Call, Declared
from zeh_spark.service.store.interface import Store, StoreBusyError, StoreOutcomeUnknownError
from zeh_spark.service.store.problems import Problem
from zeh_spark.tools.cli import load_command
from zeh_spark.tools.cli.parameters import opened
from zeh_spark.tools.loading import load as loading
from zeh_spark.tools.loading.load import Loaded, Source
from zeh_spark.tools.loading.one_batch import named_batch

FAILURES = [KeyboardInterrupt(), StoreOutcomeUnknownError("COMMIT failed")]


@dataclass
class Failing:
    """A store whose next commit fails, before or after it took effect, and perhaps all calls then;
    or that has lost what was staged when a commit comes, the first `lost` times.

    Everything else is the store's own.
    """

    store: Store
    failure: BaseException | None = None
    takes_effect: bool = True
    is_gone: bool = False
    lost: int = 0
    failed: bool = field(default=False, init=False)

    def __getattr__(self, name: str) -> Any:
        if self.failed and self.is_gone:
            raise StoreBusyError("the database does not answer")
        return getattr(self.store, name)

    def commit(self, feed: str, call: Call, declared: Declared) -> Any:
        if self.lost:
            self.lost -= 1
            self.store.release(feed, call.producer, call.batch, call.run)
        failure, self.failure = self.failure, None
        if failure is None:
            return self.store.commit(feed, call, declared)
        if self.takes_effect:
            self.store.commit(feed, call, declared)
        self.failed = True
        raise failure


@pytest.fixture
def store(store_file: Path) -> Iterator[Failing]:
    with closing(open_store(f"sqlite:///{store_file}")) as store:
        yield Failing(store)


def load(store: Any, text: bytes = b'{"id":1}\n', name: str | None = None) -> Loaded:
    call = named_batch(store, "orders", "load", name) if name else None
    return loading.load(store, "orders", [Source("standard input", io.BytesIO(text))], call=call)


@pytest.mark.parametrize("name", [None, "monday"])
@pytest.mark.parametrize("failure", FAILURES, ids=["Ctrl-C", "COMMIT"])
def test_what_took_effect_is_told(store, failure, name):
    """A command that failed would be called again, and the events would be there twice."""
    store.failure = failure

    loaded = load(store, name=name)

    assert (1, False, 0) == (loaded.events, loaded.repeated, loaded.dropped)
    assert [b'{"id":1}'] == events_of(store.store)


@pytest.mark.parametrize("failure", FAILURES, ids=["Ctrl-C", "COMMIT"])
def test_what_took_no_effect_can_be_loaded_again(store, failure):
    """Its uploads are gone, for good. Another load of the same events is not taken for it."""
    load(store)
    store.failure, store.takes_effect = failure, False

    with pytest.raises((KeyboardInterrupt, StoreError)) as error:
        load(store)

    said = "" if isinstance(failure, KeyboardInterrupt) else "nothing was published. Load the files"
    assert said in str(error.value)
    assert ([b'{"id":1}'], {}) == (events_of(store.store), dict(store.store.staged()))
    assert 1 == load(store).events
    assert [b'{"id":1}'] * 2 == events_of(store.store)


@pytest.mark.parametrize("name", [None, "monday"])
def test_lost_uploads_are_staged_again(store, name):
    """A crash of the database loses them; the load has them still, and tries a few times."""
    store.lost = 9
    with pytest.raises(Problem, match="publish the events again; nothing was published"):
        load(store, name=name)
    assert ([], {}) == (events_of(store.store), dict(store.store.staged()))

    store.lost = 2
    loaded = load(store, name=name)

    assert (1, False) == (loaded.events, loaded.repeated)
    assert [b'{"id":1}'] == events_of(store.store)


def test_an_interrupted_repetition_is_a_repetition(store):
    load(store, name="monday")
    store.failure = KeyboardInterrupt()

    assert load(store, name="monday").repeated
    assert [b'{"id":1}'] == events_of(store.store)


@pytest.mark.parametrize("failure", FAILURES, ids=["Ctrl-C", "COMMIT"])
def test_if_the_store_tells_nothing_it_is_not_known(store, failure):
    """The error has the run, by which I find out later."""
    store.failure, store.is_gone = failure, True

    with pytest.raises(OutcomeUnknownError, match="look whether zeh-spark producers") as error:
        load(store)

    (receipt,) = store.store.receipts("orders", "load", 99, 99)
    assert receipt.run == error.value.run
    assert f"run {receipt.run}" in str(error.value)


def test_a_load_says_what_it_published_before_it_is_interrupted(
    store_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While SQLite checkpoints, say. Otherwise the user would load the same events again."""

    @contextmanager
    def interrupted(url: str) -> Iterator[Store]:
        with opened(url) as store:
            yield store
        raise KeyboardInterrupt

    monkeypatch.setattr(load_command, "opened", interrupted)
    file = tmp_path / "events.ndjson"
    file.write_text("1\n2\n")
    done = call("load", "orders", str(file), "--store", f"sqlite:///{store_file}")

    assert "Loaded 2 events" in done.stdout
    assert (1, "Aborted!") == (done.returncode, done.stderr.strip())
