"""The counters of a job add up: docs/internals/cache.md, "Figures".

Three mounts on two nodes, plans and random reads.
"""

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dieselfs.dataset import Dataset
from dieselfs.transfer.upload import TreeUpload, walk_source
from tests.support.job_mounts import job_mounts, stats_of
from tests.support.server import RunningServer, running_server

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

FILES = 128
"""In each of two folders: one is read by plan, the other at random."""
FILES_PER_CHUNK = 4
CHUNKS = 2 * FILES // FILES_PER_CHUNK
FILE_BYTES = 25_000
GROUP_CHUNKS = 8
RANDOM_READS = 60
NODES = ["node-0", "node-1", "node-0"]
PATIENCE_S = 60.0

Stats = dict[str, Any]


def content(number: int) -> bytes:
    return number.to_bytes(4, "little") * (FILE_BYTES // 4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        folder = tmp_path_factory.mktemp("files")
        for name in ("planned", "random"):
            (folder / name).mkdir()
            for number in range(FILES):
                (folder / name / f"{number:03}").write_bytes(content(number))
        with Dataset(server.settings(), "counted", must_exist=False) as data:
            chunk_bytes = FILES_PER_CHUNK * FILE_BYTES
            upload = TreeUpload(data.client, data.create(), None, jobs=1, chunk_bytes=chunk_bytes)
            assert not upload.run(lambda failed: walk_source(os.fsencode(folder), b"", failed)).failures
        yield server


def read(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert os.read(descriptor, FILE_BYTES + 1) == content(int(path.name))
    finally:
        os.close(descriptor)


def read_at_random(place: Path) -> None:
    choose = random.Random(place.name)
    for _ in range(RANDOM_READS):
        read(place / "random" / f"{choose.randrange(FILES):03}")


def read_plan(place: Path, rank: int) -> None:
    name = f"folder=planned,seed=1,group={GROUP_CHUNKS},rank={rank},world=2"
    for line in (place / ".dieselfs/shuffle" / name).read_text().splitlines():
        read(place / line)


def requests(stats: Stats) -> int:
    return int(stats["reads"]["at_once"] + stats["reads"]["waited_s"]["count"])


def sums(stats: list[Stats], given_bytes: int) -> dict[str, tuple[int, int]]:
    """Each equation of the documentation: two numbers that are the same once nothing is under way."""
    found: dict[str, tuple[int, int]] = {}
    for number, each in enumerate(stats):
        plans, fetches, requested = each["page_cache"], each["fetches"], each["requested"]
        found |= {
            f"plans of {number}": (plans["planned_files"], plans["hits"] + plans["misses"]),
            f"requested by {number}": (
                requested["extents"],
                requested["from_node"]
                + requested["from_peers"]
                + requested["from_servers"]
                + requested["failed"],
            ),
            f"bytes requested by {number}": (
                requested["bytes"],
                requested["node_bytes"]
                + requested["peer_bytes"]
                + requested["server_bytes"]
                + requested["failed_bytes"],
            ),
            f"fetched by {number}": (
                fetches["chunks"] + fetches["ranges"],
                requested["extents"] - requested["failed"],
            ),
            f"bytes fetched by {number}": (
                fetches["chunk_bytes"] + fetches["range_bytes"],
                requested["bytes"] - requested["failed_bytes"],
            ),
        }
    masters = [each for each in stats if each["job"]["is_master"]]
    found["between nodes"] = (
        sum(each["requested"]["peer_bytes"] for each in stats),
        sum(each["served"]["bytes"] for each in masters),
    )
    found["out of the server"] = (
        sum(each["node_cache"]["fetched_bytes"] for each in masters)
        + sum(each["requested"]["server_bytes"] for each in stats),
        given_bytes,
    )
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_the_counters_of_a_job_add_up(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "nodes").mkdir()
    with (
        Dataset(server.settings(), "counted") as data,
        job_mounts(server, "counted", tmp_path / "nodes", NODES, workers=workers) as places,
        ThreadPoolExecutor(len(places)) as threads,
    ):
        given_before = data.client.status().metrics["payloads.sent_bytes"]
        list(threads.map(read_at_random, places))
        before = [stats_of(place) for place in places]
        list(threads.map(read_plan, places[:2], (0, 1)))

        deadline_s = time.monotonic() + PATIENCE_S
        while True:  # what is read ahead comes to its end
            stats = [stats_of(place) for place in places]
            found = sums(stats, data.client.status().metrics["payloads.sent_bytes"] - given_before)
            if all(one == other for one, other in found.values()) or time.monotonic() > deadline_s:
                break
        assert {name: one for name, (one, _) in found.items()} == {
            name: other for name, (_, other) in found.items()
        }
        for each, earlier in zip(stats[:2], before[:2], strict=True):
            plans = each["page_cache"]
            # What is behind the last tripwire is not known to have been read.
            assert 0 < plans["planned_files"] <= FILES // 2
            assert 0 < plans["misses"] <= requests(each) - requests(earlier)
        assert stats[2]["page_cache"]["planned_files"] == 0
        assert found["between nodes"][0] > 0
        assert sum(job["is_master"] for job in (each["job"] for each in stats)) == 2
        assert found["out of the server"][0] <= CHUNKS * FILES_PER_CHUNK * FILE_BYTES
