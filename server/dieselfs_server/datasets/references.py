"""References between chunks, so that no purge erases bytes that another chunk needs. Blocks.

A copy inside the servers stores chunks whose payload is that of a chunk which is there. The header in the object store
is the reference: a payload stays while a header of the store names it. Records of the object store are the index:

    refers-SOURCE-TARGET-TIME-RANDOM    chunks of dataset TARGET, and the chunks of SOURCE that they refer to
    erasing-SOURCE-TIME-RANDOM          chunks of SOURCE that are about to be erased; none stands for all
    remains-SOURCE                      the name of a removed dataset, of which some chunks stay

A copy writes its record, and looks then whether the chunks are there and not about to be erased. A purge writes its
record, and looks then for references. So one of them sees the other one, on any servers, and without a lock. A record
of a copy counts for CLAIM_S even before its chunks are stored; then only those that are stored count. If these records
are lost, a rebuild or `fsck --repair` makes them again from the headers.
"""

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from dieselfs.chunk.bundle import bundle_of, is_bundled
from dieselfs.chunk.format import ChunkHeader, Preamble
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.digests import EXTENT_DIGEST_BYTES, extent_digest_of
from dieselfs.errors import Damaged, DieselfsError, NotFound, StorageFull, Unavailable
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.ordered_reads import read_in_order
from dieselfs_server.store.wrapper import delete_chunks, keep_older_servers_out

CLAIM_S = 24 * 3600
"""How long a record counts before its chunks are stored, and how long an interrupted purge keeps copies away."""
WORK_S = 3600.0
"""A copy, or a purge, stores or erases the chunks of its record within this time, or ends: clocks may differ."""
PAIRS_MAX = 16_384
"""Of one record."""
RECORDS_MAX = 64
"""Small records of two datasets, before a purge makes one of them: each is read by every purge."""

TRIES_MAX = 16
"""Of reading all records while others remove some."""

Chunk = tuple[Preamble, ChunkHeader]
Pair = tuple[bytes, bytes]
"""IDs: of the chunk that refers, and of the one that has the bytes."""

_OPEN, _SETTLED = b"\0", b"\1"


class StoreFull(StorageFull):
    """The object store has no room for a chunk or its references. It is not stored."""


class NotClaimed(Unavailable):
    """The references of a chunk could not be recorded. It is not stored."""


class BeingErased(NotFound):
    """A purge erases a chunk, or has erased it: it can have no new references."""


@dataclass(frozen=True, slots=True)
class _Record:
    name: str
    source_id: bytes
    target_id: bytes
    time_s: int
    is_settled: bool
    body: bytes

    @property
    def pairs(self) -> list[Pair]:
        """Made when they are needed: they take several times as much memory as the body."""
        ids = _split(self.body)
        return list(zip(ids[::2], ids[1::2], strict=True))


class References:
    """The references of a store. Thread-safe. All methods may raise Damaged for a record, Unavailable, StorageFull."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @contextmanager
    def claimed(self, target_id: bytes, chunks: Iterable[Chunk], now_s: int) -> Iterator[None]:
        """A block that stores chunks; those that refer to others refer to one dataset. Their references count from
        before the block on, and for CLAIM_S after an error in it. Raises BeingErased, NotClaimed and StoreFull before
        the block; then they do not count.
        """
        found = defaultdict[bytes, list[Pair]](list)
        for preamble, header in chunks:
            note_reference(found, preamble.chunk_id, header)
        if not found:
            yield
            return
        ((source_id, pairs),) = found.items()
        name, until_s = f"{_refers(source_id)}{target_id.hex()}-{_stamp(now_s)}", time.monotonic() + WORK_S
        try:
            keep_older_servers_out(self._store)
            self._store.put_record(name, _packed(_OPEN, pairs))
            self._check_there(source_id, {chunk_id for _, chunk_id in pairs}, now_s)
            if time.monotonic() > until_s:
                raise Unavailable("the object store was too slow for this copy; the same call continues")
        except DieselfsError as error:
            with suppress(DieselfsError):  # else it counts for CLAIM_S
                self._store.delete_record(name)
            if isinstance(error, Unavailable):
                raise NotClaimed(str(error)) from error
            if isinstance(error, StorageFull):
                raise StoreFull(str(error)) from error
            raise
        yield
        # From now on, those that are removed count no more.
        self._store.put_record(name, _packed(_SETTLED, pairs))

    def _check_there(self, source_id: bytes, chunk_ids: set[bytes], now_s: int) -> None:
        for name in self._store.list_records(prefix := _erasing(source_id)):
            content = self._store.get_record(name)
            if (
                content is None or _time_s(name, prefix) < now_s - CLAIM_S
            ):  # it has ended since, or was interrupted
                continue
            erased = _unpacked(name, content)[1]
            if not erased or not chunk_ids.isdisjoint(_split(erased)):
                raise BeingErased("a purge erases these chunks")
        with closing(read_in_order(_size, self._store, source_id, chunk_ids)) as sizes:
            for _, size in sizes:
                try:
                    size.result()
                except NotFound as error:
                    raise BeingErased(str(error)) from None

    def within(self, dataset_id: bytes) -> dict[bytes, set[bytes]]:
        """The chunks of a dataset to which its own chunks refer, or may soon, each with these."""
        found: dict[bytes, set[bytes]] = {}
        for record in self._records(f"{_refers(dataset_id)}{dataset_id.hex()}-"):
            for reference, chunk_id in record.pairs:
                found.setdefault(chunk_id, set()).add(reference)
        return found

    def to(self, source_id: bytes, now_s: int) -> dict[bytes, set[bytes]]:
        """The chunks of a dataset that are referred to, each with the IDs of the datasets that do."""
        return self._to(source_id, now_s, is_swept=False)

    def _to(self, source_id: bytes, now_s: int, is_swept: bool) -> dict[bytes, set[bytes]]:
        """`is_swept`: remove the records without references, and make one of many that are settled."""
        found: dict[bytes, set[bytes]] = {}
        # Listed once all are read: what a settled record names was stored before.
        records = sorted(self._records(_refers(source_id)), key=attrgetter("target_id"))
        for target_id, of_target in groupby(records, attrgetter("target_id")):
            several = list(of_target)
            there = self._stored(target_id, several)
            merged = list[_Record]()
            for record in several:
                is_claim = not record.is_settled and record.time_s >= now_s - CLAIM_S
                pairs = [pair for pair in record.pairs if is_claim or _is_in(there, pair[0])]
                for _, chunk_id in pairs:
                    found.setdefault(chunk_id, set()).add(target_id)
                if is_swept and not pairs:
                    self._store.delete_record(record.name)
                elif is_swept and record.is_settled and len(record.body) < 2 * CHUNK_ID_BYTES * PAIRS_MAX:
                    merged.append(record)
            if len(merged) > RECORDS_MAX:
                pairs = [pair for record in merged for pair in record.pairs if _is_in(there, pair[0])]
                self.record(target_id, {source_id: pairs}, now_s)
                for record in merged:
                    self._store.delete_record(record.name)
        return found

    def _stored(self, target_id: bytes, records: Iterable[_Record]) -> set[bytes]:
        """Those of the chunks in records that are stored, and bundles that are listed themselves: of a dataset that has
        many more chunks, the others take no memory.
        """
        named = {reference for record in records for reference, _ in record.pairs}
        named |= {bundle_of(reference) for reference in named if is_bundled(reference)}
        return named.intersection(self._store.list_chunks(target_id))

    def erase(
        self,
        source_id: bytes,
        chunk_ids: Sequence[bytes],
        now_s: int,
        erased: Callable[[bytes], object],
        proceed: Callable[[], object] = lambda: None,
    ) -> None:
        """Erase the chunks that nobody refers to, and call `erased` with each. Raises Unavailable after WORK_S."""
        for first in range(0, len(chunk_ids), PAIRS_MAX):
            part = chunk_ids[first : first + PAIRS_MAX]
            with self._announced(source_id, part, now_s) as until_s:
                referred = self._to(source_id, now_s, is_swept=True)
                free = [chunk_id for chunk_id in part if chunk_id not in referred]
                for _, several in groupby(free, lambda each: bundle_of(each) if is_bundled(each) else each):
                    together = list(several)
                    for _ in together:
                        proceed()
                    if time.monotonic() > until_s:
                        raise Unavailable("the object store is too slow for a purge; the next one continues")
                    delete_chunks(self._store, source_id, together)
                    for chunk_id in together:
                        erased(chunk_id)

    def drop(self, dataset_id: bytes, name: str, now_s: int) -> None:
        """Erase a dataset that is removed, but for the chunks to which others refer, which stay as its remains; and
        what remained of others for its sake. May be repeated.
        """
        self._erase_all(dataset_id, name, now_s)
        for record in self._store.list_records(_refers()):
            if record.split("-")[2] == dataset_id.hex():
                self._store.delete_record(record)
        self.erase_remains(now_s)

    def erase_remains(self, now_s: int) -> None:
        """Erase what is left of removed datasets and nobody refers to any more."""
        for dataset_id, name in self.remains().items():
            self._erase_all(dataset_id, name, now_s)

    def remains(self) -> dict[bytes, str]:
        """The removed datasets of which some chunks stay: IDs and former names."""
        found = {name: self._store.get_record(name) for name in self._store.list_records(_remains())}
        return {
            bytes.fromhex(name.removeprefix(_remains())): content.decode("utf-8", "replace")
            for name, content in found.items()
            if content is not None
        }

    def _erase_all(self, dataset_id: bytes, name: str, now_s: int) -> None:
        with self._announced(dataset_id, (), now_s):
            referred = self._to(dataset_id, now_s, is_swept=True)
            kept = {chunk_id for chunk_id, targets in referred.items() if targets - {dataset_id}}
            if not kept:
                self._store.delete_dataset(dataset_id)
                self._store.delete_record(_remains(dataset_id))
                return
            self._store.create_record(_remains(dataset_id), name.encode())
            chunk_ids = self._store.list_chunks(dataset_id)
            delete_chunks(self._store, dataset_id, [each for each in chunk_ids if each not in kept])

    @contextmanager
    def _announced(self, source_id: bytes, chunk_ids: Iterable[bytes], now_s: int) -> Iterator[float]:
        """Until the end of the block, no copy can refer to these chunks, none for all; it may erase them until the time
        that it gets.
        """
        prefix = _erasing(source_id)
        name, until_s = prefix + _stamp(now_s), time.monotonic() + WORK_S
        self._store.put_record(name, _packed(_SETTLED, chunk_ids))
        for other in self._store.list_records(prefix):
            if _time_s(other, prefix) < now_s - CLAIM_S:  # of a purge that was interrupted
                self._store.delete_record(other)
        try:
            yield until_s
        finally:
            with suppress(DieselfsError):  # else it is ignored after CLAIM_S
                self._store.delete_record(name)

    def unrecorded(self, target_id: bytes, found: Mapping[bytes, Sequence[Pair]]) -> dict[bytes, list[Pair]]:
        """Those of the references, which chunks of a dataset have in their headers, that no record has, by the ID of
        the dataset that they refer to.
        """
        missing: dict[bytes, list[Pair]] = {}
        for source_id, pairs in found.items():
            records = self._records(f"{_refers(source_id)}{target_id.hex()}-")
            known = {pair for record in records for pair in record.pairs}
            if left := [pair for pair in pairs if pair not in known]:
                missing[source_id] = left
        return missing

    def record(self, target_id: bytes, found: Mapping[bytes, Sequence[Pair]], now_s: int) -> None:
        """Make the records of references that are stored."""
        if found:
            keep_older_servers_out(self._store)
        for source_id, pairs in found.items():
            for first in range(0, len(pairs), PAIRS_MAX):
                name = f"{_refers(source_id)}{target_id.hex()}-{_stamp(now_s)}"
                self._store.put_record(name, _packed(_SETTLED, pairs[first : first + PAIRS_MAX]))

    def _records(self, prefix: str) -> Iterator[_Record]:
        """All that are there. One that is removed meanwhile may be part of another that came after the list."""
        seen, store = set[str](), self._store
        for _ in range(TRIES_MAX):
            names = [name for name in store.list_records(prefix) if name not in seen]
            with closing(read_in_order(_record, store, b"", names)) as records:
                for name, found in records:
                    if (record := found.result()) is not None:
                        seen.add(name)
                        yield record
            if seen.issuperset(names):
                return
        raise Unavailable("the references between chunks change too fast; try again")


def note_reference(found: defaultdict[bytes, list[Pair]], chunk_id: bytes, header: ChunkHeader) -> None:
    """Add the reference in the header of a chunk, if it has one, by the ID of the dataset that it refers to."""
    if header.source is not None and header.source.is_chunk:
        source_id, source_chunk = header.source.chunk
        found[source_id].append((chunk_id, source_chunk))


def _record(store: ObjectStore, _dataset_id: bytes, name: str) -> _Record | None:
    """None if it is not there. Raises Damaged."""
    if (content := store.get_record(name)) is None:
        return None
    state, body = _unpacked(name, content)
    _, source, target, time_s, _ = name.split("-")
    ids = bytes.fromhex(source), bytes.fromhex(target)
    return _Record(name, *ids, int(time_s, 16), state == _SETTLED, body)


def _is_in(stored: Container[bytes], reference: bytes) -> bool:
    """Whether a chunk is stored. A damaged bundle is listed itself: its chunks may be saved, so they count."""
    return reference in stored or (is_bundled(reference) and bundle_of(reference) in stored)


def _size(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> int:
    return store.size(dataset_id, chunk_id)


def without_remains(store: ObjectStore, dataset_ids: Sequence[bytes]) -> Sequence[bytes]:
    """Those of the datasets that were not removed."""
    gone: Container[bytes] = References(store).remains() if dataset_ids else ()
    return [dataset_id for dataset_id in dataset_ids if dataset_id not in gone]


def _refers(source_id: bytes | None = None) -> str:
    return "refers-" if source_id is None else f"refers-{source_id.hex()}-"


def _erasing(source_id: bytes) -> str:
    return f"erasing-{source_id.hex()}-"


def _remains(dataset_id: bytes = b"") -> str:
    return f"remains-{dataset_id.hex()}"


def _stamp(now_s: int) -> str:
    return f"{now_s:012x}-{secrets.token_hex(8)}"


def _time_s(name: str, prefix: str) -> int:
    return int(name.removeprefix(prefix).partition("-")[0], 16)


def _packed(state: bytes, ids: Iterable[bytes | Pair]) -> bytes:
    body = state + b"".join(b"".join(each) if isinstance(each, tuple) else each for each in ids)
    return extent_digest_of(body) + body


def _unpacked(name: str, content: bytes) -> tuple[bytes, bytes]:
    """State and IDs. Raises Damaged."""
    digest, body = content[:EXTENT_DIGEST_BYTES], content[EXTENT_DIGEST_BYTES:]
    if not body or extent_digest_of(body) != digest:
        raise Damaged(
            f"object store: record {name!r} is damaged; remove it, and run dlcmd fsck --repair for all datasets"
        )
    return body[:1], body[1:]


def _split(body: bytes) -> list[bytes]:
    return [body[start : start + CHUNK_ID_BYTES] for start in range(0, len(body), CHUNK_ID_BYTES)]
