"""Judge whether there is a publisher at an address at all. Pure: answers in, errors out."""

from __future__ import annotations

from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.errors import AccessError, PublisherError, UnavailableError, ZeroEventHubError
from zeh_spark.tools.check.asking import Answer


def refuse(answer: Answer, options: ClientOptions) -> None:
    """Raise the error for an address where there is no feed to judge."""
    url = options.url
    error: ZeroEventHubError | None = None
    if not answer.status:
        kind = PublisherError if answer.final else UnavailableError
        error = kind(f"{answer.problem}. Check the address, and whether the publisher runs")
    elif answer.status in (429, 502, 503, 504):
        error = UnavailableError(f"{url} answered {answer.told}. Try again later")
    elif answer.status in (401, 403):
        given = "the token" if options.token or options.token_file else "no token"
        error = AccessError(
            f"{url} answered {answer.told}, with {given}. Give a valid one with --token-file or "
            f"ZEH_TOKEN",
            status=answer.status,
        )
    elif answer.status == 404:
        error = PublisherError(
            f"{url} answered {answer.told}. Check the feed's address", status=404
        )
    elif "html" in answer.headers.get("Content-Type", "").lower() and answer.ok:
        error = PublisherError(
            f"{url} answered with an HTML page instead of a feed, perhaps a login page. Check the "
            f"address",
            status=answer.status,
            anchor="an-html-page-instead-of-a-feed",
        )
    if error:
        raise error
