"""What an act keeps of texts that others have chosen."""

from __future__ import annotations

import logging

import pytest

from zeh_spark.service.store.acts import Action, Actor, Via, log_act, new_act

FORGED = "x\n2026-11-24 INFO cli:root@vm did revoke-token\x1b[31m\u202e\udcff"


def test_nothing_ends_or_hides_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """A subject of a JWT, or a user name in the environment, cannot forge an entry of the log."""
    act = new_act(Actor(FORGED, Via.CONSOLE), Action.PRUNE, 0, subject=FORGED, name=[FORGED])

    with caplog.at_level(logging.INFO, "zeh_spark.acts"):
        log_act(act)

    assert [act.actor, act.subject, act.details["name"][0]] == [
        "x\\n2026-11-24 INFO cli:root@vm did revoke-token\\x1b[31m\\u202e\\udcff"
    ] * 3
    assert caplog.messages[0].isprintable()
