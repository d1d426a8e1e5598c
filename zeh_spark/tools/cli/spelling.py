"""How commands spell what errors call options of the format.

An error is raised where nobody knows whether Spark or a command meets it, so it names the options
of the format. A command has other names for them: `--allow keepFirst=…` for `keepFirst=…`.

Rule for editors: an option of the format that a command has is a line of `_NAMES`. What decides is
the error's attributes, never its words: these are only written anew.
"""

from __future__ import annotations

from typing import Any

from zeh_spark.errors import OptionError, PublisherError, ZeroEventHubError

_NAMES = {
    "url": "URL",
    "token": "ZEH_TOKEN",
    "tokenFile": "--token-file",
    "oauth.tokenUrl": "ZEH_OAUTH_TOKEN_URL",
    "oauth.clientId": "ZEH_OAUTH_CLIENT_ID",
    "oauth.clientSecret": "ZEH_OAUTH_CLIENT_SECRET",
    "oauth.scope": "ZEH_OAUTH_SCOPE",
    "caFile": "--ca-file",
    "clientCertFile": "--client-cert",
    "clientKeyFile": "--client-key",
    "partitionCount": "--partitions",
}
"""What commands call options of the format."""


def message(exc: ZeroEventHubError) -> str:
    """Return what an error says, without its code, in the words of the command line.

    The advice to set options is left out unless the publisher refused: a command sets
    `retryTimeout` itself, for instance.
    """
    said = exc.what
    advice = exc.advice if isinstance(exc, PublisherError) else None
    if advice:
        said = f"{said}; {advice.text.format(*(_NAMES.get(each, each) for each in advice.options))}"
    for name, value in _overrides(exc).items():
        said = said.replace(f"{name}={value}", f"--allow {name}={value}")
    return said


def option_error(exc: OptionError) -> str:
    """Return what an error about an option says, with the command's name for it."""
    said = str(exc)
    for name, own in _NAMES.items():
        said = said.replace(f"option {name!r}", own)
    return said


def _overrides(exc: ZeroEventHubError) -> dict[str, Any]:
    """Return the overrides that a refusal names, whether the publisher or the store refused."""
    facts: Any = getattr(exc, "facts", None) or getattr(exc, "members", None) or {}
    option = facts.get("option")
    return option if isinstance(option, dict) else {}
