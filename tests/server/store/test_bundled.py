"""Chunks in bundles are read, listed and deleted as all others, also by servers that share the store."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from dieselfs.chunk.bundle import bundled_id, encode_bundle, new_bundle_id
from dieselfs.chunk.ids import chunk_name, chunk_time_s
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound
from dieselfs_server.store import bundled
from dieselfs_server.store.bundled import BundledStore
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.posix import PosixStore
from dieselfs_server.store.wrapper import StoreWrapper, delete_chunks
from tests.conformance.chunk_store_suite import DATASET_ID, OTHER_ID, ChunkStoreSuite, chunk_at
from tests.support.counted_calls import Arguments, CountedCalls, Result


class TestBundledStore(ChunkStoreSuite):
    """Of ordinary chunks, nothing differs."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        yield BundledStore(PosixStore(tmp_path))


def bundle_at(time_s: int, heads: list[bytes]) -> tuple[bytes, dict[bytes, bytes]]:
    """A bundle ID, and the heads by the IDs of their chunks."""
    bundle_id = new_bundle_id(chunk_at(time_s))
    return bundle_id, {bundled_id(bundle_id, number): head for number, head in enumerate(heads, 1)}


def put(
    store: ObjectStore, bundle_id: bytes, chunks: dict[bytes, bytes], dataset_id: bytes = DATASET_ID
) -> None:
    store.put(dataset_id, bundle_id, [encode_bundle(bundle_id, list(chunks.values()))])


def content(store: ObjectStore) -> dict[bytes, bytes]:
    listed = list(store.list_chunks(DATASET_ID))
    assert listed == sorted(listed)
    return {each: store.get_range(DATASET_ID, each, 0, store.size(DATASET_ID, each)) for each in listed}


def heads(count: int, seed: int = 0) -> list[bytes]:
    chosen = random.Random(seed)
    return [chosen.randbytes(chosen.randint(1, 900)) for _ in range(count)]


def test_any_deletes_of_two_servers_leave_what_a_dictionary_has() -> None:
    """Each lists before it reads, as all passes over chunks do."""
    for seed in range(8):
        chosen, below = random.Random(seed), MemoryStore()
        servers = [BundledStore(below), BundledStore(below)]
        expected = {chunk_at(time_s): b"%d" % time_s for time_s in (4, 5, 6, 7)}
        for chunk_id, data in expected.items():
            servers[0].put(DATASET_ID, chunk_id, [data])
        for time_s in (5, 5, 6):
            bundle_id, chunks = bundle_at(time_s, heads(9, seed))
            put(servers[0], bundle_id, chunks)
            expected |= chunks
        while expected:
            server = chosen.choice(servers)
            assert content(server) == expected
            since = chosen.randint(4, 8)
            assert list(server.list_chunks(DATASET_ID, since)) == sorted(
                each for each in expected if chunk_time_s(each) >= since
            )
            gone = chosen.sample(sorted(expected), min(len(expected), chosen.choice((1, 4, 15))))
            if chosen.random() < 0.5:
                delete_chunks(server, DATASET_ID, gone)
            else:
                for each in gone:
                    server.delete(DATASET_ID, each)
            for each in gone:
                del expected[each]
                with pytest.raises(NotFound, match=chunk_name(each)):
                    server.size(DATASET_ID, each)
        assert all(content(server) == {} for server in servers)
        assert list(below.list_chunks(DATASET_ID)) == [] and below.list_records("") == []


class Killed(Exception):
    """The process has ended before a call."""


class Dying(StoreWrapper):
    """The store of a process that ends after this number of calls."""

    def __init__(self, store: ObjectStore, calls: int) -> None:
        super().__init__(store)
        self._left = calls

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        if not self._left:
            raise Killed
        self._left -= 1
        return call(*args)


def test_a_deletion_that_is_killed_at_any_call_and_repeated_leaves_no_record() -> None:
    for calls in count():
        below, (bundle_id, chunks) = MemoryStore(), bundle_at(5, heads(9))
        first, second, third, *rest = chunks
        put(below, bundle_id, chunks)
        delete_chunks(BundledStore(below), DATASET_ID, [first, third])
        try:
            delete_chunks(BundledStore(Dying(below, calls)), DATASET_ID, [second, *rest])
            break
        except Killed:
            assert list(BundledStore(below).list_chunks(DATASET_ID)) in ([], [second, *rest])
        delete_chunks(BundledStore(below), DATASET_ID, [second, *rest])
        assert list(below.list_chunks(DATASET_ID)) == [] and below.list_records("") == []
    assert calls > 4


def test_a_range_behind_the_end_of_a_head_is_damage() -> None:
    """The next head begins there."""
    store, (bundle_id, chunks) = BundledStore(MemoryStore()), bundle_at(5, [b"12345", b"6789"])
    put(store, bundle_id, chunks)
    first, second = chunks
    assert (
        store.get_range(DATASET_ID, first, 1, 4) == b"2345"
        and store.get_range(DATASET_ID, first, 5, 0) == b""
    )
    for offset, length in ((0, 6), (5, 1), (9, 1)):
        with pytest.raises(Damaged, match=f"chunk {chunk_name(first)}: offset {offset}:"):
            store.get_range(DATASET_ID, first, offset, length)
    assert store.open_chunk(DATASET_ID, second) is None
    for missing in (bundled_id(bundle_id, 3), bundled_id(new_bundle_id(chunk_at(5)), 1)):
        with pytest.raises(NotFound, match=chunk_name(missing)):
            store.get_range(DATASET_ID, missing, 0, 1)


def test_a_range_behind_all_heads_asks_the_store_for_nothing(tmp_path: Path) -> None:
    """A payload is asked for as if each chunk had its own; a file system refuses negative lengths."""
    store, (bundle_id, chunks) = BundledStore(PosixStore(tmp_path)), bundle_at(5, [b"12345", b"6789"])
    put(store, bundle_id, chunks)
    for chunk_id in chunks:
        with pytest.raises(Damaged, match=f"chunk {chunk_name(chunk_id)}: offset 1000:"):
            store.get_range(DATASET_ID, chunk_id, 1000, 7)


class Disturbed(StoreWrapper):
    """`disturbs`: gets what the first read gives, and returns what its reader gets."""

    def __init__(self, store: ObjectStore, disturbs: Callable[[bytes], bytes]) -> None:
        super().__init__(store)
        self._disturbs: list[Callable[[bytes], bytes]] = [disturbs]

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        content = super().get_range(dataset_id, chunk_id, offset, length)
        return self._disturbs.pop()(content) if self._disturbs else content


def test_wrong_bytes_of_one_read_hide_no_chunks() -> None:
    below, (bundle_id, chunks) = MemoryStore(), bundle_at(5, heads(3))
    put(below, bundle_id, chunks)
    assert content(BundledStore(Disturbed(below, lambda data: data[:-1] + bytes([data[-1] ^ 1])))) == chunks


def test_a_bundle_that_is_deleted_while_it_is_listed_is_not_there() -> None:
    below, (bundle_id, chunks) = MemoryStore(), bundle_at(5, heads(3))
    put(below, bundle_id, chunks)

    def erased(data: bytes) -> bytes:
        below.delete(DATASET_ID, bundle_id)
        return data

    assert list(BundledStore(Disturbed(below, erased)).list_chunks(DATASET_ID)) == []


def test_a_pass_over_many_heads_takes_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = CountedCalls(MemoryStore())
    store, (bundle_id, chunks) = BundledStore(counted), bundle_at(5, heads(1000))
    put(store, bundle_id, chunks)
    assert content(store) == chunks
    assert counted.calls == Counter(put=1, list_chunks=1, list_records=1, get_range=4)
    counted.calls.clear()
    delete_chunks(store, DATASET_ID, list(chunks)[3:500])
    assert counted.calls == Counter(get_range=2, list_records=1, put_record=1)
    monkeypatch.setattr(bundled, "WINDOW_BYTES", 1)
    assert content(BundledStore(counted)) == {each: chunks[each] for each in [*chunks][:3] + [*chunks][500:]}


def test_a_damaged_bundle_is_listed_and_its_neighbours_are_read() -> None:
    below = MemoryStore()
    store, made = BundledStore(below), [bundle_at(time_s, heads(3)) for time_s in (5, 6)]
    for bundle_id, chunks in made:
        put(store, bundle_id, chunks)
    (damaged_id, damaged), (_, sound) = made
    data = bytearray(below.get_range(DATASET_ID, damaged_id, 0, below.size(DATASET_ID, damaged_id)))
    data[45] ^= 1
    below.delete(DATASET_ID, damaged_id)
    below.put(DATASET_ID, damaged_id, [data])
    store = BundledStore(below)
    assert list(store.list_chunks(DATASET_ID)) == [damaged_id, *sound]
    with pytest.raises(Damaged, match=f"bundle {chunk_name(damaged_id)}: offset 40: the index is damaged"):
        store.size(DATASET_ID, next(iter(damaged)))
    store.delete(DATASET_ID, next(iter(damaged)))
    assert below.size(DATASET_ID, damaged_id), "its other chunks may be saved by hand"
    store.delete(DATASET_ID, damaged_id)
    assert content(store) == sound and below.list_records("") == []


@pytest.mark.parametrize("asked", ["size", "open_chunk", "get_range"])
def test_a_bundle_that_is_brought_back_is_read(tmp_path: Path, asked: str) -> None:
    """As a chunk of its own, without a new start of the server."""
    below, (bundle_id, chunks) = PosixStore(tmp_path), bundle_at(5, heads(3))
    store, (first, head) = BundledStore(below), next(iter(chunks.items()))
    with pytest.raises(NotFound):
        getattr(store, asked)(DATASET_ID, first, *((0, 1) if asked == "get_range" else ()))
    put(below, bundle_id, chunks)
    assert store.size(DATASET_ID, first) == len(head)


def test_only_bundles_have_their_ids_and_a_chunk_is_not_there_twice() -> None:
    store, (bundle_id, chunks) = BundledStore(MemoryStore()), bundle_at(5, heads(2))
    with pytest.raises(InvalidInput, match="only bundles have such IDs"):
        store.put(DATASET_ID, bundle_id, [b"\x89DSLC\r\n\x1a"])
    put(store, bundle_id, chunks)
    store.delete(DATASET_ID, next(iter(chunks)))
    for chunk_id in chunks:
        with pytest.raises(AlreadyExists, match=chunk_name(chunk_id)):
            store.put(DATASET_ID, chunk_id, [b"another"])


def test_a_mirror_has_chunks_of_a_bundle_as_objects() -> None:
    """It stores single chunks, under their IDs."""
    below, (_, chunks) = MemoryStore(), bundle_at(5, heads(3))
    store, (first, *rest) = BundledStore(below), chunks
    for chunk_id, head in chunks.items():
        with pytest.raises(NotFound):
            store.size(DATASET_ID, chunk_id)
        store.put(DATASET_ID, chunk_id, [head])
    assert content(store) == content(BundledStore(below)) == chunks
    store.delete(DATASET_ID, first)
    assert list(store.list_chunks(DATASET_ID)) == rest and below.list_records("") == []
    delete_chunks(store, DATASET_ID, rest)
    assert content(store) == {}


def test_a_dropped_dataset_leaves_no_record_and_others_stay() -> None:
    below = MemoryStore()
    store, (bundle_id, chunks) = BundledStore(below), bundle_at(5, heads(3))
    for dataset_id in (DATASET_ID, OTHER_ID):
        put(store, bundle_id, chunks, dataset_id)
        store.delete(dataset_id, bundled_id(bundle_id, 2))
    store.delete_dataset(DATASET_ID)
    assert list(store.list_datasets()) == [OTHER_ID] and list(store.list_chunks(DATASET_ID)) == []
    with pytest.raises(NotFound):
        store.size(DATASET_ID, bundled_id(bundle_id, 1))
    assert len(below.list_records("")) == 1 and len(list(store.list_chunks(OTHER_ID))) == 2
