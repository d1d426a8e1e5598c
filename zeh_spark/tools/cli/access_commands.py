"""The commands about who may do what, and who did: `token` and `admin-log`.

They work on the store, also while it is served. What tokens are is in `store.token_rights`; what
is logged, in `store.acts`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import click

from zeh_spark.errors import StoreError
from zeh_spark.service.store.acts import Action
from zeh_spark.tools.cli.output import (
    json_line,
    moment,
    print_answer,
    print_remark,
    print_result,
    print_table,
    table,
)
from zeh_spark.tools.cli.parameters import AGE, STORE, Parsed, name_of, opened, operator
from zeh_spark.wire.option_values import parse_age_ms
from zeh_spark.wire.phrases import counted


@click.group()
def token() -> None:
    """Make, list and revoke the tokens that say who may read and publish.

    As soon as a store has a token, its publishers ask every request for one: the option token or
    tokenFile of Spark, ZEH_TOKEN or --token-file of these commands.
    """


@token.command()
@click.argument("name", callback=name_of)
@STORE
@click.option("--read", multiple=True, metavar="FEED", help="May read the feed's events.")
@click.option(
    "--publish", multiple=True, metavar="FEED[/PRODUCER]",
    help="May publish to the feed, under this producer's name.",
)  # fmt: skip
@click.option(
    "--consume", multiple=True, metavar="FEED[/CURSORSET]",
    help="May keep its position under this cursor set (with --read).",
)  # fmt: skip
@click.option(
    "--audit", multiple=True, metavar="FEED",
    help="May see the feed's producers, and the receipts of what they published.",
)  # fmt: skip
@click.option("--admin", is_flag=True, help="May do all of this with every feed.")
@click.option("--expires", type=AGE, metavar="DURATION", help="Not valid after this, like 90d.")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the token into a new file that only you can read, and do not print it.",
)  # fmt: skip
def create(
    name: str,
    url: str,
    admin: bool,
    expires: int | None,
    output: Path | None,
    **given: tuple[str, ...],
) -> None:
    """Make a token, and print it once: the store keeps only a hash of it.

    NAME says who has the token. A feed, a producer and a cursor set may end with *, which matches
    any ending: --read '*' is all feeds. Each option can be repeated. A publisher accepts a new
    token within about a second.

    \b
    Examples:
      zeh-spark token create warehouse --read orders --consume orders/warehouse --output token.txt
      zeh-spark token create tills --publish 'orders/till-*' --expires 90d
      zeh-spark token create auditor --read '*' --audit '*'
    """
    from zeh_spark.service.store.token_rights import ADMIN, Right, new_token, parse_grant

    grants = [parse_grant(right, text) for right in Right for text in given[right.value]]
    if admin:
        grants = list(ADMIN)
    if not grants:
        raise click.UsageError(
            "A token without rights is of no use. Give --read, --publish, --consume, --audit or "
            "--admin."
        )
    from zeh_spark.service.databases import shown_url  # needs the extra `publisher`

    with opened(url, must_exist=False) as store:
        now = store.now()
        text, made = new_token(name, grants, now, None if expires is None else now + expires)
        with _written(text, output) if output else nullcontext():
            store.add_token(made, by=operator())
        feeds = {each.name for each in store.feeds()}
    may = ", ".join(map(str, grants))
    print_remark(
        f"Token {made.id} of {name!r} may {may}. It is in {shown_url(url)}, and is for publishers "
        f"that serve this store."
    )
    if missing := sorted({each.feed for each in grants if "*" not in each.feed} - feeds):
        print_remark(
            f"That store has no feed {', '.join(map(repr, missing))}. This is right for a feed "
            f"that is made later, or for a table that is served beside the store."
        )
    facts = {"id": made.id, "name": name, "rights": [str(each) for each in grants]}
    if output:
        print_result(f"The token is in {output}.", file=str(output), **facts, expires=made.expires)
    else:
        print_answer(text, token=text, **facts, expires=made.expires)


@contextmanager
def _written(text: str, path: Path) -> Iterator[None]:
    """Write a new file for its owner alone, and remove it if the block fails. Raises StoreError."""
    with ExitStack() as undo:
        try:
            with open(path, "x", opener=partial(os.open, mode=0o600)) as file:
                undo.callback(path.unlink, missing_ok=True)
                print(text, file=file)
        except OSError as exc:
            raise StoreError(
                f"{path} cannot be made: {exc.strerror}. Name a new file in a folder that you can "
                f"write"
            ) from exc
        yield
        undo.pop_all()


@token.command("list")
@STORE
def list_tokens(url: str) -> None:
    """List the tokens of a store, with their rights, also those that are not valid any more.

    \b
    Example:
      zeh-spark token list --store sqlite:///feeds.db
    """
    with opened(url) as store:
        now, found = store.now(), store.tokens()
    rows, items = [], []
    for each in found:
        state = "revoked" if each.revoked else "valid" if each.is_valid(now) else "expired"
        until = moment(each.expires) if each.expires else "-"
        rights = [str(grant) for grant in each.grants]
        rows.append((each.id, each.name, state, until, " ".join(rights)))
        items.append(
            {
                "id": each.id,
                "name": each.name,
                "state": state,
                "expires": each.expires,
                "rights": rights,
            }
        )
    none = "There are no tokens: publishers on a loopback address ask for none."
    print_table("tokens", ("ID", "NAME", "STATE", "EXPIRES", "RIGHTS"), rows, items, none)


@token.command()
@click.argument("which", metavar="ID|NAME")
@STORE
def revoke(which: str, url: str) -> None:
    """Revoke a token permanently by its id, or all tokens of a name.

    Every publisher of the store refuses it within about a second, in any case within ten. Answers
    that have begun are sent to their end.

    \b
    Example:
      zeh-spark token revoke warehouse
    """
    with opened(url) as store:
        revoked = store.revoke_token(which, by=operator())
    if not revoked:
        raise StoreError(
            f"there is no valid token with the id or name {which!r}. Look at zeh-spark token list",
            anchor="tokens",
        )
    print_result(
        f"Revoked {counted(len(revoked), 'token')} of {which!r}: {', '.join(revoked)}.",
        revoked=list(revoked),
    )


# The log of acts

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
