"""Old events in objects, as readers and operators meet them: over HTTP, in metrics and the log."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from tests.fix_client import client, read
from tests.fix_metrics import Scrape
from tests.fix_publisher import Publisher
from tests.integration.test_kept_answers import chunks
from tests.store_contract.packs import EVER
from zeh_spark.client.http.feed_client import PageRequest
from zeh_spark.errors import PublisherError
from zeh_spark.service.retention.segments import offload
from zeh_spark.service.segments.objects import Objects


@pytest.fixture
def cold(publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that has the 16 oldest of 18 events; they are packed, four in a pack."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 4)
    for number in range(18):
        publisher.publish(number, partition=0)
    while publisher.store.seal("orders", EVER):
        pass
    offload(publisher.store, "orders", Objects(str(tmp_path / "cold")), EVER)  # type: ignore[arg-type]
    return tmp_path / "cold"


def files(cold: Path) -> list[Path]:
    return sorted(cold.rglob("*.segment"))


def asked(publisher: Publisher, way: str) -> requests.Response:
    """Ask for all events, as the way of Spark's source does that is named."""
    if way == "driver":
        return requests.get(f"{publisher.url}?n=1&cursor0=_first", timeout=30)
    return chunks(publisher.base)


def test_what_is_packed_and_moved_is_told(publisher: Publisher, cold: Path) -> None:
    """I see whether packing keeps up, and how much history is in cheap storage."""
    seen = Scrape(publisher.base)

    assert 2 == seen("zeh_unpacked_chunks", feed="orders")
    assert sum(each.stat().st_size for each in files(cold)) == seen("zeh_segment_bytes")
    assert "zeh_segments_moved_timestamp_seconds" not in seen.names  # this one moves nothing


@pytest.mark.parametrize("way", ["driver", "executors"])
def test_a_lost_segment_stops_its_readers_by_name(
    publisher: Publisher, cold: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers hear at once that a retry is no use, and only the operator where the object was."""
    (segment,) = files(cold)
    content = segment.read_bytes()
    answers = []
    for damage in (b"", content[:40]):
        segment.unlink(missing_ok=True)
        if damage:
            segment.write_bytes(damage)
        answers.append(asked(publisher, way))
    reader = client(None, retry=None, url=publisher.url, retryTimeout="1h")
    with pytest.raises(PublisherError, match="500 segment-lost") as told:
        read(reader.page(PageRequest(0, "_first", 1, 10)))

    for answer in answers:
        name = answer.json()["type"].rpartition(":")[2]
        assert (500, "segment-lost", False) == (answer.status_code, name, str(cold) in answer.text)
    assert "ZEH_SEGMENT_LOST" == told.value.code
    assert 3 == Scrape(publisher.base)("zeh_refusals_total", problem="segment-lost")
    logged = [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert [f"feed 'orders': there is no object {segment}"] == logged  # once a minute at most
    segment.write_bytes(content)
    assert 200 == asked(publisher, way).status_code


def test_storage_that_fails_is_no_outage_of_the_store(
    publisher: Publisher, cold: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Old events come later, new ones as always; the log says why, and not that the store fails."""
    cursor = publisher.get("n=1&cursor0=_last").cursors[0]
    publisher.publish("new", partition=0)
    cold.rename(cold.with_name("away"))
    cold.write_text("no folder")

    refused = [asked(publisher, "driver") for _ in range(5)]
    new = publisher.get(f"n=1&cursor0={cursor}").data

    assert [503] * 5 == [each.status_code for each in refused]
    assert {"urn:zeroeventhub:problem:store-busy"} == {each.json()["type"] for each in refused}
    assert ["new"] == new
    logged = [each.message for each in caplog.records if each.levelname in ("ERROR", "WARNING")]
    assert 1 == len(logged)
    assert logged[0].startswith(f"feed 'orders': cannot read {cold}/")
