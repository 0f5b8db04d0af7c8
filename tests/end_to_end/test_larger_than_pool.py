"""Three mounts of a job read a plan together, each its share, of a dataset that is larger than the memory of all: each
chunk that is not kept leaves the server once in an epoch."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.limits import KIB, MIB
from dieselfs.transfer.upload import TreeUpload, walk_source
from tests.support.job_mounts import job_mounts, stats_of
from tests.support.server import RunningServer, running_server

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

NODES = ("node-0", "node-1", "node-2")
FILE_BYTES = 16 * KIB
FILES_PER_CHUNK = 16
CHUNKS = 192
FILES = CHUNKS * FILES_PER_CHUNK
CHUNK_BYTES = FILES_PER_CHUNK * FILE_BYTES
GROUP_CHUNKS = 12
"""Enough for a tripwire in each share of a group; what one node owns of two groups is in transit at once."""
MEMORY_BYTES = 20 * MIB
"""Of a mount. More than half of it is for chunks that it owns."""
STEP = 8
"""The nodes read so many files each in turn."""
ATTEMPTS = 3
"""As in `test_job_once.py`: a machine may let a node wait for so long that others do without it."""


def content(number: int) -> bytes:
    return number.to_bytes(4, "little") * (FILE_BYTES // 4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        folder = tmp_path_factory.mktemp("files")
        for number in range(FILES):
            (folder / f"{number}").write_bytes(content(number))
        with Dataset(server.settings(), "large", must_exist=False) as data:
            upload = TreeUpload(data.client, data.create(), None, jobs=1, chunk_bytes=CHUNK_BYTES)
            assert not upload.run(lambda failed: walk_source(os.fsencode(folder), b"", failed)).failures
        yield server


def list_share(epoch: int, place: Path, rank: int) -> list[Path]:
    name = f"seed=7,epoch={epoch},group={GROUP_CHUNKS},rank={rank},world={len(NODES)}"
    return [place / line for line in (place / ".dieselfs/shuffle" / name).read_text().splitlines()]


def read_epoch(places: list[Path], epoch: int) -> int:
    """All files, each on one node; how many there were."""
    with ThreadPoolExecutor(len(places)) as threads:
        shares = list(threads.map(partial(list_share, epoch), places, range(len(places))))
    steps = ([share[first : first + STEP] for first in range(0, len(share), STEP)] for share in shares)
    turns = [path for turn in zip_longest(*steps, fillvalue=[]) for step in turn for path in step]
    for path in turns:
        assert path.read_bytes() == content(int(path.name))
    return len({path.name for path in turns})


def on_shelves(places: list[Path], what: str) -> int:
    return sum(stats_of(place)["node_cache"][what] for place in places)


def is_disturbed(places: list[Path]) -> bool:
    """Whether a node has been late; then others ask the servers, and take chunks in its place."""
    peers = [stats_of(place)["peers"] for place in places]
    return any(each["failures"] or each["hedges_sent"] for each in peers)


def read_twice(places: list[Path], chunks: int) -> bool:
    """Check an epoch and the next one; False if the machine did not let the nodes read undisturbed."""
    assert chunks == CHUNKS
    shelves = sum(stats_of(place)["memory"]["allotted_bytes"]["node_cache"] for place in places)
    assert shelves < 0.8 * CHUNKS * CHUNK_BYTES
    assert read_epoch(places, 0) == FILES
    first = on_shelves(places, "fetched_chunks")
    pinned = on_shelves(places, "pinned_bytes") // CHUNK_BYTES
    in_transit = on_shelves(places, "evictable_bytes") // CHUNK_BYTES
    assert read_epoch(places, 1) == FILES
    again = on_shelves(places, "fetched_chunks") - first
    if is_disturbed(places):
        return False
    assert first == CHUNKS and pinned > CHUNKS // 4
    assert CHUNKS - pinned - in_transit <= again <= CHUNKS - pinned
    assert on_shelves(places, "pinned_bytes") // CHUNK_BYTES == pinned, "nothing of it was given up"
    for place in places:
        assert stats_of(place)["requested"]["failed"] == 0
    return True


def test_each_chunk_that_is_not_kept_leaves_the_server_once_in_an_epoch(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for attempt in range(ATTEMPTS):
        folder = tmp_path / f"nodes-{attempt}"
        folder.mkdir()
        with (
            Dataset(server.settings(), "large", must_exist=False) as data,
            job_mounts(server, "large", folder, NODES, memory_bytes=MEMORY_BYTES) as places,
        ):
            if read_twice(places, data.snapshot.chunk_count):
                return
    raise AssertionError(f"nodes were late in each of {ATTEMPTS} runs")
