"""Applies a chunk to the buckets of a dataset in Redis, so that an interrupted application can be finished.

The header is written as pending, so that any server can finish; one swap in each bucket writes the entries that count,
with a receipt of its effects; one last swap counts the sum of the receipts. `docs/reference/metadata-keys.md` has the
steps, and the argument why the totals are exact.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from dieselfs.chunk.format import ChunkHeader, Preamble
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import Unavailable
from dieselfs.limits import REDIS_HOLD_S, REDIS_PATIENCE_S, REDIS_RETRY_S, REDIS_SWAPS_MAX
from dieselfs.names import split_path
from dieselfs_server.metadata.redis.datasets import Contended, DatasetGone, count_paths, live_state, sweep
from dieselfs_server.metadata.redis.fields import (
    Change,
    Command,
    RedisCalls,
    Swapped,
    execute,
    read_call,
    swap,
    swap_call,
)
from dieselfs_server.metadata.redis.resolve import (
    BucketEntries,
    ChunkEntries,
    Needs,
    Seen,
    resolve,
    split_by_bucket,
)
from dieselfs_server.metadata.redis.table import count_chunk
from dieselfs_server.metadata.redis.values import (
    BUCKETS,
    CHANGES,
    COUNTED,
    HOLD,
    RECORD,
    STORED,
    VERSIONS,
    ChunkState,
    DatasetKeys,
    DatasetState,
    DeletedState,
    bucket_name,
    number_body,
    number_of,
    pending_body,
    receipt_of,
    seal,
    tree_name,
    unseal,
)
from dieselfs_server.metadata.rules import Effects, change_folders


@dataclass(frozen=True, eq=False)
class _Applied:
    """The effects of a part, and the number of changes of its bucket so far."""

    part: BucketEntries
    changes: int
    effects: Effects[bytes]


@dataclass(frozen=True, eq=False)
class ChunkApplication:
    """One chunk that is being applied. `committing` serializes the commits of this process."""

    client: RedisCalls
    keys: DatasetKeys
    committing: Lock
    preamble: Preamble
    header: ChunkHeader
    now_ns: int
    is_again: bool = False
    """Check every entry, despite record and receipts, and restore missing ones; nothing is counted twice."""

    def apply(self) -> int:
        """Returns the dataset's new generation. Raises DatasetGone, Damaged, and as `RedisCalls.execute`."""
        # First, because it refuses a bad header before it is pending.
        chunk = ChunkEntries.of(self.preamble.chunk_id, self.header)
        for _ in range(REDIS_SWAPS_MAX):
            generation, is_counted = self._begin()
            if generation is None:
                # What has a receipt and is not counted yet is counted by the receipt, also of another application.
                is_restored = self.is_again and is_counted
                generation = self._commit(self._resolve(chunk, is_restored))
            if generation is not None:
                return generation
        raise Contended(
            f"chunk {chunk_name(self.preamble.chunk_id)} is applied and forgotten too often; try again"
        )

    def finish(self) -> None:
        """As `apply`, for a chunk that is already pending."""
        self._commit(self._resolve(ChunkEntries.of(self.preamble.chunk_id, self.header)))

    def _begin(self) -> tuple[int | None, bool]:
        """Write the chunk as pending. Returns the generation if there is nothing to do, and whether it is counted."""
        keys, chunk_id = self.keys, self.preamble.chunk_id
        read = read_call(
            [(keys.dataset, [RECORD, VERSIONS, HOLD]), (keys.chunks, [chunk_id]), (keys.pending, [chunk_id])]
        )
        watch = _HoldWatch()
        newest = int(self.header.versions.max(initial=0))
        body: bytes | None = None
        for _ in range(REDIS_SWAPS_MAX):
            (record, versions, hold), (chunk,), (pending,) = execute(self.client, [read])[0]
            state = live_state(keys, record)
            if chunk is not None and not self.is_again:
                return state.record.generation, True
            if pending is not None or chunk is not None:
                return None, chunk is not None
            while hold is not None and watch.is_held(hold):
                time.sleep(REDIS_RETRY_S)
                (record, versions, hold), (chunk,), (pending,) = execute(self.client, [read])[0]
                live_state(keys, record)
            body = body or seal(keys.pending, chunk_id, pending_body(self.preamble, self.header, self.now_ns))
            pending_put = Change(keys.pending).add(chunk_id, body, None)
            absent = Change(keys.chunks).remove(chunk_id, None)
            dataset = Change(keys.dataset).remove(HOLD, hold)
            last = 0 if versions is None else number_of(unseal(keys.dataset, VERSIONS, versions))
            if newest > last:
                dataset.put(VERSIONS, number_body(newest), versions)
            if swap(self.client, pending_put, absent, dataset):
                return None, False
        raise Contended(f"{keys.owner} changes too fast for a chunk to be applied; try again")

    def _resolve(self, chunk: ChunkEntries, is_restored: bool = False) -> list[_Applied]:
        """Resolve and swap the part of each bucket; each round sends one batch for all parts that are left.
        `is_restored`: also where a receipt says that it was done.
        """
        left = [(part, Seen()) for part in split_by_bucket(self.keys, self.header.paths)]
        applied: list[_Applied] = []
        for _ in range(REDIS_SWAPS_MAX):
            if not left:
                return applied
            steps = [(part, seen, resolve(part, chunk, seen)) for part, seen in left]
            calls: list[Command[Any]] = []
            for part, _, step in steps:
                if isinstance(step, Needs):
                    calls += step.calls(part.keys)
                else:
                    calls.append(swap_call(step.changes, (part.keys.changes, CHANGES)))
            results = iter(execute(self.client, calls))
            left = []
            for part, seen, step in steps:
                result = next(results)
                if isinstance(step, Needs):
                    step.note(seen, result, [next(results) for _ in step.files])
                    left.append((part, seen))
                    continue
                done = self._done(part, seen, step.effects, result, is_restored)
                if done is None:
                    left.append((part, seen))
                else:
                    applied.append(done)
        raise Contended(f"{self.keys.owner}: other uploads keep changing the same files; try again")

    def _done(
        self, part: BucketEntries, seen: Seen, effects: Effects[bytes], swapped: Swapped, is_restored: bool
    ) -> _Applied | None:
        """None if the part must be resolved again, with the values that the swap has found."""
        if not swapped.stale:
            return _Applied(part, swapped.changes, effects)
        for key_pair, name, value in swapped.stale:
            if key_pair is part.keys.receipts and value is not None and not is_restored:
                return _Applied(part, swapped.changes, receipt_of(unseal(key_pair, name, value)))
            seen.note_stale(part.keys, key_pair, name, value)
        return None

    def _commit(self, applied: Sequence[_Applied]) -> int | None:
        """Count the chunk; returns the generation, None if the chunk is neither pending nor applied."""
        with self.committing:
            for _ in range(REDIS_SWAPS_MAX):
                commit, lineage = _Commit(self, applied), self.client.lineage()
                values = execute(self.client, [commit.read()])[0]
                try:
                    changes, generation = commit.decide(values)
                except DatasetGone:
                    sweep(self.client, self.keys, [each.part.number for each in applied], lineage)
                    raise
                if not changes or swap(self.client, *changes):
                    return generation
        raise Contended(f"{self.keys.owner} changes too fast for a chunk to be applied; try again")


class _HoldWatch:
    """Whether a reader still holds the dataset: a hold expires if it does not change for REDIS_HOLD_S."""

    def __init__(self) -> None:
        self._hold = b""
        self._since_s = self._started_s = time.monotonic()

    def is_held(self, hold: bytes) -> bool:
        """Raises Unavailable if all holds together have lasted too long."""
        now_s = time.monotonic()
        if hold != self._hold:
            self._hold, self._since_s = hold, now_s
        if now_s - self._started_s > REDIS_HOLD_S + REDIS_PATIENCE_S:
            raise Unavailable(
                "metadata in Redis: readers of the whole dataset block uploads; try again later"
            )
        return now_s - self._since_s < REDIS_HOLD_S


_TOTALS = (RECORD, STORED, COUNTED)


class _Commit:
    """Decides the last swap of a chunk."""

    def __init__(self, application: ChunkApplication, applied: Sequence[_Applied]) -> None:
        self._application = application
        self._keys = application.keys
        self._applied = applied
        self._effects: Effects[bytes] = Effects()
        for each in applied:
            self._effects.add(each.effects)
        self._folders = _with_parents([folder for folder, change in self._effects.members.items() if change])

    def read(self) -> Command[list[list[bytes | None]]]:
        keys, chunk_id = self._keys, self._application.preamble.chunk_id
        return read_call(
            [
                (keys.dataset, [*_TOTALS, *(bucket_name(each.part.number) for each in self._applied)]),
                (keys.chunks, [chunk_id]),
                (keys.pending, [chunk_id]),
                (keys.deleted, list(self._effects.dead)),
                (keys.tree, [tree_name(*split_path(folder)) for folder in self._folders]),
            ]
        )

    def decide(self, values: Sequence[Sequence[bytes | None]]) -> tuple[list[Change], int | None]:
        """The changes (empty if there is nothing to do) and the generation. Raises DatasetGone, Damaged."""
        (record, stored, counted, *buckets), (chunk,), (pending,), bitmaps, counts = values
        state = live_state(self._keys, record)
        if chunk is not None:
            # Restored entries are counted already; but a bucket that has lost data counts its changes from 0 again.
            is_reset = self._application.is_again and bool(self._applied)
            return [self._buckets(buckets)] if is_reset else [], state.record.generation
        if pending is None:
            return [], None
        # The time of the generation, also where the clock has stepped back: purge compares when a chunk died with it.
        updated_ns = max(state.record.updated_ns + 1, self._application.now_ns)
        chunk_id = self._application.preamble.chunk_id
        done = Change(self._keys.pending).remove(chunk_id, pending)
        recorded = Change(self._keys.chunks).put(chunk_id, self._chunk_state(updated_ns).body(), None)
        new = state.record._replace(
            generation=state.record.generation + 1,
            updated_ns=updated_ns,
            files=state.record.files + self._effects.files,
            total_bytes=state.record.total_bytes + self._effects.total_bytes,
            chunks=state.record.chunks + 1,
        )
        dataset = self._buckets(buckets)
        dataset.put(RECORD, DatasetState(new).body(), record)
        count_chunk(dataset, stored, state.record, new, self._application.preamble.object_length)
        tree, folders = self._tree(counts)
        count_paths(dataset, counted, state.record, new, self._effects.members.total(), folders)
        changes = [done, recorded, dataset, self._deleted(bitmaps, updated_ns), tree]
        return [change for change in changes if change.names], new.generation

    def _chunk_state(self, updated_ns: int) -> ChunkState:
        preamble = self._application.preamble
        bits = sum(1 << each.part.number for each in self._applied)
        return ChunkState(
            updated_ns,
            preamble.header_length,
            preamble.payload_length,
            len(self._application.header),
            preamble.payload_digest,
            bits.to_bytes(BUCKETS // 8, "little"),
        )

    def _buckets(self, buckets: Sequence[bytes | None]) -> Change:
        """The least number of changes of each bucket; if the chunk is applied again, that of now."""
        change = Change(self._keys.dataset)
        for each, value in zip(self._applied, buckets, strict=True):
            name, is_kept = bucket_name(each.part.number), not self._application.is_again
            known = number_of(unseal(change.key_pair, name, value)) if value is not None and is_kept else 0
            change.put(name, number_body(max(known, each.changes)), value)
        return change

    def _deleted(self, bitmaps: Sequence[bytes | None], updated_ns: int) -> Change:
        change = Change(self._keys.deleted)
        for (chunk_id, entries), value in zip(self._effects.dead.items(), bitmaps, strict=True):
            old = b"" if value is None else unseal(change.key_pair, chunk_id, value)
            state = DeletedState.of(old) if old else DeletedState()
            change.put(chunk_id, state.marked(entries, updated_ns).body(), value)
        return change

    def _tree(self, counts: Sequence[bytes | None]) -> tuple[Change, int]:
        """Also by how many non-empty folders there are more."""
        tree = Change(self._keys.tree)
        values = dict(zip(self._folders, counts, strict=True))

        def change_folder(parent: bytes, name: bytes, change: int) -> tuple[bytes, int]:
            field = tree_name(parent, name)
            value = values[parent + b"/" + name if parent else name]
            before = 0 if value is None else number_of(unseal(tree.key_pair, field, value))
            after = before + change
            if after:
                tree.put(field, number_body(after), value, in_hash=after < 0)
            else:
                tree.remove(field, value)
            return parent, (after > 0) - (before > 0)

        more = change_folders(
            self._effects.members, lambda changes: [change_folder(*each) for each in changes]
        )
        return tree, more


def _with_parents(folders: Sequence[bytes]) -> list[bytes]:
    """The folders and all their parents, without the root."""
    found: set[bytes] = set()
    for folder in folders:
        while folder and folder not in found:
            found.add(folder)
            folder = split_path(folder)[0]
    return sorted(found)
