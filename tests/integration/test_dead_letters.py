"""What tasks and driver do with rows that cannot be published, on real publishers, without Spark.

Two feeds, each on a store of its own: what happens when only one of them knows what it should?
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace

import pytest

from tests.fix_cli import call
from tests.fix_dead_letters import QUERY, TEXT, Two, direct, frame, served
from tests.fix_log_texts import check_documented
from tests.fix_raw_server import ok, refused
from tests.fix_sink import lost, remedy
from zeh_spark.client import dead_letter_replay
from zeh_spark.client.http.publish_client import BatchCall, TaskDone
from zeh_spark.errors import (
    AccessError,
    OptionError,
    OutcomeUnknownError,
    PublisherError,
    PublishError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.spark.sink.options import sink_options
from zeh_spark.spark.sink.writer import StreamWriter, stage
from zeh_spark.wire.dead_letters import letters

GOOD, BAD = '{"i":1}', '{"i":'


# Two feeds, two commits


def test_rows_that_can_be_published_are(two):
    """The others are on the other feed, with their reasons; both in one batch of one number. A
    number that is missing says that the feed was restored, so batches without dead letters are
    committed there, too.
    """
    two.publish(0, [GOOD, BAD, GOOD], [BAD, GOOD])
    for number in (1, 2):
        two.publish(number, [GOOD])

    assert [GOOD] * 5 == two.events()
    assert [{"data": BAD}] * 2 == [each["row"] for each in two.letters()]
    assert [(0, 3), (1, 1), (2, 1)] == two.batches(two.url)
    assert [(0, 2), (1, 0), (2, 0)] == two.batches(two.dead_url)


@pytest.mark.parametrize(
    ("lost_at", "feed", "there"),
    [("main", "/orders", [{"data": BAD}]), ("dead", "/dead", [])],
    ids=["the rows", "the dead letters"],
)
def test_dead_letters_are_committed_first(two, lost_at, feed, there):
    """A commit of the rows is the end of the batch; nothing is left to do that might be lost. Where
    the feed of the dead letters cannot be reached, the batch waits. (F6)
    """
    getattr(two, lost_at).once("POST .*/commit", before=lost)

    with pytest.raises(UnavailableError, match=feed):
        two.publish(0, [GOOD, BAD])

    assert ([], there) == (two.events(), [each["row"] for each in two.letters()])
    assert bool(there) == bool(two.main.count("POST .*/commit"))
    two.publish(0, [BAD], [GOOD])
    assert ([GOOD], [{"data": BAD}]) == (two.events(), [each["row"] for each in two.letters()])


@pytest.mark.parametrize("feed", ["main", "dead"])
def test_a_batch_that_comes_again_adds_nothing(feed, two):
    """In other tasks, and when the answer to either commit was lost. (F4, F5) Of dead letters that
    are committed, too, a task only counts what it has.
    """
    getattr(two, feed).once("POST .*/commit", after=lost)
    with pytest.raises(UnavailableError):
        two.publish(0, [GOOD, BAD], [BAD])
    sent = two.dead.count("PUT ")

    for tasks in ([[BAD, BAD, GOOD]], [[BAD], [GOOD], [BAD]]):
        two.publish(0, *tasks)

    assert sent == two.dead.count("PUT ")
    assert ([(0, 1)], [(0, 2)]) == (two.batches(two.url), two.batches(two.dead_url))
    assert (1, 2) == (len(two.events()), len(two.letters()))


def test_an_abort_lets_go_of_both(two):
    """Nothing that was staged stays."""
    staged = two.staged(0, [GOOD, BAD])

    StreamWriter(two.options(), TEXT).abort(list(staged), 0)

    assert (1, 1) == (two.main.count("DELETE "), two.dead.count("DELETE "))
    with pytest.raises(PublishError, match="has staged 0 uploads"):
        two.commit(0, staged)


def test_a_nameless_batch_says_which_commit_is_not_known(two):
    """batchId=none: dead letters may be there, rows are not."""
    options = two.options()
    batch = BatchCall("p#x", "batch", "run", 0, repeatable=False)
    staged = stage(options, TEXT, batch, TaskDone(0, 0), iter([frame([GOOD, BAD])]))
    two.dead.once("POST .*/commit", after=lost)

    with pytest.raises(OutcomeUnknownError, match="/dead left a commit"):
        StreamWriter(options, TEXT).commit([staged], 0)

    assert ([], 1) == (two.events(), len(two.letters()))


# Refusals name their feed, and what they advise works


def test_a_new_dead_letter_feed_on_an_old_query_is_explained(two):
    """It has a gap, for it has nothing yet; the error says so, and how to continue."""
    options = sink_options({"url": two.url, "producerId": "p"}, streaming=True)
    for number in range(2):
        batch = BatchCall("p", QUERY, "run", number)
        staged = [stage(options, TEXT, batch, TaskDone(0, 0), iter([frame([GOOD])]))]
        StreamWriter(options, TEXT).commit(staged, number)

    said = two.refused(2, [GOOD, BAD])
    for number in (2, 3):
        two.publish(number, [GOOD, BAD], **remedy(said))

    assert said.startswith(
        "[ZEH_BATCH_GAP] the dead-letter feed, which has nothing of this producer yet (is "
        f"'deadLetterUrl' new?): {two.dead_url} answered 409 batch-gap"
    )
    assert {"deadLetterAcceptGap": f"{QUERY}@-1:2"} == remedy(said)
    assert [(2, 1), (3, 1)] == two.batches(two.dead_url)
    assert [0, 1, 2, 3] == [number for number, _ in two.batches(two.url)]


def overridden(two: Two, number: int, told: str = "") -> dict[str, str]:
    """The overrides with which a batch is published, one after the other as they are told."""
    overrides: dict[str, str] = {}
    all_said = ""
    for _ in range(2):
        said = two.refused(number, [GOOD, BAD], **overrides)
        overrides |= remedy(said)
        all_said += said
    two.publish(number, [GOOD, BAD], **overrides)
    assert told in all_said
    return overrides


def test_feeds_that_lack_different_batches_make_progress(two):
    """Each was restored to another state, and has a remedy of its own."""
    for number in range(2):
        two.publish(number, [GOOD, BAD])
    with served("orders") as main, served("dead") as dead:
        both_lag = Two(main, dead)
        both_lag.publish(0, [GOOD, BAD])
        both_lag.but(main=two.main).publish(1, [GOOD, BAD])

        assert {
            "acceptGap": f"{QUERY}@0:3",
            "deadLetterAcceptGap": f"{QUERY}@1:3",
        } == overridden(
            both_lag, 3, "the dead-letter feed (was 'deadLetterUrl' not set for a while?): "
        )
        assert [0, 3] == [number for number, _ in both_lag.batches(both_lag.url)]
        assert [0, 1, 3] == [number for number, _ in both_lag.batches(both_lag.dead_url)]


def test_a_new_checkpoint_continues_on_both_feeds(two):
    """Both are in the same state, so one remedy is enough."""
    two.publish(0, [GOOD, BAD])
    new = two.but(query=str(uuid.uuid4()))

    said = new.refused(0, [GOOD, GOOD, BAD])
    new.publish(0, [GOOD, GOOD, BAD], **remedy(said))

    assert {"replaceIncarnation"} == remedy(said).keys()
    assert (3, 2) == (len(two.events()), len(two.letters()))


def test_a_checkpoint_that_is_lost_between_the_commits_continues(two):
    """The dead-letter feed is a batch ahead, so each feed has a remedy of its own."""
    two.publish(0, [GOOD])
    two.main.once("POST .*/batches/1/commit", before=lost)
    with pytest.raises(UnavailableError):
        two.publish(1, [GOOD, BAD])
    new = two.but(query=str(uuid.uuid4()))

    assert {
        "replaceIncarnation": f"{QUERY}@0:{new.query}",
        "deadLetterReplaceIncarnation": f"{QUERY}@1:{new.query}",
    } == overridden(new, 0)
    assert (2, 2) == (len(two.events()), len(two.letters()))


def test_other_dead_letters_in_a_batch_that_comes_again_are_refused(two, caplog):
    """The dead-letter feed has others; those that came first can be kept there."""
    two.main.once("POST .*/commit", before=lost)
    with pytest.raises(UnavailableError):
        two.publish(0, [GOOD, BAD])

    said = two.refused(0, [GOOD, "[", "]"])
    two.publish(0, [GOOD, "[", "]"], **remedy(said))

    assert "the dead-letter feed: " in said and "with other rows: 1 event" in said
    assert {"deadLetterKeepFirst"} == remedy(said).keys()
    assert ([GOOD], 1) == (two.events(), len(two.letters()))
    assert re.search(
        r"batch 0 of producer p in \S+dead: deadLetterKeepFirst keeps the 1 event published under "
        r"this name at .* \(content [0-9a-f]{8}\); the 2 events given now "
        r"\(content [0-9a-f]{8}\) were dropped",
        caplog.text,
    )


def test_dead_letters_wait_until_the_feed_has_admitted_their_batch(two):
    """Also where no row of it can be published, so that nothing else asks the feed."""
    two.publish(0, [GOOD])
    new = two.but(query=str(uuid.uuid4()))
    with served("dead") as other:
        said = new.but(dead=other).refused(0, [BAD], [BAD])
        assert "incarnation-changed" in said
        assert [] == new.but(dead=other).letters()

    two.publish(1, [BAD], [BAD])
    assert (1, 2) == (len(two.events()), len(two.letters()))
    assert [(0, 1), (1, 0)] == two.batches(two.url)


def test_other_rows_in_a_batch_that_comes_again_are_refused(two, caplog):
    """With the same dead letters, the rows' feed says so; dropped ones are told in the end."""
    two.publish(0, [GOOD, BAD])

    said = two.refused(0, ["2", BAD])
    two.publish(0, ["2", BAD], **remedy(said))

    assert said.startswith(f"[ZEH_BATCH_CONFLICT] {two.url} answered 409 batch-conflict")
    assert {"keepFirst"} == remedy(said).keys()
    assert ([GOOD], 1) == (two.events(), len(two.letters()))
    assert f"batch 0 of producer p in {two.url}: keepFirst keeps the 1 event" in caplog.text
    assert "the 1 event given now" in caplog.text and "was dropped" in caplog.text
    check_documented(caplog.records, "published under this name")


# Published again


def replayed(two: Two, line: bytes, **options: str) -> str:
    given = dead_letter_replay.repaired(letters([line]), 2)
    (found,) = dead_letter_replay.replay(two.url, given, **options)
    return found.outcome.value


def test_dead_letters_of_two_feeds_with_the_same_stamps_are_both_published(two):
    """Each feed counts from 0: the dead letter of another one is not the same dead letter again."""
    two.publish(0, [GOOD, BAD])
    one, other = two.repaired_letter(), two.repaired_letter(feed="60303ae22b998861")

    said = [replayed(two, each) for each in (one, other, one, other)]

    assert ["published", "published", "published before", "published before"] == said
    assert 3 == len(two.events())


def test_a_repaired_dead_letter_of_a_relay_is_a_new_event(two):
    """It keeps its own headers, but not the origin of the event that failed: readers that have that
    event would drop the repaired one.
    """
    two.publish(0, [BAD])
    letter = json.loads(two.repaired_letter())
    stamps = {"zeh-origin": "9f86d081884c7d65/job/0/7/1764000000000", "zeh-producer": "relay"}
    letter["data"]["row"]["headers"] = {"kind": "a", **stamps}

    assert "published" == replayed(two, json.dumps(letter).encode())

    tail = ("tail", direct(two.main, "orders"), "--from", "first", "--no-follow", "--headers")
    headers = json.loads(call(*tail).stdout)["headers"]
    assert ("a", "p") == (headers["kind"], headers["zeh-producer"].partition("#")[0])
    assert "zeh-origin" not in headers


def test_dead_letters_beside_one_whose_name_has_expired_are_published(two):
    """It was published before, so long ago that nobody can compare it."""

    def replay() -> dict[int, str]:
        lines = call("dead-letters", direct(two.dead, "dead")).stdout.splitlines()
        found = [json.loads(line) for line in lines]
        for each in found:
            each["data"]["row"]["data"] = "2"
        given = letters(json.dumps(each).encode() for each in found)
        done = dead_letter_replay.replay(two.url, dead_letter_replay.repaired(given, 2))
        batches = [int(each["headers"]["zeh-batch"]) for each in found]
        return {batches[each.letter.line - 1]: each.outcome.value for each in done}

    two.publish(0, [BAD])
    assert {0: "published"} == replay()
    store = two.main.store
    assert 1 == store.expire_names("orders", store.now() + 1, 9)
    two.publish(1, [BAD])
    assert {0: "refused", 1: "published"} == replay()


def test_a_dead_letter_whose_outcome_is_unknown_is_told_by_its_line(two):
    """The next call finds out; none is published twice."""
    two.publish(0, [GOOD, BAD])
    letter = two.repaired_letter()
    two.main.once("POST .*/commit", before=lost)

    with pytest.raises(
        UnavailableError, match="not known whether the dead letter of line 1 was published"
    ) as told:
        replayed(two, letter, retryTimeout="0")

    assert str(told.value).endswith("Give the same dead letters again; none is published twice.")
    assert replayed(two, letter) in ("published", "published before")
    assert 2 == len(two.events())


# The address of a dead letter feed, and its token: who answers there, and what it gets to see


@pytest.mark.parametrize(
    "answer", [refused(404, "no such page"), ok(b"{}"), ok(b'{"cursor":"1","partition":0}\n')]
)
def test_a_dead_letter_feed_of_another_publisher_is_refused(answer, two, raw_server):
    """Before anything is sent, with its address."""
    raw_server.script(answer)

    with pytest.raises(PublisherError, match=r"zeh_spark") as raised:
        two.publish(0, [GOOD], deadLetterUrl=raw_server.url)

    assert raw_server.url in str(raised.value)
    assert 0 == two.main.count("PUT ")


def test_a_dead_letter_feed_that_is_not_there_is_named(two):
    """And how to make it."""
    with pytest.raises(PublishError, match=r"there is no feed 'nope'.*zeh-spark create") as raised:
        two.publish(0, [GOOD], deadLetterUrl=f"{two.dead.address}/nope")

    assert "the dead-letter feed" in str(raised.value)


def test_the_feed_itself_under_another_address_is_refused(two):
    """Readers would get the dead letters as events."""
    with pytest.raises(OptionError, match="leads to the feed of 'url'"):
        two.publish(0, [BAD], deadLetterUrl=direct(two.main, "orders"))

    assert [] == two.events()


def test_a_token_is_not_sent_to_another_origin(two, raw_server):
    """Nor is a secret header. If that server asks for a token, the error names the option."""
    raw_server.script(refused(401, "who are you?"))
    secrets = {"token": "hush-secret", "http.secret.header.X-Key": "hush-secret"}

    with pytest.raises(AccessError, match="'deadLetterToken' or 'deadLetterTokenFile'"):
        two.publish(0, [GOOD], deadLetterUrl=raw_server.url, **secrets)

    (request,) = raw_server.requests
    assert not [value for value in request.headers.values() if "hush" in value]


def test_a_token_of_its_own_is_sent(two, raw_server, tmp_path):
    """From a file, and not the other one; a file that is not there is named by its option."""
    file = tmp_path / "token"
    more = {"token": "other-token", "deadLetterTokenFile": str(file)}
    with pytest.raises(OptionError, match="option 'deadLetterTokenFile': cannot read a token"):
        two.publish(0, [GOOD], deadLetterUrl=raw_server.url, **more)
    file.write_text("letters-token")
    raw_server.script(refused(403))

    with pytest.raises(AccessError):
        two.publish(0, [GOOD], deadLetterUrl=raw_server.url, **more)

    (request,) = raw_server.requests
    assert "Bearer letters-token" == request.headers["authorization"]


def test_tasks_that_disagree_about_dead_letters_are_refused(two):
    """As about the rows."""
    one, other = two.staged(0, [GOOD], [BAD])
    assert other.letters
    odd = replace(other, letters=replace(other.letters, partition_count=9))

    with pytest.raises(ZeroEventHubError, match="disagree about it"):
        two.commit(0, [one, odd])


def test_the_driver_says_how_many_rows_were_refused(two, caplog):
    """Once a batch, and nothing where there are none."""
    with caplog.at_level("INFO", "zeh_spark.spark.sink"):
        two.publish(0, [GOOD, BAD], [BAD, '"' + "x" * 200_000 + '"'])
        two.publish(1, [GOOD])

    said = "batch 0 of producer p: 3 rows cannot be published and are dead letters in"
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert [f"{said} {two.dead_url}"] == warnings
    check_documented(caplog.records, "cannot be published and")
    check_documented(caplog.records, "batch … of producer …: … events")
