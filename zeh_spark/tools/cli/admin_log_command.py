"""The command `admin-log`, which shows who changed what in a store (see `store.acts`).

It works on the store itself, also while it is served.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import click

from zeh_spark.service.store.acts import Action
from zeh_spark.tools.cli.output import json_line, moment, table
from zeh_spark.tools.cli.parameters import STORE, Parsed, opened
from zeh_spark.wire.option_values import parse_age_ms

_MOST = (1 << 63) - 1


def _since(text: str) -> tuple[str, int]:
    """Return ("at", ms since 1970) for a time, or ("ago", ms) for a duration before now."""
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return "ago", parse_age_ms(text)
    return "at", round((at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp() * 1000)


@click.command("admin-log")
@STORE
@click.option("--feed", metavar="FEED", help="Only entries about this feed.")
@click.option(
    "--actor", metavar="NAME",
    help="Only entries of this actor, as the log shows it: cli:alice@host, or alice@host.",
)  # fmt: skip
@click.option(
    "--action",
    type=click.Choice([each.value for each in Action]),
    help="Only entries of this kind.",
)
@click.option(
    "--since", type=Parsed("since", _since), metavar="TIME",
    help="Only entries since a time in UTC, for example 2026-11-24 or 2026-11-24T18:00, or within "
    "a duration before now, for example 7d.",
)  # fmt: skip
@click.option(
    "--before",
    type=click.IntRange(1, _MOST),
    metavar="ID",
    help="Only entries with a lower id: the next page.",
)
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 1_000_000), metavar="N",
    help="How many entries to show, the newest first.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print each entry as a line of JSON.")
def admin_log(
    url: str,
    feed: str | None,
    actor: str | None,
    action: str | None,
    since: tuple[str, int] | None,
    before: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the administrative log: who changed what in a store, and when.

    Each command that changes a store, except for publishing, writes an entry in the same
    transaction as the change. Commands that were refused or changed nothing are not in the log. BY
    is the way and the actor: cli:USER@HOST for a command, http:TOKEN for a request with a token.

    Entries cannot be changed or deleted, and are kept as long as the store. To check that events
    are as they were published, use zeh-spark audit.

    \b
    Examples:
      zeh-spark admin-log --since 7d
      zeh-spark admin-log --feed orders --action prune --store sqlite:///feeds.db
      zeh-spark admin-log --json --limit 1000
    """
    from zeh_spark.service.store.acts import ActFilter

    with opened(url) as store:
        first = None
        if since:
            kind, ms = since
            first = ms if kind == "at" else store.now() - ms
        found = store.acts(ActFilter(feed, actor, action, first, before), limit)
    if as_json:
        for each in found:
            click.echo(json_line(each.document()))
        return
    if not found:
        click.echo("There are no such acts.")
        return
    rows = [
        (
            str(each.id),
            moment(each.time),
            f"{each.via}:{each.actor}",
            each.action,
            each.feed or "-",
            each.subject or "-",
            _details(each.details),
        )
        for each in found
    ]
    click.echo(table(("ID", "TIME", "BY", "ACTION", "FEED", "SUBJECT", "DETAILS"), rows))


def _details(details: Mapping[str, Any]) -> str:
    """Return details on one line, like `partitions=2 copy=false`."""
    return " ".join(
        f"{name}={json.dumps(each, ensure_ascii=False, separators=(',', ':'))}"
        for name, each in details.items()
    )
