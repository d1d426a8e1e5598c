"""The publish API of the dead-letter feed, whose errors say that they are about that feed, and
which of its options they mean. Runs in tasks and in the driver.
"""

from __future__ import annotations

from typing import Any

from zeh_spark.client.publish_client import Document, PublishClient
from zeh_spark.errors import AccessError, OptionError, PublishError
from zeh_spark.protocol.wire import REMEDIES
from zeh_spark.sink.options import SinkOptions


class DeadLetterClient(PublishClient):
    """As PublishClient.

    Guarantee: what an error advises to set is set for the dead-letter feed.
    """

    def __init__(self, options: SinkOptions) -> None:
        try:
            super().__init__(options)
        except OptionError as exc:
            raise OptionError(_renamed(str(exc)), option=exc.option) from exc

    def _answer(self, *args: Any, **named: Any) -> Document:
        try:
            return super()._answer(*args, **named)
        except PublishError as exc:
            raise _about_letters(exc) from None
        except AccessError as exc:
            said = _renamed(
                f"the dead-letter feed {exc}; 'token' is sent to the origin of 'url' only"
            )
            raise AccessError(said, status=exc.status, body=exc.body) from None


def _about_letters(exc: PublishError) -> PublishError:
    if exc.problem == "unknown-batch":  # an answer, not a refusal
        return exc
    facts = dict(exc.facts)
    unseen = facts.get("current") == {"incarnation": None, "lastBatch": -1}
    why = ", which has nothing of this producer yet (is 'deadLetterUrl' new?)" if unseen else ""
    if exc.problem == "batch-gap" and not unseen:
        why = " (was 'deadLetterUrl' not set for a while?)"
    said = f"the dead-letter feed{why}: {exc}".replace("'url'", "'deadLetterUrl'")
    for name in REMEDIES:
        said = said.replace(f"set once {name}=", f"set once {option_for_letters(name)}=")
    if isinstance(option := facts.get("option"), dict):
        facts["option"] = {option_for_letters(name): value for name, value in option.items()}
    return PublishError(said, status=exc.status, body=exc.body, problem=exc.problem, facts=facts)


def option_for_letters(name: str) -> str:
    """`acceptGap` → `deadLetterAcceptGap`."""
    return f"deadLetter{name[:1].upper()}{name[1:]}"


def _renamed(said: str) -> str:
    said = said.replace("'token' or", "'deadLetterToken' or")
    return said.replace("'tokenFile'", "'deadLetterTokenFile'")
