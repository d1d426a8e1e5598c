"""Commits that come at once are one transaction of as few statements, as if each came alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store_contract.writers import FEED, call, chunk, declared, upload
from zeh_spark.publisher import Problem, open_store
from zeh_spark.service.sql import commits as sql_commits
from zeh_spark.service.sql.execution import only
from zeh_spark.service.sql.store import SqlStore

FIRST = upload(chunk(0, b"1"), chunk(1, b"2"))
SECOND = upload(chunk(1, b"3"), task=1, attempt=7)
CONTENTS = {
    "one upload": declared(FIRST),
    "two uploads": declared(FIRST, SECOND),
    "nothing": declared(),
    "what is not there": declared(upload(chunk(0, b"4"), task=2)),
}


def opened(file: Path) -> SqlStore:
    store = open_store(f"sqlite:///{file}", clock=lambda: 1795000000000)
    assert isinstance(store, SqlStore)
    return store


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`p` and `q` have a batch each; for the next ones there are uploads, and for a named one."""
    file = tmp_path_factory.mktemp("together") / "feeds.db"
    with closing(opened(file)) as store:
        store.create(FEED, 2)
        for producer in ("p", "q"):
            store.stage(FEED, call(0, producer=producer), FIRST)
            store.commit(FEED, call(0, producer=producer), CONTENTS["one upload"])
        for producer, batch in (("p", 1), ("q", 1), ("r", 0), ("p#name", 0)):
            for each in (FIRST, SECOND):
                store.stage(FEED, call(batch, producer=producer), each)
    return file


def answers_of(store: SqlStore, asked: Sequence[sql_commits.Commit]) -> list[object]:
    """In one transaction; a refusal by its name."""
    done = store._write(
        lambda connection: sql_commits.commit(connection, FEED, asked, store.now, 1000)
    )
    return [each.name if isinstance(each, Problem) else each for each in done]


def one_by_one(store: SqlStore, asked: Sequence[sql_commits.Commit]) -> list[object]:
    answers: list[object] = []
    for each in asked:
        try:
            answers.append(
                store._write(
                    lambda connection, each=each: only(
                        sql_commits.commit(connection, FEED, [each], store.now, 1000)
                    )
                )
            )
        except Problem as refused:
            answers.append(refused.name)
    return answers


commits = st.builds(
    lambda producer, batch, incarnation, content: (
        call(batch, producer=producer, incarnation=incarnation),
        CONTENTS[content],
    ),
    st.sampled_from(["p", "q", "r", "p#name"]),
    st.integers(0, 2),
    st.sampled_from(["a", "a", "a", "b"]),
    st.sampled_from([*CONTENTS]),
)


@pytest.mark.slow
@given(st.lists(commits, min_size=1, max_size=6))
def test_commits_together_are_commits_one_by_one(prepared, asked):
    """Law: the same answers, positions and numbers; or none of them holds, and one by itself would
    have been refused when its uploads were counted.
    """
    order = [number for some in sql_commits._rounds(asked) for number in some]
    with TemporaryDirectory() as folder:
        files = [shutil.copy(prepared, Path(folder, name)) for name in ("one.db", "two.db")]
        with closing(opened(files[0])) as together, closing(opened(files[1])) as alone:
            expected = one_by_one(alone, [asked[number] for number in order])
            try:
                found = answers_of(together, asked)
            except Problem as refused:
                assert refused.name in ("upload-missing", "content-mismatch")
                assert refused.name in expected
                return
            assert expected == [found[number] for number in order]
            assert alone.feed(FEED) == together.feed(FEED)
            assert alone.producers(FEED) == together.producers(FEED)
            for each in alone.producers(FEED):
                numbers = [store.sequences(FEED, each.name) for store in (alone, together)]
                assert numbers[0] == numbers[1]


def test_a_producers_commits_stay_in_their_order():
    """What it does next depends on what it did before."""
    asked = [
        (call(batch, producer=producer), declared())
        for producer, batch in (("p", 0), ("q", 0), ("p", 1), ("p", 2), ("q", 1), ("r", 0))
    ]
    assert [[0, 1, 5], [2, 4], [3]] == sql_commits._rounds(asked)
