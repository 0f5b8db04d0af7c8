"""A chunk that is opened for somebody else: the right place in it, and nothing left open when it cannot be."""

import os
from pathlib import Path

import pytest

from dieselfs.errors import Damaged, NotFound, Unavailable
from dieselfs_server.reading.open_payload import open_payload
from dieselfs_server.store.limited import Bounds, LimitedStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.posix import PosixStore
from dieselfs_server.store.tiered import TieredStore
from dieselfs_server.store.wrapper import StoreWrapper
from lab.counting_store import CountingStore
from tests.support.chunks import CHUNK_ID, DATASET_ID, chunk_object, sample_fields

PAYLOAD = bytes(range(250)) * 40
CHUNK = chunk_object(sample_fields(PAYLOAD), PAYLOAD)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_the_payload_is_where_it_says(tmp_path: Path) -> None:
    store = LimitedStore(PosixStore(tmp_path), Bounds())
    store.put(DATASET_ID, CHUNK_ID, [CHUNK])
    before = open_descriptors()
    opened = open_payload(store, DATASET_ID, CHUNK_ID)
    assert opened is not None
    with opened:
        store.delete(DATASET_ID, CHUNK_ID)
        assert os.pread(opened.descriptor, opened.length, opened.start) == PAYLOAD
        assert not os.get_inheritable(opened.descriptor)
        with pytest.raises(OSError):
            os.write(opened.descriptor, b"x")
    assert open_descriptors() == before


def test_what_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    before = open_descriptors()
    with pytest.raises(NotFound):
        open_payload(store, DATASET_ID, CHUNK_ID)
    for content in (b"", CHUNK[:40], b"x" + CHUNK[1:], CHUNK[:24] + b"x" + CHUNK[25:]):
        store.put(DATASET_ID, CHUNK_ID, [content])
        with pytest.raises(Damaged):
            open_payload(store, DATASET_ID, CHUNK_ID)
        store.delete(DATASET_ID, CHUNK_ID)
    assert open_descriptors() == before


def test_a_file_that_cannot_be_read_leaves_nothing_open(tmp_path: Path) -> None:
    class Folders(StoreWrapper):
        def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> int:
            return os.open(tmp_path, os.O_RDONLY)

    before = open_descriptors()
    with pytest.raises(Unavailable, match="directory"):
        open_payload(Folders(MemoryStore()), DATASET_ID, CHUNK_ID)
    assert open_descriptors() == before


def test_stores_without_files_have_none(tmp_path: Path) -> None:
    posix = PosixStore(tmp_path / "slow")
    tiered = TieredStore(PosixStore(tmp_path / "fast"), posix, 1 << 20)
    for store in (MemoryStore(), CountingStore(posix), tiered):
        store.put(DATASET_ID, CHUNK_ID, [CHUNK])
        assert open_payload(store, DATASET_ID, CHUNK_ID) is None
        store.delete(DATASET_ID, CHUNK_ID)
    tiered.close()
