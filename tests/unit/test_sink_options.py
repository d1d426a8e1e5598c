"""What a sink may be told, and what it says about the rest."""

from __future__ import annotations

import pytest

from zeh_spark.errors import OptionError
from zeh_spark.options import parse
from zeh_spark.sink.options import SinkOptions, refused_for_a_write, sink_options

URL = "https://orders.example/orders"
REMEDIES = {
    "replaceIncarnation": "0a-1b@17:2c-3d",
    "keepFirst": "0a-1b:17:0123abcd",
}


def options(*, streaming=True, **given):
    return sink_options({"url": URL, "producerId": "p", **given}, streaming=streaming)


def test_a_sink_needs_little():
    """An address and who publishes."""
    found = options()

    assert ("p", None, None, 4 << 20, {}) == (
        found.producer_id,
        found.batch_id,
        found.partition_count,
        found.upload_bytes,
        found.remedies,
    )


def test_what_spark_adds_is_no_option():
    """Spark passes the checkpoint and the query's name on, in lower case."""
    found = sink_options(
        {"url": URL, "producerid": "p", "checkpointlocation": "/c", "queryname": "any name"},
        streaming=True,
    )

    assert "p" == found.producer_id


def test_a_querys_name_stands_in_for_the_producer():
    """A stream that has a name needs no other one."""
    found = sink_options({"url": URL, "queryName": "orders-2"}, streaming=True)

    assert "orders-2" == found.producer_id


def test_a_querys_name_has_to_be_fit_for_that():
    """Spark allows any text."""
    with pytest.raises(OptionError, match="'producerId' must be 1 to 100 letters"):
        sink_options({"url": URL, "queryName": "my orders"}, streaming=True)


@pytest.mark.parametrize("given", [{}, {"queryName": "q"}])
def test_a_write_without_a_producer_is_refused(given):
    """A write has no query whose name could stand in."""
    with pytest.raises(OptionError, match="'producerId' is missing") as raised:
        sink_options({"url": URL, **given}, streaming=False)

    assert "producerId" == raised.value.option


def test_a_streams_batches_have_sparks_numbers():
    """batchId is for df.write."""
    assert "2026-11-20" == options(streaming=False, batchId="2026-11-20").batch_id
    with pytest.raises(OptionError, match=r"'batchId' is for df\.write"):
        options(batchId="2026-11-20")


@pytest.mark.parametrize("name", ["", "a b", "a#b", "a/b", "é", "x" * 101])
@pytest.mark.parametrize("option", ["producerId", "batchId"])
def test_names_are_plain(option, name):
    """They stand in addresses and headers."""
    with pytest.raises(OptionError, match=f"'{option}' must be 1 to 100 letters"):
        options(streaming=False, **{option: name})


@pytest.mark.parametrize("size", ["64k", "65536", "4m", "32m"])
def test_uploads_have_bounds(size):
    """From 64 KiB to 32 MiB."""
    assert 64 << 10 <= options(uploadBytes=size).upload_bytes <= 32 << 20


@pytest.mark.parametrize("size", ["65535", "33m", "0", "much"])
def test_other_uploads_are_refused(size):
    with pytest.raises(OptionError, match=r"'uploadBytes' must be (from 64k to 32m|a number)"):
        options(uploadBytes=size)


@pytest.mark.parametrize("name", REMEDIES)
def test_remedies_travel_as_they_are_printed(name):
    """What an error says to set is passed on to the publisher, and nothing else is."""
    assert {name: REMEDIES[name]} == options(**{name: REMEDIES[name]}).remedies


@pytest.mark.parametrize("name", ["acceptGap", *REMEDIES])
@pytest.mark.parametrize("value", ["true", "accept", "", "3:4:5:6"])
def test_standing_permissions_are_refused(name, value):
    """A2: a remedy names the one state in which it applies."""
    with pytest.raises(OptionError, match=f"'{name}' must be <.*, as the error says that asks"):
        options(**{name: value})


def test_an_unknown_option_is_refused_with_the_likely_one():
    with pytest.raises(OptionError, match="unknown option 'producerd'; did you mean 'producerId'"):
        options(producerd="p")


def test_what_only_reads_is_no_option_of_a_write():
    """Also before Spark says which of both is meant."""
    given = {"url": URL, "startingCursors": "first"}

    assert "unknown option 'startingcursors'" in str(refused_for_a_write(given))
    assert refused_for_a_write({"url": URL, "batchId": "x"}) is None


def test_a_token_is_not_shown():
    """Options are printed in logs."""
    found = parse(SinkOptions, {"url": f"{URL}?key=hush-1", "token": "hush-2"})

    assert "hush" not in repr(found)
