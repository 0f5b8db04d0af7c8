"""The important files of several mounts, through their services: as many as all caches together have room for, each
once, whatever chunks they span; and hits are counted as they are.
"""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from dieselfs.importance.score_lines import LossBatch
from dieselfs.samples.sample_pool import pooled_sizes
from dieselfs_client.prefetch import kept_files
from tests.support.job_mount_files import Job, Mount, PlanReader, name_of, packed_files

SPANNING, SPANNING_CHUNK_BYTES = 40, 50
"""Each of these files has two or three extents."""


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("times", [1, 7], ids=["", "whose parts are due at different times"])
@pytest.mark.parametrize("waiting_bytes", [1 << 20, 100], ids=["", "few of which may wait"])
def test_files_that_span_chunks_are_kept(
    waiting_bytes: int, times: int, is_encrypted: bool, tmp_path: Path
) -> None:
    packed = packed_files(SPANNING, SPANNING_CHUNK_BYTES, is_encrypted)
    with ExitStack() as stack:
        job = Job(packed, str(tmp_path), stack, SPANNING - 1)
        first, second = (PlanReader(mount, waiting_bytes) for mount in job.add("a", "b"))
        files = sorted(job.by_file)
        assert (packed.snapshot.column("counts")[files] > 1).all()
        first.read(files, times)
        assert first.fetched == {*files} and first.counted() == {
            "reads": SPANNING,
            "hits": 0,
            "from_peers": 0,
        }
        held, at_first = job.held(), first.mount.held()
        second.read(files, times)
        assert second.fetched == {*files}.difference(held)
        assert second.counted() == {"reads": SPANNING, "hits": len(held), "from_peers": len(at_first)}
        received = second.mount.peers().metrics.as_dict()["peers"]["received_bytes"]
        sent = int(pooled_sizes(packed.snapshot, np.array(at_first)).sum())
        if waiting_bytes > 100:
            assert held == files and received == sent  # each once
        parts = [parts for reader in (first, second) for parts in (reader.kept._found, reader.kept._came)]
        assert all(sum(map(len, each._contents.values())) == each._bytes <= waiting_bytes for each in parts)


def test_parts_that_nobody_may_want_do_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before an order by importance, and of files that are too large for the job."""
    packed = packed_files(SPANNING, SPANNING_CHUNK_BYTES)
    with ExitStack() as stack:
        (mount,) = Job(packed, str(tmp_path), stack, SPANNING).add("a")
        reader, payloads = PlanReader(mount), packed.source().payloads
        of_chunk = reader.table.of_chunk(0)

        def waiting() -> int:
            assert not reader.kept.wanted(of_chunk, memoryview(payloads[0]), of_chunk.offsets)
            return reader.kept._came._bytes

        assert waiting() == 0
        reader.read(reader.table.of_chunk(5).nodes.tolist())
        assert waiting() > 0
        reader.kept._came.take(of_chunk.numbers.tolist())
        before = reader.kept._came._bytes
        monkeypatch.setattr(kept_files, "PEER_ANSWER_BYTES_MAX", int(of_chunk.sizes.min()) - 1)
        assert waiting() == before


NODES, FILES, CAPACITY = 8, 10_000, 1_000


def read_together(readers: list[PlanReader], files: list[int]) -> Counter[str]:
    """Each reads its share; returns what the mounts report, which is what has happened."""
    before = sum((reader.counted() for reader in readers), Counter())
    fetched = 0
    for number, reader in enumerate(readers):
        reader.read(files[number :: len(readers)])
        fetched += len(reader.fetched)
    counted = sum((reader.counted() for reader in readers), Counter()) - before
    assert counted["reads"] == len(files) == counted["hits"] + fetched
    return counted


def most_important(mount: Mount, files: list[int]) -> list[int]:
    """Those of its own files that a mount should have, of all, which are ordered by importance."""
    pool = mount.files._pool_now()
    assert pool is not None
    own = [file for file, owner in zip(files, pool.owners(files), strict=True) if owner == mount.name]
    return sorted(own[:CAPACITY])


def test_eight_nodes_hold_eight_times_as_many_files(tmp_path: Path) -> None:
    """Also after one has left and another has joined."""
    packed, shuffled = packed_files(FILES, 60_000), np.random.default_rng(1).permutation
    with ExitStack() as stack:
        job = Job(packed, str(tmp_path), stack, CAPACITY)
        readers = [PlanReader(mount) for mount in job.add(*(f"node-{number}" for number in range(NODES)))]
        files: list[int] = shuffled(sorted(job.by_file)).tolist()
        few = files[: 2 * CAPACITY]
        assert read_together(readers, few)["hits"] == 0 and job.held() == sorted(few)
        found = read_together(readers, shuffled(few).tolist())
        assert found["hits"] == len(few) and found["from_peers"] > len(few) * 3 // 4
        assert read_together(readers, files)["hits"] == len(few)
        assert len({*job.held()}) == len(job.held()) == NODES * CAPACITY

        by_importance: list[int] = shuffled(files).tolist()
        numbers = [int(job.by_file[file][:5]) for file in by_importance]
        losses = LossBatch([*map(name_of, numbers)], np.arange(FILES, 0, -1, dtype=np.float64))

        def check() -> None:
            for reader in readers:
                assert sorted(reader.mount.held()) == most_important(reader.mount, by_importance)

        for reader in readers:
            reader.mount.scored.take(losses)
        read_together(readers, files)
        check()
        held = job.held()
        assert len(held) == NODES * CAPACITY == read_together(readers, held)["hits"]

        gone = readers.pop().mount
        job.members.remove(gone.name)
        gone.files.hand_over(is_leaving=True)
        check()
        assert not gone.held() and len(job.held()) == (NODES - 1) * CAPACITY

        (fresh,) = job.add("another")
        fresh.scored.take(losses)
        for reader in readers:
            reader.mount.files.hand_over()
        held = job.held()
        assert len({*held}) == len(held) == (NODES - 1) * CAPACITY and len(fresh.held()) > CAPACITY // 2
        readers.append(PlanReader(fresh))
        assert read_together(readers, held)["hits"] == len(held)
        read_together(readers, files)
        check()
        assert len(job.held()) == NODES * CAPACITY
