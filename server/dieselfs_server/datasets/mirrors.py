"""Mirrors: datasets that follow a dataset of another store, and that nobody else writes.

A mirror has the name, the ID, the chunk IDs and the payloads of its origin. Its tree is the snapshot of the origin. The
signature of these servers takes the place of the other one, which the record of the mirror keeps: both sign the same
digest. The snapshot is the tag `mirror`: its chunks stay, and replacing the tag shows the next generation whole.

Chunks of a mirror have no entries: the metadata store has their records alone. Such a chunk is dead from the beginning,
and what keeps it is the tag. When a generation no longer needs it, its record is made again, so that the grace time and
pins count from then.

One caller at a time changes the record and the tag, on any server, by a lease, which is renewed before each write. A
crash between the two leaves a record that is older than the tag: what is shown is whole, and the next round shows it
again.

Promoted, a mirror gets chunks with entries, which refer to those that it has. The record of the promotion has a first
phase, in which these are stored and none is applied, and a second one, in which all are. They are applied all at once,
by a rebuild of the metadata: then the dataset has files, and from this instant on it is no mirror. A promotion that is
repeated in the second phase stores nothing, because users may have written since. All functions block.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BytesIO
from secrets import token_hex
from threading import Lock
from typing import Any, Self, cast

from dieselfs.chunk.format import PREAMBLE_BYTES, Op, decode_preamble
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.limits import CHUNK_ENTRIES_MAX
from dieselfs.names import printable
from dieselfs.process.repeating import repeated
from dieselfs.records import DatasetRecord, Extent, FileRecord
from dieselfs.rpc.records import MirrorRecord, RebuildReport
from dieselfs.snapshot.freshness import is_older
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.signature import check_snapshot_signature
from dieselfs_server.datasets.commit import lacks_entries, mirror_record, promotion_record, read_header
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.lease import RENEWAL_S, SeenLeases, end_lease, take_lease
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore

MIRROR_TAG = "mirror"
LOOK_S = 1.0
"""How long a process takes what it knows of a mirror for current: other servers may have changed it."""
SNAPSHOTS_OPEN_MAX = 2
"""Snapshots of mirrors in memory."""
STORED = b"stored"
"""The record of a promotion once all its chunks are stored; before it is empty."""
LEASE = "mirror"
"""The note of who changes a mirror."""


@dataclass(frozen=True, slots=True)
class _State:
    """The record of a mirror, as JSON. Times are in seconds since 1970; keys, signatures and digests hexadecimal.

    `generation`: the one that is shown, 0 for none; `newest`: that of the origin, when it was last seen; `current_s`:
    when these were equal last.
    """

    origin: str
    newest: int = 0
    current_s: int = 0
    generation: int = 0
    updated_ns: int = 0
    files: int = 0
    total_bytes: int = 0
    digest: str = ""
    signer: str = ""
    signature: str = ""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes, source: str) -> Self:
        """Raises Damaged."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            raise Damaged(f"object store: record {source!r} is not that of a mirror") from None


class Mirrors:
    """The mirrors of a store. Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        tags: TagStore,
        clock: Callable[[], float] = time.monotonic,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._tags = tags
        self._clock = clock
        self._seen = SeenLeases(clock)
        self._time_ns = time_ns  # since 1970
        self._lock = Lock()  # guards the two below
        self._known: dict[bytes, tuple[float, _State | None]] = {}
        self._open: dict[str, Snapshot] = {}  # by digest, the last one at the end

    def _state(self, dataset_id: bytes) -> _State | None:
        """The state of a mirror, up to LOOK_S old; None for another dataset."""
        with self._lock:
            found = self._known.get(dataset_id)
        if found is not None and self._clock() < found[0]:
            return found[1]
        return self._read(dataset_id)

    def _read(self, dataset_id: bytes) -> _State | None:
        record = mirror_record(dataset_id)
        content = self._store.get_record(record)
        return self._keep(dataset_id, None if content is None else _State.decode(content, record))

    def _keep(self, dataset_id: bytes, state: _State | None) -> _State | None:
        with self._lock:
            self._known[dataset_id] = self._clock() + LOOK_S, state
        return state

    def _put(self, dataset_id: bytes, state: _State) -> None:
        self._store.put_record(mirror_record(dataset_id), state.encode())
        self._keep(dataset_id, state)

    @contextmanager
    def _alone(self, dataset: DatasetRecord) -> Iterator[tuple[_State | None, Callable[[], None]]]:
        """The state of a dataset, which nobody else changes in the block, and a check that this is still so, to be
        called before each write. Both raise Unavailable if somebody does.
        """
        dataset_id, holder = dataset.dataset_id, f"a change of the mirror {dataset.name} ({token_hex(4)})"

        def take(is_renewal: bool) -> None:
            asked = dataset_id, holder, self._time_ns(), LEASE, self._seen
            take_lease(self._metadata, *asked, may_expire=False, is_renewal=is_renewal)

        take(is_renewal=False)
        check = partial(take, is_renewal=True)
        try:
            with repeated(check, RENEWAL_S):
                yield self._read(dataset_id), check
        finally:
            end_lease(self._metadata, dataset_id, holder, LEASE)

    def check_settled(self, dataset_id: bytes, name: str) -> None:
        """Raise InvalidInput for a mirror whose promotion has begun."""
        if self._store.get_record(promotion_record(dataset_id)) is not None and self._read(dataset_id):
            raise InvalidInput(
                f"dl://{name} is being promoted; if that was interrupted, continue: dlcmd mirror --promote dl://{name}"
            )

    def _state_of(self, dataset: DatasetRecord) -> _State | None:
        """As `_state`; one with files of its own costs no request."""
        return None if dataset.files else self._state(dataset.dataset_id)

    def check_writable(self, dataset: DatasetRecord) -> None:
        """Raise AccessDenied for a mirror."""
        if (state := self._state_of(dataset)) is not None:
            raise AccessDenied(
                f"dl://{dataset.name} is a mirror of {state.origin}: write there; for a dataset of your own, copy it: "
                f"dlcmd cp -r dl://{dataset.name} dl://NAME"
            )

    def is_mirror(self, dataset: DatasetRecord) -> bool:
        return self._state_of(dataset) is not None

    def shown(self, dataset: DatasetRecord) -> DatasetRecord:
        """The record of a dataset; of a mirror, with the generation and the totals that it shows."""
        state = self._state_of(dataset)
        if state is None or not state.generation:
            return dataset
        return dataset._replace(
            generation=state.generation,
            updated_ns=state.updated_ns,
            files=state.files,
            total_bytes=state.total_bytes,
        )

    def all_shown(self, datasets: list[DatasetRecord]) -> list[DatasetRecord]:
        """As `shown`, of many."""
        if all(each.files for each in datasets):  # then none is a mirror, and the store need not be asked
            return datasets
        found = set(self._store.list_records("mirror-"))
        return [self.shown(each) if mirror_record(each.dataset_id) in found else each for each in datasets]

    def snapshot(self, dataset: DatasetRecord, generation: int = 0) -> Snapshot | None:
        """The snapshot that a mirror shows; None for another dataset, or before its first generation. Raises NotFound
        for another generation than 0, the newest, and that of the snapshot; Damaged.
        """
        state = self._state_of(dataset)
        if state is None or not state.generation:
            return None
        with self._lock:
            found = self._open.get(state.digest)
        if found is None:
            found = self._tags.get(dataset.name, dataset.dataset_id, MIRROR_TAG)
            with self._lock:
                self._open[found.digest.hex()] = found
                while len(self._open) > SNAPSHOTS_OPEN_MAX:
                    self._open.pop(next(iter(self._open)))
        if generation not in (0, found.generation):
            raise NotFound(
                f"generation {generation} of mirror {dataset.name} is not kept; the newest is {found.generation}"
            )
        return found

    def records(self, datasets: list[DatasetRecord]) -> list[MirrorRecord]:
        """Those of these datasets that are mirrors. Raises Damaged."""
        found = set(self._store.list_records("mirror-"))
        states = (
            (dataset, self._state(dataset.dataset_id))
            for dataset in datasets
            if mirror_record(dataset.dataset_id) in found
        )
        return [_record_of(dataset.name, state) for dataset, state in states if state is not None]

    def note_seen(self, dataset: DatasetRecord, origin: str, newest: int) -> MirrorRecord:
        """Make a dataset without chunks a mirror; or note the newest generation that its origin has.

        Raises InvalidInput for a dataset with other content, or with another origin.
        """
        now_s = self._time_ns() // 10**9
        with self._alone(dataset) as (state, check):
            self.check_settled(dataset.dataset_id, dataset.name)
            if state is None or dataset.files:
                if dataset.chunks or dataset.files or not origin.isprintable():
                    raise InvalidInput(
                        f"dl://{dataset.name} has content of its own, so it cannot become a mirror"
                    )
                check()
                self._store.delete_record(promotion_record(dataset.dataset_id))  # of a mirror before it
                state = _State(origin, current_s=now_s)
            if state.origin != origin:
                raise InvalidInput(f"dl://{dataset.name} is a mirror of {state.origin}, not of {origin}")
            is_current = newest == state.generation
            state = replace(state, newest=newest, current_s=now_s if is_current else state.current_s)
            check()
            self._put(dataset.dataset_id, state)
        return _record_of(dataset.name, state)

    def keep_part(self, dataset: DatasetRecord, part: int, content: bytes | bytearray) -> MirrorRecord:
        """Store a part of a snapshot, whose last part `show` gets. Raises InvalidInput for what is no mirror."""
        if (state := self._read(dataset.dataset_id)) is None:
            raise InvalidInput(f"dl://{dataset.name} is not a mirror")
        if not part:
            self._drop_parts(dataset.dataset_id)  # of a round that has not ended
        self._store.put_record(f"{_parts(dataset.dataset_id)}{part}", bytes(content))
        return _record_of(dataset.name, state)

    def _joined(self, dataset: DatasetRecord, parts: int, last: bytes | bytearray) -> bytes | None:
        """None if a part is missing."""
        joined = BytesIO()  # with one part at a time beside it
        for part in range(parts):
            if (found := self._store.get_record(f"{_parts(dataset.dataset_id)}{part}")) is None:
                return None
            joined.write(found)
        joined.write(last)
        return joined.getvalue()

    def show(self, dataset: DatasetRecord, parts: int, last: bytes | bytearray) -> MirrorRecord:
        """Show the generation of a snapshot from the origin, all of whose chunks are stored here. `last`: its last
        part, after those `parts` that are kept.

        Raises Damaged for a wrong snapshot, InvalidInput if it is older than the one that is shown, of another signer,
        or if chunks are missing; Unavailable if another generation is shown meanwhile, or if parts are missing.
        """
        dataset_id, now_ns = dataset.dataset_id, self._time_ns()
        state, source = self._read(dataset_id), f"snapshot of {dataset.name} from its origin"
        if state is None:
            raise InvalidInput(f"dl://{dataset.name} is not a mirror")
        before = self.snapshot(dataset)
        content = self._joined(dataset, parts, last)
        if content is None:
            if before is not None and bytes(memoryview(before.content)[-len(last) :]) == last:
                return _record_of(dataset.name, state)  # shown already: the reply was lost
            raise Unavailable(f"dl://{dataset.name}: a part of the snapshot is missing; try again")
        snapshot = Snapshot(content, source)
        snapshot.verify()
        header = snapshot.header
        if (header.dataset, header.dataset_id, header.is_encrypted) != (dataset.name, dataset_id, False):
            raise Damaged(f"{source}: it is of another dataset, or not as its servers have signed it")
        check_snapshot_signature(header, source)
        if state.signer not in ("", header.signer.hex()):
            raise InvalidInput(
                f"{source}: signed by other servers than those before; if these have a new identity, drop the mirror "
                "and begin it again"
            )
        if state.generation and is_older(header, state):
            raise InvalidInput(
                f"{source}: generation {header.generation} is older than {state.generation}, shown here"
            )
        old, new = _chunks_of(before) if before is not None else {}, _chunks_of(snapshot)
        for chunk_id, stated in new.items():
            if old.get(chunk_id) != stated:
                self._check_chunk(dataset_id, chunk_id, stated)
        for chunk_id in old.keys() - new.keys():
            self._die_now(dataset_id, chunk_id, now_ns)
        with self._alone(dataset) as (present, check):
            self.check_settled(dataset_id, dataset.name)
            if present is None or present.digest != state.digest:
                raise Unavailable(
                    f"another round of the mirror {dataset.name} has ended meanwhile; try again"
                )
            check()
            self._tags.replace(snapshot, MIRROR_TAG)
            state = replace(
                present,
                newest=max(present.newest, header.generation),
                generation=header.generation,
                updated_ns=header.updated_ns,
                files=header.files,
                total_bytes=header.total_bytes,
                digest=header.digest.hex(),
                signer=header.signer.hex(),
                signature=header.signature.hex(),
            )
            if state.newest == state.generation:
                state = replace(state, current_s=now_ns // 10**9)
            check()
            self._put(dataset_id, state)
        self._drop_parts(dataset_id)
        return _record_of(dataset.name, state)

    def _drop_parts(self, dataset_id: bytes) -> None:
        for record in self._store.list_records(_parts(dataset_id)):
            self._store.delete_record(record)

    def _check_chunk(self, dataset_id: bytes, chunk_id: bytes, stated: tuple[bytes, int]) -> None:
        name = f"chunk {chunk_name(chunk_id)}"
        try:
            stored = self._store.get_range(dataset_id, chunk_id, 0, PREAMBLE_BYTES)
        except NotFound:
            raise InvalidInput(
                f"{name} is missing: store all chunks of a generation before it is shown"
            ) from None
        preamble = decode_preamble(stored, name, chunk_id)
        if (preamble.payload_digest, preamble.payload_length) != stated:
            raise Damaged(f"{name} has other bytes than at the origin")

    def _die_now(self, dataset_id: bytes, chunk_id: bytes, now_ns: int) -> None:
        """Let a chunk without entries be dead from now on. After a crash in between, it is applied again at a start."""
        try:
            chunk = read_header(self._store, dataset_id, chunk_id)
        except (NotFound, Damaged):  # `dlcmd fsck` reports it
            return
        self._metadata.forget_chunk(dataset_id, chunk_id)
        self._metadata.apply(dataset_id, *chunk, now_ns)

    def begin_promotion(self, dataset: DatasetRecord) -> tuple[MirrorRecord, Snapshot | None]:
        """Show no other generation from now on. Returns the one that is shown, and its snapshot; None if all its
        entries are stored. Raises InvalidInput for what is no mirror, or shows nothing yet; Unavailable, Damaged.
        """
        with self._alone(dataset) as (state, check):
            if state is None or not state.generation:
                raise InvalidInput(f"dl://{dataset.name} is not a mirror that shows a generation")
            check()
            self._store.create_record(promotion_record(dataset.dataset_id), b"")
        is_stored = not lacks_entries(self._store, dataset.dataset_id)
        snapshot = None if is_stored else self._tags.get(dataset.name, dataset.dataset_id, MIRROR_TAG)
        return _record_of(dataset.name, state), snapshot

    def note_stored(self, dataset: DatasetRecord) -> None:
        """All chunks with entries are stored: a promotion that is repeated stores none."""
        self._store.put_record(promotion_record(dataset.dataset_id), STORED)

    def time_of_rebuild(self, dataset_id: bytes) -> int:
        """In ns since 1970. Clients refuse a generation that is smaller, or older, than one they have seen."""
        state = self._read(dataset_id) or _State("")
        return max(self._time_ns(), state.updated_ns + 1, (state.generation + 1) * 10**9)

    def end_promotion(
        self, name: str, dataset_id: bytes, rebuilt: RebuildReport, is_forced: bool = False
    ) -> None:
        """The dataset has the entries of what it shows: it is no mirror any more. Raises Damaged, and the promotion
        does not end, if files of it are lost; fewer files without damage are those that users have deleted since.

        `is_forced`: the rebuild has forgotten the lost ones. Then nothing happens without a promotion, or if not all
        its entries are stored.
        """
        state = self._read(dataset_id)
        if is_forced and (state is None or self._store.get_record(promotion_record(dataset_id)) != STORED):
            return
        if not is_forced and rebuilt.damaged and state is not None and rebuilt.files < state.files:
            raise Damaged(
                f"dl://{name} has {rebuilt.files:,} of the {state.files:,} files of the mirror: {rebuilt.damaged[0]}; "
                f"bring the chunks back, then continue: dlcmd mirror --promote dl://{name}; or forget their files, "
                f"which ends the promotion: dlcmd rebuild --force dl://{name}"
            )
        # First: it keeps chunks, and a promotion without a mirror cannot be repeated.
        with suppress(NotFound):
            self._tags.remove(name, dataset_id, MIRROR_TAG)
        self.drop(dataset_id)

    def drop(self, dataset_id: bytes) -> None:
        """Forget a mirror, whose tag stays; no error for another dataset."""
        # In this order: without the record of its promotion, a mirror would be promoted from the beginning.
        for record in (mirror_record(dataset_id), promotion_record(dataset_id)):
            self._store.delete_record(record)
        self._drop_parts(dataset_id)
        self._keep(dataset_id, None)


def _parts(dataset_id: bytes) -> str:
    """The beginning of the names of records with parts of a snapshot."""
    return f"mirrored-{dataset_id.hex()}-"


def _record_of(name: str, state: _State) -> MirrorRecord:
    digests = (bytes.fromhex(text) for text in (state.digest, state.signer, state.signature))
    return MirrorRecord(
        name, state.origin, state.generation, state.updated_ns, state.newest, state.current_s, *digests
    )


def _chunks_of(snapshot: Snapshot) -> dict[bytes, tuple[bytes, int]]:
    """Digest and length of the payload of each chunk, by ID."""
    return {
        snapshot.chunk_id(chunk): (snapshot.chunk_digest(chunk), snapshot.chunk_payload_length(chunk))
        for chunk in range(snapshot.chunk_count)
    }


class _Unapplied:
    """A `MetadataStore` to which no chunk is applied, and that reserves the same versions for all of them."""

    def __init__(self, metadata: MetadataStore, first_version: int) -> None:
        self._metadata, self._first_version = metadata, first_version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)

    def apply(self, *_: object, **__: object) -> int:
        return 0

    def reserve_versions(self, *_: object) -> int:
        return self._first_version


def unapplied(metadata: MetadataStore, dataset_id: bytes, now_ns: int) -> MetadataStore:
    """The same, but chunks that are stored through it are not applied, and their entries have versions of before this
    call has ended: what users write after another promotion of the mirror wins over them.
    """
    reserved = metadata.reserve_versions(dataset_id, CHUNK_ENTRIES_MAX, now_ns)
    return cast("MetadataStore", _Unapplied(metadata, reserved))


def entry_at(snapshot: Snapshot, path: bytes) -> FileRecord:
    """The entry at a path of a mirror. Raises NotFound."""
    if (node := snapshot.find(path)) < 0:
        raise NotFound(f"dl://{snapshot.dataset}/{printable(path)}: no such file or folder")
    return _entry(snapshot, node)


def entries_in(snapshot: Snapshot, path: bytes, after: bytes, limit: int) -> list[FileRecord]:
    """Up to `limit` entries of a folder whose names sort behind `after`. Raises NotFound, InvalidInput."""
    nodes = [node for node in snapshot.children(snapshot.require_folder(path)) if snapshot.name(node) > after]
    return [_entry(snapshot, node) for node in nodes[:limit]]


def _entry(snapshot: Snapshot, node: int) -> FileRecord:
    found, path = snapshot.stat(node), snapshot.path(node)
    op = Op.DIRECTORY if found.is_folder else Op.SYMLINK if found.is_link else Op.FILE
    extents = snapshot.extents(node) if found.is_file else []
    return FileRecord(
        path,
        op,
        found.mode & 0o7777,
        found.mtime_ns,
        found.size if found.is_file else 0,
        0,
        snapshot.target(node) if found.is_link else b"",
        tuple(
            Extent(each.place, snapshot.chunk_id(each.chunk), each.offset, each.length, each.digest)
            for each in extents
        ),
    )
