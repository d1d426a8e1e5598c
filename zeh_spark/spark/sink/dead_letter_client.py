"""The publish API of the dead-letter feed, with errors that are about that feed and its options.

Runs in tasks and in the driver.
"""

from __future__ import annotations

from typing import Any

from zeh_spark.client.http.credentials import read_token
from zeh_spark.client.http.publish_client import Document, PublishClient
from zeh_spark.errors import AccessError, PublishError
from zeh_spark.spark.sink.options import SinkOptions
from zeh_spark.wire import problems


class DeadLetterClient(PublishClient):
    """A PublishClient of the dead-letter feed.

    Guarantee: what an error advises to set is the option of the dead-letter feed.
    """

    def __init__(self, options: SinkOptions) -> None:
        if options.token_file:  # read here, so that an error names the option of this feed
            read_token(options.token_file, option_for_letters("tokenFile"))
        super().__init__(options)

    def _answer(self, *args: Any, **named: Any) -> Document:
        try:
            return super()._answer(*args, **named)
        except PublishError as exc:
            raise _about_letters(exc) from None
        except AccessError as exc:
            raise exc.reworded(
                f"the dead-letter feed {exc.what}. The credentials of 'url' are sent to its origin "
                f"only",
                advice=exc.advice and exc.advice.renamed(option_for_letters),
            ) from None


def _about_letters(exc: PublishError) -> PublishError:
    if exc.problem == problems.UNKNOWN_BATCH.name:  # an answer, not a refusal
        return exc
    facts = dict(exc.facts)
    unseen = facts.get("current") == {"incarnation": None, "lastBatch": -1}
    why = ", which has nothing of this producer yet (is 'deadLetterUrl' new?)" if unseen else ""
    if exc.problem == problems.BATCH_GAP.name and not unseen:
        why = " (was 'deadLetterUrl' not set for a while?)"
    said = exc.what
    if isinstance(option := facts.get("option"), dict):
        # The publisher writes its sentence without knowing that the sink has options for two feeds.
        for name, value in option.items():
            said = said.replace(f"{name}={value}", f"{option_for_letters(name)}={value}")
        facts["option"] = {option_for_letters(name): value for name, value in option.items()}
    return exc.reworded(
        f"the dead-letter feed{why}: {said}",
        facts=facts,
        advice=exc.advice and exc.advice.renamed(option_for_letters),
        anchor="a-refusal-on-the-dead-letter-feed",
    )


def option_for_letters(name: str) -> str:
    """Return the option of the dead-letter feed: `acceptGap` gives `deadLetterAcceptGap`."""
    return f"deadLetter{name[:1].upper()}{name[1:]}"
