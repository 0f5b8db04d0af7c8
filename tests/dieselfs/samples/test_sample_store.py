"""What is written can be read by any process; nothing stays behind."""

import copy
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.samples.sample_store import SampleStore, new_name, remove_abandoned
from dieselfs.samples.stored_reads import StoredReads


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SampleStore]:
    one = SampleStore(new_name(), str(tmp_path))
    yield one
    one.close()


class Counted:
    """A source that counts what is read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def read_many(self, nodes: Sequence[int]) -> list[bytes]:
        self.read += nodes
        return [b"content %d" % node for node in nodes]

    def other(self) -> str:
        return "of the source"


def test_what_was_written_is_read_until_it_is_dropped(store: SampleStore) -> None:
    assert store.read(3) is None
    for content in (b"", b"abc", bytes(100_000)):
        store.write(3, content)
        assert copy.copy(store).read(3) == content
    store.drop([3, 4])
    assert store.read(3) is None


def test_a_source_is_asked_for_what_is_missing(store: SampleStore) -> None:
    source = Counted()
    reads = StoredReads(source, store)
    assert reads.read_many([1, 2, 1]) == [b"content 1", b"content 2", b"content 1"]
    assert reads.read_many([2, 3]) == [b"content 2", b"content 3"]
    store.drop([2])
    assert copy.copy(reads).read_many([1, 3]) == [b"content 1", b"content 3"]
    assert reads.read_many([2]) == [b"content 2"]
    assert source.read == [1, 2, 3, 2]
    assert reads.other() == "of the source"
    with pytest.raises(AttributeError):
        _ = reads.missing


def test_without_space_samples_come_from_the_source(store: SampleStore) -> None:
    os.rename(store.folder, store.folder + ".gone")
    source = Counted()
    assert StoredReads(source, store).read_many([1, 1]) == [b"content 1"] * 2
    os.rename(store.folder + ".gone", store.folder)


def test_the_folder_ends_with_the_last_that_uses_it(tmp_path: Path) -> None:
    name = new_name()
    first, second = SampleStore(name, str(tmp_path)), SampleStore(name, str(tmp_path))
    first.write(1, b"one")
    first.close()
    assert second.read(1) == b"one"
    second.close()
    second.close()
    assert not os.listdir(tmp_path)


def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path: Path, store: SampleStore) -> None:
    script = (
        "import sys, time; from dieselfs.samples.sample_store import SampleStore, new_name\n"
        f"store = SampleStore(new_name(), {str(tmp_path)!r}); store.write(1, b'one')\n"
        "print(store.folder, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = process.stdout.readline().strip()
        remove_abandoned(str(tmp_path))
        assert os.path.exists(folder)
        process.send_signal(signal.SIGKILL)
    assert os.path.exists(folder)
    remove_abandoned(str(tmp_path))
    assert not os.path.exists(folder) and os.path.exists(store.folder)


def test_a_folder_that_cannot_be_made() -> None:
    with pytest.raises(InvalidInput, match=r"no memory for samples: .*cache_share=0"):
        SampleStore(new_name(), "/proc")
