"""The mounts of a job keep each important file once: on one node, where the others find it."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from dieselfs.encryption.cipher import DatasetCipher
from dieselfs.errors import Unavailable
from dieselfs.importance.score_lines import LossBatch
from dieselfs.samples.sample_store import SampleStore
from dieselfs.sources.decrypted import Decryption
from dieselfs_client.cluster.job_files import Found
from tests.support.dataset import PackedDataset
from tests.support.job_mount_files import CIPHER, FILE_BYTES, Job, Mount, name_of, packed_files
from tests.support.peer_nodes import running_node

FILES, CAPACITY = 300, 30


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "encrypted"])
def packed(request: pytest.FixtureRequest) -> PackedDataset:
    return packed_files(FILES, 1000, request.param)


@pytest.fixture
def job(packed: PackedDataset, tmp_path: Path) -> Iterator[Job]:
    with ExitStack() as stack:
        yield Job(packed, str(tmp_path), stack, CAPACITY)


def test_each_file_is_kept_once_and_hits_are_counted_where_they_are(job: Job) -> None:
    mounts = job.add("a", "b", "c")
    files = [*job.by_file]
    random.Random(1).shuffle(files)
    where = Counter[str]()
    for first in range(0, FILES, 30):  # each file is read by one mount
        where += mounts[first // 30 % 3].read(files[first : first + 30])
    assert where == {"elsewhere": FILES}
    held = job.held()
    assert len(held) == len({*held}) == 3 * CAPACITY and all(len(each.held()) == CAPACITY for each in mounts)

    found = [mount.read(held) for mount in mounts]
    assert found == [{"own": CAPACITY, "peers": 2 * CAPACITY}] * 3
    assert job.held() == held
    stored = {
        file: content for mount in mounts for file in mount.held() if (content := mount.files.read(file))
    }
    is_plain = [content == job.by_file[file] for file, content in stored.items()]
    assert len(is_plain) == len(held) and {*is_plain} == {not job.packed.snapshot.header.is_encrypted}


def test_important_files_take_the_place_of_others(job: Job) -> None:
    mounts = job.add("a", "b", "c")
    files = sorted(job.by_file)
    for mount in mounts:
        mount.read(files)
        losses = LossBatch([name_of(n) for n in range(FILES)], np.arange(FILES, dtype=np.float64))
        mount.scored.take(losses)
    for first in range(0, FILES, 50):
        mounts[first % 3].read(files[first : first + 50])
    held = job.held()
    numbers = [int(job.by_file[file][:5]) for file in held]
    assert len(held) == 3 * CAPACITY and min(numbers) > FILES - 4 * CAPACITY
    assert mounts[0].read(held)["elsewhere"] == 0


def test_a_node_that_is_gone_is_done_without(job: Job) -> None:
    mounts = job.add("a", "b", "c")
    files = [*job.by_file]
    mounts[0].read(files)
    gone = job.nodes["c"].member
    with running_node(job.packed, "c") as other:
        job.nodes["c"] = other
    job.members.add("c")  # still, as before its lease ends
    assert job.others("a")[-1] != gone
    for _ in range(2):
        where = mounts[0].read(files)
        assert where["own"] == where["peers"] == CAPACITY
    job.members.remove("c")
    mounts[0].read(files)
    assert mounts[0].read(files)["peers"] == CAPACITY


def test_files_come_from_elsewhere_while_there_is_no_key(tmp_path: Path) -> None:
    """Of the next daemon, which asks a server for it: a reader meets the error when it reads."""
    with ExitStack() as stack:
        job = Job(packed_files(FILES, 1000, True), str(tmp_path), stack, CAPACITY)
        mounts = job.add("a", "b")
        mounts[0].read([*job.by_file])
        again, answers = Mount(job, "a"), iter([None, None, CIPHER])

        def cipher() -> DatasetCipher:
            if (answer := next(answers)) is None:
                raise Unavailable("no server answers")
            return answer

        again.files.decryption = Decryption(job.packed.snapshot, cipher)
        for _ in range(2):  # asks once for all files
            assert again.files.fetch([*job.by_file]) == Found({}, (), ())
        assert again.read(job.held()) == {"own": CAPACITY, "peers": CAPACITY}


def test_no_node_is_asked_before_the_job_is_known(job: Job) -> None:
    (mount,) = job.add("a")

    mount.client = None
    assert mount.read([*job.by_file])["elsewhere"] == FILES and not mount.held()


def test_files_move_when_a_node_joins_and_when_it_leaves(job: Job) -> None:
    first, second = job.add("a", "b")
    first.read([*job.by_file])
    before = job.held()
    (third,) = job.add("c")
    for mount in (first, second):
        mount.files.hand_over()
    moved = third.held()
    assert job.held() == before and len(moved) > CAPACITY // 2
    assert first.read(before)["elsewhere"] == 0

    job.members.remove("c")
    third.files.hand_over(is_leaving=True)
    assert job.held() == before and not third.held()
    assert second.read(before)["elsewhere"] == 0


def test_wrong_bytes_are_replaced(job: Job) -> None:
    first, second = job.add("a", "b")
    first.read([*job.by_file])
    own, other = first.held()[0], second.held()[0]
    for mount, file in ((first, own), (second, other)):
        assert mount.files._store is not None and mount.files._store.write(file, b"x" * FILE_BYTES)
    assert first.read([own, other]) == {"elsewhere": 2}
    assert first.read([own, other]) == {"own": 1, "peers": 1}


def test_less_memory_than_allowed_holds_less(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    (mount,) = job.add("a")
    write = SampleStore.write

    def write_some(store: SampleStore, sample: int, content: bytes) -> bool:
        return len(store.samples()) < 10 and write(store, sample, content)

    monkeypatch.setattr(SampleStore, "write", write_some)
    mount.read([*job.by_file])
    assert len(mount.held()) == mount.scored.used == 10
    assert mount.read([*job.by_file])["own"] == 10


def test_the_next_daemon_keeps_the_same_files(job: Job) -> None:
    (mount,) = job.add("a")
    mount.read([*job.by_file])
    held = sorted(mount.held())
    again = Mount(job, "a")  # the first has the folder open, as one that is killed until it is gone
    assert again.read(held) == {"own": len(held)}
    assert again.scored.kept().tolist() == held


def test_a_mount_that_does_not_keep_files_wants_none(job: Job) -> None:
    first, second = job.add("a", "b")
    second.files._room = None
    first.read([*job.by_file])
    assert first.read([*job.by_file])["own"] == CAPACITY and not second.held()
