"""Serving: the publisher beside nginx, which sends the same bytes from files; and waiting readers.

A *cold* reader is the first one after the publisher was started. The rows with nginx are left out
where it is not installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from benchmarks import fanout
from benchmarks.fanout import READERS, WAITING, Load, get, load, post
from benchmarks.feeds import PARTITIONS, build, serving
from benchmarks.rows import MIB, Row
from tests.fix_nginx import Nginx
from zeh_spark.service.reads.pages import DEFAULT_HINT

EVENTS, ROUNDS = 250_000, 3
"""Most events of the feed, which are more than the publisher keeps; how often all is measured."""

KEPT = 200_000
"""Events of the feed that is kept."""

AGAIN = 8
"""How often each of many readers asks for all that is compressed, which else takes no time."""

TASK_BYTES = 64 << 20


def fanned_out(work: Path, events: int) -> Iterator[Row]:
    """Readers of the same pages and chunks, then readers that wait."""
    store = build(work, min(events, EVENTS))
    if shutil.which("nginx"):
        yield from beside_nginx(work, store)
        yield from through_nginx(work, store)
    yield from who_wait(store)


def all_kept(work: Path, events: int) -> Iterator[Row]:
    """One, four and sixteen readers of what the publisher keeps, turn by turn with nginx."""
    store = build(work, min(events, KEPT))
    with contextlib.ExitStack() as stack:
        kept = {**os.environ, "ZEH_ANSWER_CACHE": "512m"}
        url, pid = stack.enter_context(serving(store, kept))
        asked, port = requests_for(url), urlsplit(url).port or 0
        peers = {
            name: stack.enter_context(fanout.nginx(work / name.replace(" ", "-"), bodies))
            for name, (_, bodies) in asked.items()
        }
        runs: dict[tuple[str, int], list[tuple[Load, Load]]] = {}
        for number in range(ROUNDS + 1):
            for name, (wanted, _) in asked.items():
                for readers in (1, 4, READERS):
                    times = max(1, 160 // (len(wanted) * readers))
                    peer_pid, peer_port, files = peers[name]
                    mine = load(pid, port, wanted * times, readers)
                    peer = load(peer_pid, peer_port, files * times, readers)
                    if number:  # the first one keeps what the others read
                        runs.setdefault((name, readers), []).append((mine, peer))
    for (name, readers), found in runs.items():
        ratios = [each.rate / other.rate for each, other in found]
        count = len(asked[name][0]) * readers * max(1, 160 // (len(asked[name][0]) * readers))
        cpu = [statistics.median(each.cpu for each in side) for side in zip(*found, strict=True)]
        size = found[0][0].bytes / (1 << 30)
        own, other = (f"{each / count * 1000:.2f} ms, {each / size:.2f} s" for each in cpu)
        yield (
            f"{name}, all kept, {readers} readers / nginx (CPU a request and a GiB: {own}; nginx "
            f"{other})",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            ">= 1.0" if name == "pages" else ">= 0.5",
        )


def beside_nginx(work: Path, store: str) -> Iterator[Row]:
    """Each round a new publisher, and turn by turn with nginx."""
    with serving(store) as (url, _):
        asked = requests_for(url)
    runs: dict[str, list[tuple[Load, Load]]] = {}
    with contextlib.ExitStack() as stack:
        peers = {
            name: stack.enter_context(fanout.nginx(work / name.replace(" ", "-"), bodies))
            for name, (_, bodies) in asked.items()
        }
        for _ in range(ROUNDS):
            for name, (wanted, _) in asked.items():
                with serving(store) as (url, pid):
                    for readers in (1, READERS):
                        port = urlsplit(url).port
                        assert port
                        peer_pid, peer_port, files = peers[name]
                        times = 1 if readers == 1 or name == "pages" else AGAIN
                        mine = load(pid, port, wanted * times, readers)
                        peer = load(peer_pid, peer_port, files * times, readers)
                        many = "a cold reader" if readers == 1 else f"{readers} readers"
                        runs.setdefault(f"{name}, {many}", []).append((mine, peer))
    aims = {"pages, a cold reader": ">= 0.2", "pages, 16 readers": ">= 0.5"}
    aims |= {f"chunks, {many}": ">= 0.5" for many in ("a cold reader", "16 readers")}
    for name, found in runs.items():
        mine, peer = (max(each.rate for each in side) for side in zip(*found, strict=True))
        spent = [min(each.cpu / each.bytes for each in side) for side in zip(*found, strict=True)]
        cpu = " and ".join(f"{each * (1 << 30):.2f}" for each in spent)
        size = found[0][0].bytes / MIB
        rates = f"{mine / MIB:,.0f} and {peer / MIB:,.0f} MiB/s, {cpu} s of CPU a GiB"
        yield f"{name}, {size:,.0f} MiB: publisher and nginx", rates, ""
        ratios = [each.rate / other.rate for each, other in found]
        shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        yield f"{name} / nginx", shown, aims.get(name, "")


def through_nginx(work: Path, store: str) -> Iterator[Row]:
    """Readers of pages that nginx keeps as the docs say, turn by turn with nginx and files.

    The pages are those that caches may keep, so not the one from `_first`. Each was read before.
    """
    environment = {**os.environ, "ZEH_FORWARDED_ALLOW_IPS": "127.0.0.1"}
    runs: dict[str, list[tuple[Load, Load, float]]] = {}
    with contextlib.ExitStack() as stack:
        url, pid = stack.enter_context(serving(store, environment))
        targets, pages = fanout.fetched_pages(url, PARTITIONS)
        kept = [
            (target, page)
            for target, page in zip(targets, pages, strict=True)
            if "_first" not in target and page.count(b'"data"') >= DEFAULT_HINT
        ]
        files = stack.enter_context(fanout.nginx(work / "same-bytes", [page for _, page in kept]))
        port = urlsplit(url).port
        assert port
        caches = {
            "nginx's cache": Nginx(work / "cache", port, asks=False, workers=2),
            "nginx's cache, which asks each time (tokens)": Nginx(work / "asks", port, workers=2),
        }
        for each in caches.values():
            stack.callback(each.close)
        for _ in range(ROUNDS):
            for name, cache in caches.items():
                wanted = [get(each) for each, _ in kept]
                load(cache.process.pid, cache.port, wanted, 1)
                before = fanout.cpu_of(pid)
                mine = load(cache.process.pid, cache.port, wanted * AGAIN, READERS)
                spent = (fanout.cpu_of(pid) - before) / mine.seconds
                peer_pid, peer_port, peer = files
                same = load(peer_pid, peer_port, peer * AGAIN, READERS)
                runs.setdefault(name, []).append((mine, same, spent))
    for name, found in runs.items():
        ratios = [mine.rate / same.rate for mine, same, _ in found]
        shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        asked_always = "asks" in name
        yield f"pages, {READERS} readers, {name} / nginx", shown, "" if asked_always else ">= 0.9"
        cpu = " and ".join(
            f"{min(each.cpu / each.bytes for each in side) * (1 << 30):.2f}"
            for side in ([mine for mine, _, _ in found], [same for _, same, _ in found])
        )
        yield "the same: CPU of both nginx a GiB", f"{cpu} s", ""
        share = statistics.median(each for _, _, each in found)
        yield (
            "the same: publisher's CPU",
            f"{share:.1%} of a core",
            "" if asked_always else "<= 5 %",
        )


def requests_for(url: str) -> dict[str, tuple[list[str], list[bytes]]]:
    """What readers ask for, and the bodies that they get."""
    targets, pages = fanout.fetched_pages(url, PARTITIONS)
    base = url.removesuffix(urlsplit(url).path)
    packed = []
    for each in targets:
        gzip = {"Accept-Encoding": "gzip"}
        with requests.get(f"{base}{each}", headers=gzip, stream=True, timeout=60) as answer:
            packed.append(answer.raw.read(decode_content=False))
    first = {str(each): "_first" for each in range(PARTITIONS)}
    plan = requests.post(f"{url}/plan", json={"n": PARTITIONS, "cursors": first}, timeout=60).json()
    wanted = [json.dumps({"n": PARTITIONS, "ranges": each}) for each in of_tasks(plan["ranges"])]
    chunks = [requests.post(f"{url}/chunks", data=each, timeout=60).content for each in wanted]
    path = urlsplit(url).path
    return {
        "pages": ([get(each) for each in targets], pages),
        "pages with gzip": ([get(each, "gzip") for each in targets], packed),
        "chunks": ([post(f"{path}/chunks", each) for each in wanted], chunks),
    }


def of_tasks(ranges: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Ranges as two tasks ask for them that read a batch of the default size."""
    some, size = [], 0
    for each in ranges:
        some.append({name: each[name] for name in ("partition", "from", "to")})
        size += each["bytes"]
        if size >= TASK_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def who_wait(store: str) -> Iterator[Row]:
    """Readers that wait at the end of a partition, and commits that wake them."""
    with serving(store) as (url, pid):
        found = fanout.waiting(url, pid, [sys.executable, "-c", fanout.COMMIT, store])
    name = f"{WAITING:,} waiting readers"
    yield f"{name}: CPU while idle", f"{found.idle:.1%} of a core", "<= 5 %"
    yield f"{name}: memory", f"{found.memory / MIB:.0f} MiB", ""
    spread, last = statistics.median(found.spread), max(found.spread)
    yield (
        f"{name}: woken within, median and most of 6",
        f"{spread * 1000:.0f}, {last * 1000:.0f} ms",
        "<= 200 ms",
    )
    yield f"{name}: commit to the last answer", f"{statistics.median(found.last) * 1000:.0f} ms", ""
    yield f"{name}: CPU of a wake-up", f"{statistics.median(found.wake_cpu):.2f} s", ""
