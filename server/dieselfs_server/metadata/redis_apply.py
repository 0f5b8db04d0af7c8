"""Applies a chunk to the buckets of a dataset in Redis, so that whatever is cut off in the middle can be finished.

1. The chunk's header is put down as pending. From here on, anybody can finish: the same chunk applied again, or a
   reader of the whole dataset.
2. In each bucket, the entries are settled and swapped in at once, with a receipt that says what that did. Where there
   is a receipt, nothing is done again, and the receipt says what was done.
3. The sum of the receipts is counted once: with the chunk's record, the deletion bitmaps, the totals, the folders, the
   next generation, and the end of the pending header, all in one swap that expects that there is no such record.

So at each moment what is counted is the sum of the receipts of the recorded chunks. `docs/metadata-keys.md` has the
argument in full.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from dieselfs.chunk.format import ChunkHeader, Preamble
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import Unavailable
from dieselfs.limits import REDIS_HOLD_S, REDIS_PATIENCE_S, REDIS_RETRY_S, REDIS_SWAPS_MAX
from dieselfs.meta.records import DatasetRecord
from dieselfs.names import split_path
from dieselfs_server.metadata.effects import Effects, change_folders
from dieselfs_server.metadata.redis_cells import Change, Read, Request, Swap, Swapped
from dieselfs_server.metadata.redis_datasets import Contended, DatasetGone, live_state, renewed, sweep
from dieselfs_server.metadata.redis_keys import (
    BUCKETS,
    CHANGES,
    HOLD,
    RECORD,
    VERSIONS,
    DatasetKeys,
    bucket_name,
    tree_name,
)
from dieselfs_server.metadata.redis_link import Link, ask
from dieselfs_server.metadata.redis_parts import ChunkEntries, Part, split_by_bucket
from dieselfs_server.metadata.redis_settle import Needs, Seen, settle
from dieselfs_server.metadata.redis_values import (
    ChunkState,
    DatasetState,
    DeletedState,
    number_body,
    number_of,
    pending_body,
    receipt_of,
    seal,
    unseal,
)


@dataclass(frozen=True, eq=False)
class _Applied:
    """What became of a part: how often its bucket was changed by then, and what that did."""

    part: Part
    changes: int
    effects: Effects[bytes]


@dataclass(frozen=True, eq=False)
class ChunkApplication:
    """One chunk on its way into a dataset. `committing` keeps threads of this process from overtaking each other."""

    link: Link
    keys: DatasetKeys
    committing: Callable[[], AbstractContextManager[object]]
    preamble: Preamble
    header: ChunkHeader
    now_ns: int
    is_again: bool = False
    """Look at every entry, whatever record and receipts say, and put back what is missing; nothing is counted twice."""

    def apply(self) -> int:
        """The dataset's generation then. Raises DatasetGone, Damaged, and what `Link.ask` does."""
        chunk = ChunkEntries.of(self.preamble.chunk_id, self.header)
        parts = split_by_bucket(self.keys, self.header.paths)
        for _ in range(REDIS_SWAPS_MAX):
            generation = self._begin()
            if generation is None:
                generation = self._commit(self._settle(parts, chunk))
            if generation is not None:
                return generation
        raise Contended(
            f"chunk {chunk_name(self.preamble.chunk_id)} is applied and forgotten again and again"
        )

    def finish(self) -> None:
        """As `apply`, for a chunk that is pending already."""
        chunk = ChunkEntries.of(self.preamble.chunk_id, self.header)
        self._commit(self._settle(split_by_bucket(self.keys, self.header.paths), chunk))

    def _begin(self) -> int | None:
        """Put the chunk down as pending; returns the generation if the chunk was applied already."""
        keys, chunk_id = self.keys, self.preamble.chunk_id
        wanted = Read(
            [(keys.dataset, [RECORD, VERSIONS, HOLD]), (keys.chunks, [chunk_id]), (keys.pending, [chunk_id])]
        )
        watch = _HoldWatch()
        newest = int(self.header.versions.max(initial=0))
        body: bytes | None = None
        for _ in range(REDIS_SWAPS_MAX):
            (record, versions, hold), (chunk,), (pending,) = ask(self.link, [wanted])[0]
            state = live_state(keys, record)
            if chunk is not None and not self.is_again:
                return state.record.generation
            if pending is not None or chunk is not None:
                return None
            while hold is not None and watch.is_held(hold):
                time.sleep(REDIS_RETRY_S)
                (record, versions, hold), (chunk,), (pending,) = ask(self.link, [wanted])[0]
                live_state(keys, record)
            body = body or seal(keys.pending, chunk_id, pending_body(self.preamble, self.header, self.now_ns))
            begun, absent, dataset = Change(keys.pending), Change(keys.chunks), Change(keys.dataset)
            begun.add(chunk_id, body, None)
            absent.keep(chunk_id, None)
            dataset.add(HOLD, b"", hold)
            last = 0 if versions is None else number_of(unseal(keys.dataset, VERSIONS, versions))
            if newest > last:
                dataset.add(VERSIONS, seal(keys.dataset, VERSIONS, number_body(newest)), versions)
            if not ask(self.link, [Swap([begun, absent, dataset])])[0].stale:
                return None
        raise Contended(f"{keys.owner} changes too fast; try again")

    def _settle(self, parts: Sequence[Part], chunk: ChunkEntries) -> list[_Applied]:
        """Swap all parts in, a round for all of them at a time."""
        left = [(part, Seen()) for part in parts]
        applied: list[_Applied] = []
        for _ in range(REDIS_SWAPS_MAX):
            if not left:
                return applied
            steps = [(part, seen, settle(part, chunk, seen)) for part, seen in left]
            requests: list[Request[Any]] = []
            for part, _, step in steps:
                if isinstance(step, Needs):
                    read, scans = step.requests(part.keys)
                    requests += [read, *scans]
                else:
                    requests.append(Swap(step.changes, (part.keys.changes, CHANGES)))
            results = iter(ask(self.link, requests))
            left = []
            for part, seen, step in steps:
                result = next(results)
                if isinstance(step, Needs):
                    step.note(seen, result, [next(results) for _ in step.files])
                    left.append((part, seen))
                    continue
                done = self._done(part, seen, step.effects, result)
                if done is None:
                    left.append((part, seen))
                else:
                    applied.append(done)
        raise Contended(f"{self.keys.owner}: others change the same files all the time; try again")

    def _done(self, part: Part, seen: Seen, effects: Effects[bytes], swapped: Swapped) -> _Applied | None:
        """None if the swap must be worked out anew, from what is there now."""
        if not swapped.stale:
            return _Applied(part, swapped.changes, effects)
        for drawer, name, value in swapped.stale:
            if drawer is part.keys.receipts and value is not None and not self.is_again:
                return _Applied(part, swapped.changes, receipt_of(unseal(drawer, name, value)))
            seen.note_stale(part.keys, drawer, name, value)
        return None

    def _commit(self, applied: Sequence[_Applied]) -> int | None:
        """Count the chunk; returns the generation, None if it is neither pending nor applied any more."""
        with self.committing():
            for _ in range(REDIS_SWAPS_MAX):
                commit = _Commit(self, applied)
                found = ask(self.link, [commit.wanted()])[0]
                try:
                    changes, generation = commit.decide(found)
                except DatasetGone:
                    sweep(self.link, self.keys, [each.part.number for each in applied])
                    raise
                if not changes or not ask(self.link, [Swap(changes)])[0].stale:
                    return generation
        raise Contended(f"{self.keys.owner} changes too fast; try again")


class _HoldWatch:
    """Whether the hold of a reader still stands: it does as long as it changes now and then."""

    def __init__(self) -> None:
        self._hold = b""
        self._since_s = self._begun_s = time.monotonic()

    def is_held(self, hold: bytes) -> bool:
        """Raises Unavailable when it has taken too long in all."""
        now_s = time.monotonic()
        if hold != self._hold:
            self._hold, self._since_s = hold, now_s
        if now_s - self._begun_s > REDIS_HOLD_S + REDIS_PATIENCE_S:
            raise Unavailable("the metadata in Redis is being read as a whole; try again later")
        return now_s - self._since_s < REDIS_HOLD_S


class _Commit:
    """Decides what the last swap of a chunk writes."""

    def __init__(self, application: ChunkApplication, applied: Sequence[_Applied]) -> None:
        self._keys = application.keys
        self._preamble = application.preamble
        self._entries = len(application.header)
        self._now_ns = application.now_ns
        self._is_again = application.is_again
        self._applied = applied
        self._effects: Effects[bytes] = Effects()
        for each in applied:
            self._effects.add(each.effects)
        self._folders = _with_parents([folder for folder, change in self._effects.members.items() if change])

    def wanted(self) -> Read:
        keys, chunk_id = self._keys, self._preamble.chunk_id
        return Read(
            [
                (keys.dataset, [RECORD, *(bucket_name(each.part.number) for each in self._applied)]),
                (keys.chunks, [chunk_id]),
                (keys.pending, [chunk_id]),
                (keys.deleted, list(self._effects.dead)),
                (keys.tree, [tree_name(*split_path(folder)) for folder in self._folders]),
            ]
        )

    def decide(self, found: Sequence[Sequence[bytes | None]]) -> tuple[list[Change], int | None]:
        """The changes (none if there is nothing to do) and the generation. Raises DatasetGone, Damaged."""
        (record, *buckets), (chunk,), (pending,), bitmaps, counts = found
        state = live_state(self._keys, record)
        if chunk is not None:
            # What was put back was counted long ago; but a bucket that had lost something counts its changes anew.
            noted = [self._buckets(buckets, is_reset=True)] if self._is_again and self._applied else []
            return noted, state.record.generation
        if pending is None:
            return [], None
        done, recorded = Change(self._keys.pending), Change(self._keys.chunks)
        chunk_id = self._preamble.chunk_id
        done.add(chunk_id, b"", pending)
        recorded.add(chunk_id, seal(recorded.drawer, chunk_id, self._chunk_state().body()), None)
        new = self._record(state.record)
        dataset = self._buckets(buckets, is_reset=self._is_again)
        dataset.add(RECORD, seal(dataset.drawer, RECORD, DatasetState(new).body()), record)
        changes = [done, recorded, dataset, self._deleted(bitmaps), self._tree(counts)]
        return [change for change in changes if change.names], new.generation

    def _chunk_state(self) -> ChunkState:
        bits = sum(1 << each.part.number for each in self._applied)
        return ChunkState(
            self._now_ns,
            self._preamble.header_length,
            self._preamble.payload_length,
            self._entries,
            self._preamble.payload_checksum,
            bits.to_bytes(BUCKETS // 8, "little"),
        )

    def _record(self, record: DatasetRecord) -> DatasetRecord:
        return replace(
            renewed(record, self._now_ns),
            files=record.files + self._effects.files,
            total_bytes=record.total_bytes + self._effects.total_bytes,
            chunks=record.chunks + 1,
        )

    def _buckets(self, buckets: Sequence[bytes | None], is_reset: bool) -> Change:
        """How often each bucket was changed, at least."""
        change = Change(self._keys.dataset)
        for each, value in zip(self._applied, buckets, strict=True):
            name = bucket_name(each.part.number)
            known = 0 if value is None or is_reset else number_of(unseal(change.drawer, name, value))
            change.add(name, seal(change.drawer, name, number_body(max(known, each.changes))), value)
        return change

    def _deleted(self, bitmaps: Sequence[bytes | None]) -> Change:
        change = Change(self._keys.deleted)
        for (chunk_id, entries), value in zip(self._effects.dead.items(), bitmaps, strict=True):
            old = DeletedState() if value is None else DeletedState.of(unseal(change.drawer, chunk_id, value))
            new = old.marked(entries, self._now_ns)
            change.add(chunk_id, seal(change.drawer, chunk_id, new.body()), value)
        return change

    def _tree(self, counts: Sequence[bytes | None]) -> Change:
        tree = Change(self._keys.tree)
        values = dict(zip(self._folders, counts, strict=True))

        def change_folder(parent: bytes, name: bytes, change: int) -> int:
            cell = tree_name(parent, name)
            value = values[parent + b"/" + name if parent else name]
            before = 0 if value is None else number_of(unseal(tree.drawer, cell, value))
            after = before + change
            sealed = seal(tree.drawer, cell, number_body(after)) if after else b""
            tree.add(cell, sealed, value, in_hash=after < 0)
            return (after > 0) - (before > 0)

        change_folders(self._effects.members, change_folder)
        return tree


def _with_parents(folders: Sequence[bytes]) -> list[bytes]:
    """The folders and all that they are in, without the root."""
    found: set[bytes] = set()
    for folder in folders:
        while folder and folder not in found:
            found.add(folder)
            folder = split_path(folder)[0]
    return sorted(found)
