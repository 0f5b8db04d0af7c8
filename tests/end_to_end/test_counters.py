"""The counters of a job add up: docs/cache.md, "Figures". Three mounts on two nodes, plans and random reads."""

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dieselfs.dataset import Dataset
from dieselfs.upload import TreeUpload, walk_source
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
        with Dataset(server.settings(), "counted", is_created=False) as data:
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
    return int(stats["reads"]["at_once"] + stats["reads"]["waited"])


def sums(stats: list[Stats], given_bytes: int) -> dict[str, tuple[int, int]]:
    """Each equation of the documentation: two numbers that are the same once nothing is under way."""
    found: dict[str, tuple[int, int]] = {}
    for number, each in enumerate(stats):
        plans, fetches, asked = each["plan_reads"], each["fetches"], each["job"]["asked"]
        found |= {
            f"plans of {number}": (plans["files"], plans["from_page_cache"] + plans["asked"]),
            f"asked by {number}": (
                asked["asked"],
                asked["own"] + asked["from_peers"] + asked["from_servers"] + asked["failed"],
            ),
            f"bytes asked by {number}": (
                asked["asked_bytes"],
                asked["own_bytes"] + asked["peer_bytes"] + asked["server_bytes"] + asked["failed_bytes"],
            ),
            f"fetched by {number}": (fetches["chunks"] + fetches["ranges"], asked["asked"] - asked["failed"]),
            f"bytes fetched by {number}": (
                fetches["chunk_bytes"] + fetches["range_bytes"],
                asked["asked_bytes"] - asked["failed_bytes"],
            ),
        }
    jobs = [each["job"] for each in stats]
    masters = [job for job in jobs if job["is_master"]]
    found["between nodes"] = (
        sum(job["asked"]["peer_bytes"] for job in jobs),
        sum(job["answered"]["answered_bytes"] for job in masters),
    )
    found["out of the server"] = (
        sum(job["shelf"]["load_bytes"] for job in masters)
        + sum(job["asked"]["server_bytes"] for job in jobs),
        given_bytes,
    )
    return found


def test_the_counters_of_a_job_add_up(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "nodes").mkdir()
    with (
        Dataset(server.settings(), "counted") as data,
        job_mounts(server, "counted", tmp_path / "nodes", ["node-0", "node-1", "node-0"]) as places,
        ThreadPoolExecutor(len(places)) as threads,
    ):
        given_before = data.client.status().payload_bytes_given
        list(threads.map(read_at_random, places))
        before = [stats_of(place) for place in places]
        list(threads.map(read_plan, places[:2], (0, 1)))

        deadline_s = time.monotonic() + PATIENCE_S
        while True:  # what is read ahead comes to its end
            stats = [stats_of(place) for place in places]
            found = sums(stats, data.client.status().payload_bytes_given - given_before)
            if all(one == other for one, other in found.values()) or time.monotonic() > deadline_s:
                break
        assert {name: one for name, (one, _) in found.items()} == {
            name: other for name, (_, other) in found.items()
        }
        for each, earlier in zip(stats[:2], before[:2], strict=True):
            plans = each["plan_reads"]
            # What is behind the last tripwire is not known to have been read.
            assert 0 < plans["files"] <= FILES // 2
            assert 0 < plans["asked"] <= requests(each) - requests(earlier)
        assert stats[2]["plan_reads"]["files"] == 0
        assert found["between nodes"][0] > 0
        assert sum(job["is_master"] for job in (each["job"] for each in stats)) == 2
        assert found["out of the server"][0] <= CHUNKS * FILES_PER_CHUNK * FILE_BYTES
