"""The log of administrative acts: each command that changes a store leaves an act."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cases import each_case
from tests.fix_cli import Run, call
from tests.fix_publisher import token_of
from tests.fix_upgrades import BEFORE
from tests.scratch_store import ScratchStore
from zeh_spark.errors import PublishError
from zeh_spark.publish import Producer
from zeh_spark.publisher import Actor, Via, create_app, open_store
from zeh_spark.service.access.gate import Gate
from zeh_spark.service.store.acts import Action, process_actor
from zeh_spark.service.store.token_rights import Grant, Right
from zeh_spark.testing import running_publisher
from zeh_spark.tools.cli import store_commands
from zeh_spark.tools.cli.main import zeh_spark

CHANGING: dict[str, tuple[str, ...]] = {
    "create": ("new", "--partitions", "2"),
    "retention": ("orders", "--age", "30d"),
    "schema": ("orders", "other.json"),
    "prune": ("orders", "--size", "1", "--now"),
    "cursor-sets": ("orders", "--delete", "mailer"),
    "delete-producer": ("orders", "load", "--yes"),
    "new-history": ("orders", "--yes"),
    "clock": ("--accept",),
    "token create": ("tills", "--publish", "orders"),
    "token revoke": ("warehouse",),
    "restore": ("copy.db", "--yes"),
    "migrate": (),
    "segments adopt": ("--segments", "/tmp", "--yes"),
}
"""Commands that change a store, with arguments with which they do."""

LOOKING: dict[str, tuple[str, ...]] = {
    "admin-log": (),
    "feeds": (),
    "token list": (),
    "backup": ("another.db",),
    "retention": ("orders",),
    "schema": ("orders",),
    "prune": ("orders", "--size", "1"),
    "cursor-sets": ("orders",),
    "clock": (),
    "migrate": ("--dry-run",),
    "segments check": (),
}
"""Commands that only look at a store, with their arguments."""

NO_ACTS = {
    "load",  # publishes
    "seal",  # changes nothing that anybody can see
    "offload",  # changes nothing that anybody can see, either
    "serve",  # serves what others publish
    "quickstart",  # makes a store of its own
    "explain",  # prints a page
    "ddl",  # prints statements for a table of the user's own
    # These talk to a publisher, or look at a checkpoint, and open no store.
    *"await cursors tail publish producers audit check doctor lag dead-letters replay-dead".split(),
    *"sessions end,sessions release,sessions retry,sessions skip".split(","),
}
"""Other commands, with the reason for which they leave no act."""

ACTION = {
    "create": Action.CREATE_FEED,
    "retention": Action.SET_RETENTION,
    "schema": Action.SET_SCHEMA,
    "cursor-sets": Action.DELETE_CURSOR_SET,
    "clock": Action.ACCEPT_CLOCK,
    "token create": Action.CREATE_TOKEN,
    "token revoke": Action.REVOKE_TOKEN,
    "segments adopt": Action.ADOPT_SEGMENTS,
}
"""The acts of commands that are not called as they are."""


def names(group: click.Group, prefix: str = "") -> set[str]:
    """Return the names of all commands, like "token create"."""
    found: set[str] = set()
    context = click.Context(group)
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        whole = f"{prefix}{name}"
        found |= names(each, f"{whole} ") if isinstance(each, click.Group) else {whole}
    return found


@pytest.fixture
def prepared(run: Run, store_url: str, tmp_path: Path) -> str:
    """A store with events, a reader, a token, a schema and a copy; returns its URL."""
    (tmp_path / "one.json").write_text("{}")
    (tmp_path / "other.json").write_text("{ }")
    run("create", "orders", "--partitions", "1", "--schema", "one.json")
    run("load", "orders", "-", stdin="1\n2")
    run("token", "create", "warehouse", "--read", "orders")
    with closing(open_store(store_url)) as store:
        store.save_cursors("orders", "mailer", 1, {0: "1.x"})
    run("backup", "copy.db")
    return store_url


def acts(url: str) -> list[dict[str, Any]]:
    """Return all acts, as `admin-log --json` prints them, the newest first."""
    done = call("admin-log", "--store", url, "--json", "--limit", "1000")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_command_is_known_here() -> None:
    """A new command that changes a store is not forgotten: it is held against the log."""
    assert names(zeh_spark) == CHANGING.keys() | LOOKING.keys() | NO_ACTS
    by_commands = {*ACTION.values(), *map(Action, CHANGING.keys() - ACTION.keys())}
    assert by_commands | {Action.ACCEPT_OVERRIDE} == {*Action}  # which is a commit's


@pytest.mark.usefixtures("invented")
@pytest.mark.parametrize("command", CHANGING)
def test_each_command_that_changes_a_store_leaves_its_act(
    run: Run, prepared: str, command: str
) -> None:
    """I see what was done on the command line, by which user, on which host."""
    before = len(acts(prepared))
    if command == "migrate":
        with closing(sqlite3.connect(prepared.removeprefix("sqlite:///"))) as store:
            store.execute(f"PRAGMA user_version = {BEFORE}")
    done = run(*command.split(), *CHANGING[command])
    assert done.returncode == 0, done.stderr
    action = ACTION.get(command) or Action(command)
    new = acts(prepared)
    new = new[: len(new) - before]
    (act,) = [each for each in new if each["action"] == action.value]
    by = process_actor(Via.CLI)
    assert (by.name, "cli") == (act["actor"], act["via"])
    assert {(by.name, "cli")} == {(each["actor"], each["via"]) for each in new}


@each_case("command", LOOKING)
def test_commands_that_only_look_leave_no_act(run: Run, prepared: str, command: str) -> None:
    """The log is not filled by those who look."""
    before = acts(prepared)
    done = run(*command.split(), *LOOKING[command])
    assert (0, before) == (done.returncode, acts(prepared)), done.stderr


def test_refused_commands_leave_no_act(run: Run, prepared: str) -> None:
    """What did not happen is not told as done."""
    before = acts(prepared)
    for words in (
        ("create", "orders"),
        ("retention", "unknown", "--age", "1d"),
        ("cursor-sets", "orders", "--delete", "nobody"),
        ("delete-producer", "orders", "nobody", "--yes"),
        ("token", "revoke", "nobody"),
        ("new-history", "orders", "--yes", "--since", "9999999999999"),
        ("prune", "unknown", "--now"),
    ):
        assert run(*words).returncode == 1, words
    assert before == acts(prepared)


def test_acts_survive_a_restore(run: Run, prepared: str) -> None:
    """What was done since the backup is undone, and is still known."""
    run("create", "forgotten")
    run("token", "revoke", "warehouse")
    before = acts(prepared)
    run("restore", "copy.db", "--yes")
    after = acts(prepared)
    with closing(open_store(prepared)) as store:
        assert ["orders"] == [each.name for each in store.feeds()]
    assert ["revoke-token", "new-history", "restore"] == [
        each["action"] for each in after[: len(after) - len(before)]
    ]
    assert [{**each, "id": 0} for each in before] == [
        {**each, "id": 0} for each in after[len(after) - len(before) :]
    ]
    assert after[2]["details"]["copy"].endswith("copy.db")


def test_what_is_done_while_a_copy_takes_its_place_is_named(
    run: Run, prepared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that I revoked then is valid again: I am told to revoke it once more."""
    renew = store_commands._renew

    def beside(*given: Any, **more: Any) -> Any:
        done = renew(*given, **more)
        with closing(open_store(prepared)) as old:
            old.revoke_token(old.tokens()[0].id, by=Actor("eve@host", Via.CLI))
        return done

    monkeypatch.setattr(store_commands, "_renew", beside)
    done = run("restore", "copy.db", "--yes")
    assert "cli:eve@host did revoke-token" in done.stderr
    assert "The new one lacks it: do it again." in done.stderr


@each_case(
    ("words", "shown"),
    [
        ((), ["create-token", "set-schema", "create-feed"]),
        (("--limit", "1"), ["create-token"]),
        (("--before", "2"), ["create-feed"]),
        (("--feed", "orders"), ["set-schema", "create-feed"]),
        (("--action", "create-token"), ["create-token"]),
        (("--actor", "nobody"), []),
        (("--since", "1d"), ["create-token", "set-schema", "create-feed"]),
        (("--since", "2999-01-01"), []),
        (("--since", "2020-01-01T00:00Z"), ["create-token", "set-schema", "create-feed"]),
    ],
)
def test_acts_are_chosen(run: Run, prepared: str, words: tuple[str, ...], shown: list[str]) -> None:
    """I find the act that I look for."""
    lines = run("admin-log", "--json", *words).stdout.splitlines()
    assert shown == [json.loads(line)["action"] for line in lines]


def test_log_is_a_table_to_read(run: Run, prepared: str) -> None:
    """I read it at the terminal."""
    head, *rows = run("admin-log").stdout.splitlines()
    assert ["ID", "TIME", "BY", "ACTION", "FEED", "SUBJECT", "DETAILS"] == head.split()
    by = str(process_actor(Via.CLI))
    assert [
        f"{by} create-token",
        f"{by} set-schema orders - version=1 since=1",
        f"{by} create-feed orders - partitions=1",
    ] == [
        " ".join(row.split()[4:6]) if "token" in row else " ".join(row.split()[4:]) for row in rows
    ]
    assert "There are no such acts.\n" == run("admin-log", "--feed", "unknown").stdout


def test_what_is_no_time_or_too_large_is_refused(run: Run, prepared: str) -> None:
    """I am told how to write a time; a typing error is named; there is no traceback."""
    for option, value in (
        ("--since", "yesterday"),
        ("--since", "9" * 400 + "d"),
        ("--before", "9" * 400),
        ("--limit", "9" * 400),
    ):
        done = run("admin-log", option, value)
        assert (2, True) == (done.returncode, option in done.stderr), option


def test_under_sudo_the_actor_is_the_one_who_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log says who it was, not that it was root."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", "alice")
    assert "alice" == process_actor().name.partition("@")[0]
    monkeypatch.setattr("os.geteuid", lambda: 4_000_000)
    assert "4000000" == process_actor().name.partition("@")[0]
    assert "cli:alice@host" == str(Actor("alice@host", Via.CLI))


@each_case(("closed", "actor"), [(True, "tills"), (False, "anonymous@127.0.0.1")])
def test_an_override_is_in_the_log_under_the_name_of_its_token(closed: bool, actor: str) -> None:
    """I see which job was started again with `keepFirst`, and how many rows that dropped."""
    store = ScratchStore(orders=1)
    grant = Grant(Right.PUBLISH, "orders", "till")
    text = token_of(store, grant, name="tills") if closed else ""
    options: dict[str, Any] = {"token": text} if closed else {}
    with running_publisher(store, create_app(store, gate=Gate(store, is_open=True))) as base:
        till = Producer(f"{base}/orders", "till", **options)

        def publish(*amounts: int, allow: Mapping[str, str] | None = None) -> None:
            with till.batch("monday", allow=allow) as batch:
                for amount in amounts:
                    batch.add(amount)

        publish(1)
        with pytest.raises(PublishError) as refused:
            publish(2, 3)
        allowed = refused.value.facts["option"]
        publish(2, 3, allow=allowed)
    act, *_ = store.acts()
    told = {name: act.details[name] for name in ("keepFirst", "kept_events", "dropped_events")}
    assert {**allowed, "kept_events": 1, "dropped_events": 2} == told
    assert ("http", actor, "accept-override", "orders", "till#monday") == (
        act.via, act.actor, act.action, act.feed, act.subject,
    )  # fmt: skip
