"""Snapshots, built from the metadata, signed, cached as files, and sent from these; and tags, names for generations
that are kept (`dl://data@v3`). This module reads metadata and chunk headers.

They are built on request, or in the background once a dataset was written. The next one is made from the last one that
is kept and the chunks applied since: their headers say which paths may have changed, and the live entries at these come
from the metadata store. That costs as much as the changes, where reading all entries costs as much as the dataset.

A tag is the generation's snapshot as a record in the object store. So it survives the loss of all metadata, and has the
list of the chunks that it needs. The record's name has the dataset's ID and the tag's name in hexadecimal. Before the
snapshot, the record has a signature of tag and digest, so that nobody can exchange the tags of a dataset.
"""

import errno
import logging
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NoReturn

import numpy as np
import trio

from dieselfs.chunk.format import ChunkHeader
from dieselfs.errors import (
    AccessDenied,
    AlreadyExists,
    Damaged,
    DieselfsError,
    InvalidInput,
    NotFound,
    Unavailable,
)
from dieselfs.names import check_tag_name
from dieselfs.net.auth import SIGNATURE_BYTES, check_signature
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs.rpc.records import TagRecord
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.delta import delta_between
from dieselfs.snapshot.delta_format import encode_delta
from dieselfs.snapshot.format import COUNT_MAX, SnapshotHeader, decode_snapshot_header, with_signature
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.signature import check_snapshot_signature, message_of
from dieselfs.snapshot.successor import chunk_ids, next_snapshot, with_folders
from dieselfs_server.access.identity import (
    IDENTITY_RECORD,
    NEXT_RECORD,
    Identity,
    next_identity,
    store_identity,
)
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore

log = logging.getLogger(__name__)

DELTAS_KEPT = 4
"""Over all datasets; many clients ask for the same ones. Each has at most half the bytes of its snapshot."""

Headers = Callable[[bytes, bytes], ChunkHeader]
"""The header of a stored chunk, by dataset and chunk ID. Raises NotFound, Damaged, Unavailable."""

GENERATIONS_KEPT = 4
"""Per dataset; building a new one removes older files."""


def signed(content: bytes, identity: Identity) -> bytes:
    """The snapshot file `content` with the signature of these servers."""
    header = decode_snapshot_header(content, len(content), "snapshot to sign")
    return with_signature(content, header, identity.public_key, identity.sign(message_of(header.digest)))


def check_signed(snapshot: Snapshot, identity: Identity) -> None:
    """Raise Damaged unless these servers have signed the snapshot."""
    if snapshot.header.signer != identity.public_key:
        raise Damaged(f"{snapshot.source}: not signed by the servers of this store")
    check_snapshot_signature(snapshot.header, snapshot.source)


class SnapshotCache:
    """One folder with a file for each dataset and generation. Concurrent requests share one build."""

    def __init__(
        self, folder: Path, metadata: MetadataStore, identity: Identity, headers: Headers | None = None
    ) -> None:
        """`headers`: of stored chunks, to build a generation from the one before; None builds from all entries."""
        self._folder = folder
        self._headers = headers
        self._identity = identity
        self._metadata = metadata
        self._locks: dict[bytes, trio.Lock] = {}  # changed only between checkpoints
        self._open: dict[Path, Snapshot] = {}  # each changed only under its dataset's lock
        # The newest one for which the disk had no room; replaced in one step.
        self._in_memory: tuple[Path, Snapshot] | None = None
        self._ahead: set[Path] = set()  # built ahead, and not requested yet
        self._deltas: dict[tuple[bytes, bytes], bytes] = {}  # by the digests of base and snapshot

    async def get(self, dataset: DatasetRecord, generation: int = 0) -> Snapshot:
        """The snapshot of `generation`, 0 for the newest. Raises NotFound if that generation is not kept.

        If cancelled while building, no incomplete file is left under a snapshot's name.
        """
        async with self._locks.setdefault(dataset.dataset_id, trio.Lock()):
            snapshot = await trio.to_thread.run_sync(self._get, dataset, generation)
        self._ahead.discard(Path(snapshot.source))
        return snapshot

    async def prepare(self, dataset: DatasetRecord) -> None:
        """Build the newest snapshot before a reader asks for it. One that nobody asked for takes the place of the last
        such one, so that those that clients have stay. The delta from the last generation is made as well: it is what
        most clients need. If cancelled, the build ends in the background.
        """
        async with self._locks.setdefault(dataset.dataset_id, trio.Lock()):
            if await trio.to_thread.run_sync(self.kept, dataset, abandon_on_cancel=True) is not None:
                return
            built = await trio.to_thread.run_sync(self._get, dataset, 0, abandon_on_cancel=True)
            self._ahead.add(Path(built.source))
            await trio.to_thread.run_sync(self._delta_from_last, built, abandon_on_cancel=True)

    def _get(self, dataset: DatasetRecord, generation: int) -> Snapshot:
        if generation not in (0, dataset.generation):
            return self._older(dataset, generation)
        if (kept := self.kept(dataset)) is not None:
            return kept
        unsigned = self._since_last(dataset.dataset_id)
        if unsigned is None:
            unsigned = build_snapshot(self._metadata.entry_table(dataset.dataset_id))
        content = signed(unsigned, self._identity)
        built = Snapshot(content, f"snapshot of {dataset.name}")
        path = self._path(dataset.dataset_id, built.header)  # of the generation built, which may be newer
        is_stored = self._store(dataset.dataset_id, path, content)
        for unused in [each for each in self._ahead if each.name.startswith(dataset.dataset_id.hex())]:
            self._ahead.discard(unused)
            self._open.pop(unused, None)
            unused.unlink(missing_ok=True)
        self.drop(dataset.dataset_id, GENERATIONS_KEPT)
        if not is_stored:
            self._in_memory = path, Snapshot(content, str(path))
            return self._in_memory[1]
        self._open[path] = Snapshot.open(path)
        return self._open[path]

    def _store(self, dataset_id: bytes, path: Path, content: bytes) -> bool:
        """Write a snapshot; False if the disk is full, also without the older ones of the dataset."""
        for is_retry in (False, True):
            try:
                if is_retry:
                    self.drop(dataset_id)
                self._write(path, content)
                return True
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise Unavailable(
                        f"the server cannot write a snapshot in {self._folder}: {error.strerror}"
                    ) from None
                log.warning("no room for a snapshot of %d bytes in %s", len(content), self._folder)
        return False

    def _since_last(self, dataset_id: bytes) -> bytes | None:
        """The newest generation made from the last one that is kept; None where that is not possible."""
        last = max(self._folder.glob(f"{dataset_id.hex()}-*.snapshot"), default=None)
        base = None if last is None or self._headers is None else self._kept(last)
        if base is None or self._headers is None:
            return None
        return content_since(base, self._metadata, self._headers)

    async def delta(self, snapshot: Snapshot, bases: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """The digest of the newest of `bases` that is kept here, and the delta from it to the snapshot.

        None if no base is kept, or the delta is not worth it: more than half as long as the snapshot.
        """
        async with self._locks.setdefault(snapshot.header.dataset_id, trio.Lock()):
            return await trio.to_thread.run_sync(self._delta, snapshot, frozenset(bases))

    def _delta(self, snapshot: Snapshot, bases: frozenset[bytes]) -> tuple[bytes, bytes] | None:
        base = self._base(snapshot.header.dataset_id, bases)
        if base is None:
            return None
        key = base.digest, snapshot.digest
        if (encoded := self._deltas.get(key)) is None:
            made = delta_between(base, snapshot)
            encoded = b"" if made is None else encode_delta(made)
            if 2 * len(encoded) > len(snapshot.content):
                encoded = b""
            self._deltas[key] = encoded
            if len(self._deltas) > DELTAS_KEPT:
                self._deltas.pop(next(iter(self._deltas)), None)
        return (base.digest, encoded) if encoded else None

    def _delta_from_last(self, snapshot: Snapshot) -> None:
        others = [one.digest for one in self.generations(snapshot.header.dataset_id)]
        self._delta(snapshot, frozenset(others) - {snapshot.digest})

    def generations(self, dataset_id: bytes) -> list[TagRecord]:
        """The generations whose snapshots are kept, oldest first; records without names. Blocks."""
        found = []
        for path in sorted(self._folder.glob(f"{dataset_id.hex()}-*.snapshot")):
            with suppress(Damaged, NotFound):
                header = Snapshot.open(path).header
                found.append(
                    TagRecord(
                        "",
                        header.generation,
                        header.updated_ns,
                        header.files,
                        header.total_bytes,
                        header.digest,
                    )
                )
        return found

    def _base(self, dataset_id: bytes, bases: frozenset[bytes]) -> Snapshot | None:
        for path in sorted(self._folder.glob(f"{dataset_id.hex()}-*.snapshot"), reverse=True):
            try:
                is_base = Snapshot.open(path).digest in bases
            except (Damaged, NotFound):
                continue
            if is_base and (kept := self._kept(path)) is not None:
                return kept
        return None

    def kept(self, dataset: DatasetRecord) -> Snapshot | None:
        """The snapshot of the newest generation, if its file exists. Blocks."""
        return self._kept(self._path(dataset.dataset_id, dataset))

    def _older(self, dataset: DatasetRecord, generation: int) -> Snapshot:
        pattern = f"{dataset.dataset_id.hex()}-*-{generation:x}.snapshot"
        for path in sorted(self._folder.glob(pattern), reverse=True):
            if (kept := self._kept(path)) is not None:
                return kept
        raise NotFound(
            f"generation {generation} of dataset {dataset.name} is not kept; the newest is {dataset.generation}"
        )

    def _kept(self, path: Path) -> Snapshot | None:
        """The snapshot in the file `path`, verified when it is first opened; None if there is no valid one."""
        if self._in_memory is not None and self._in_memory[0] == path:
            return self._in_memory[1]
        if path not in self._open:
            try:
                snapshot = Snapshot.open(path)
                snapshot.verify()
                check_signed(snapshot, self._identity)
            except NotFound:
                return None
            except (Damaged, InvalidInput) as error:
                log.error("%s; building it again", error)
                return None
            self._open[path] = snapshot
        return self._open[path]

    def _path(self, dataset_id: bytes, state: DatasetRecord | SnapshotHeader) -> Path:
        """Files sort by age: the time is in the name, because generations can restart after a loss of metadata."""
        return self._folder / f"{dataset_id.hex()}-{state.updated_ns:016x}-{state.generation:x}.snapshot"

    def _write(self, path: Path, content: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(content)
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)

    def drop(self, dataset_id: bytes, kept: int = 0) -> None:
        """Remove the snapshots of a dataset, except the `kept` newest. Blocks."""
        paths = sorted(self._folder.glob(f"{dataset_id.hex()}-*.snapshot"), reverse=True)
        for path in paths[kept:]:
            self._open.pop(path, None)
            path.unlink(missing_ok=True)


QUIET_S = 1.0
"""A put has ended if no chunk of the dataset arrives for this long."""
STALE_S = 30.0
"""While chunks arrive, the snapshot is built at this interval."""
PAUSE_FACTOR = 3
"""Pauses between two builds of a dataset are this many times as long as the last one: a quarter of a core at most."""


@dataclass(slots=True)
class _Written:
    """A dataset that was written: when first since its last build, when last, and when it may be built again."""

    first_s: float
    last_s: float
    not_before_s: float = -inf

    def due_s(self) -> float:
        return max(min(self.last_s + QUIET_S, self.first_s + STALE_S), self.not_before_s)


class Refresh:
    """Builds by `build`, which gets the name of a dataset. Times are those of trio's clock."""

    def __init__(self, build: Callable[[str], Awaitable[object]]) -> None:
        self._build = build
        self._written: dict[str, _Written] = {}
        self._pauses: dict[str, float] = {}
        self._changed = trio.Event()

    def note(self, dataset: str) -> None:
        """A chunk of the dataset was applied."""
        now_s = trio.current_time()
        if (written := self._written.get(dataset)) is not None:
            written.last_s = now_s
            return
        self._written[dataset] = _Written(now_s, now_s, self._pauses.get(dataset, -inf))
        self._changed.set()

    async def run(self) -> NoReturn:
        """Build until cancelled. An error is logged; the next reader gets it again."""
        while True:
            if not self._written:
                await self._changed.wait()
            self._changed = trio.Event()
            dataset = min(self._written, key=lambda name: self._written[name].due_s())
            due_s = self._written[dataset].due_s()
            if due_s > trio.current_time():
                with trio.move_on_at(due_s):
                    await self._changed.wait()
                continue
            del self._written[dataset]
            started_s = trio.current_time()
            try:
                await self._build(dataset)
            except DieselfsError as error:
                log.info("the snapshot of %s is not built ahead: %s", dataset, error)
            except Exception:  # the server must not end with a task that only saves time
                log.exception("building the snapshot of %s ahead failed with an internal error", dataset)
            now_s = trio.current_time()
            self._pauses = {name: until_s for name, until_s in self._pauses.items() if until_s > now_s}
            self._pauses[dataset] = now_s + PAUSE_FACTOR * (now_s - started_s)


CHANGES_MAX = 20_000
"""With more entries in the chunks since, all entries are read instead: each path takes a request to the metadata."""
CHANGES_SHARE = 0.1
"""The same for more than this share of the dataset."""
ATTEMPTS_MAX = 3
"""The live entries are read again if a chunk is applied meanwhile."""


def content_since(base: Snapshot, metadata: MetadataStore, headers: Headers) -> bytes | None:
    """The snapshot file of the newest generation, without a signature; None where it must be built from all entries.

    Blocks. Raises what the metadata store raises.
    """
    for _ in range(ATTEMPTS_MAX):
        dataset = metadata.dataset(base.dataset)
        chunks = metadata.chunks(base.header.dataset_id)
        new = _chunks_since(base, dataset, chunks)
        if new is None:
            return None
        try:
            changed = {path for chunk in new for path in headers(dataset.dataset_id, chunk.chunk_id).paths}
            live = {path: metadata.lookup(dataset.dataset_id, path) for path in with_folders(changed)}
            if metadata.dataset(base.dataset) != dataset:
                continue
            content = next_snapshot(base, dataset, chunks, live)
            header = decode_snapshot_header(content, len(content), "snapshot")
        except (Damaged, NotFound, Unavailable) as error:  # all entries are read from the metadata alone
            log.warning("the snapshot of %s is built from all entries: %s", base.dataset, error)
            return None
        is_right = (header.files, header.total_bytes) == (dataset.files, dataset.total_bytes)
        return content if is_right and header.nodes <= COUNT_MAX else None
    return None


def _chunks_since(
    base: Snapshot, dataset: DatasetRecord, chunks: list[ChunkRecord]
) -> list[ChunkRecord] | None:
    """The chunks applied since `base`; None if they do not say all that changed, or are too many."""
    header = base.header
    if dataset.dataset_id != header.dataset_id or dataset.updated_ns <= header.updated_ns:
        return None
    known = set(chunk_ids(base))
    new = [chunk for chunk in chunks if chunk.chunk_id not in known]
    # Each raises the generation by one. Purge may have removed others since, with their deletes.
    if not new or dataset.generation - header.generation != len(new):
        return None
    changes = sum(chunk.entries for chunk in new)
    return new if changes <= min(CHANGES_MAX, CHANGES_SHARE * len(base)) else None


_TAG_RECORD = re.compile(r"tag-[0-9a-f]{32}-(?:[0-9a-f]{2})+")

TAGS_MAX = 1000
"""Of a dataset. A quota counts chunks alone, and each tag takes as much of the object store as a snapshot."""

READS_MAX = 2
"""Limit of tags that are being read, over all clients: each is a snapshot in memory."""


class TagStore:
    """Handlers hold one of `reads` while they read tags."""

    def __init__(self, store: ObjectStore, identity: Identity) -> None:
        self._store = store
        self._identity = identity
        self.reads = trio.CapacityLimiter(READS_MAX)

    def add(self, snapshot: Snapshot, name: str) -> TagRecord:
        """Tag a snapshot. Raises AlreadyExists: a tag never changes; and InvalidInput for more than TAGS_MAX."""
        dataset_id = snapshot.header.dataset_id
        record = _record_name(dataset_id, check_tag_name(name))
        if self._store.get_record(record) is not None:
            raise AlreadyExists(f"dataset {snapshot.dataset} already has a tag {name!r}; remove it first")
        if len(self.names(dataset_id)) >= TAGS_MAX:
            raise InvalidInput(
                f"dataset {snapshot.dataset} has {TAGS_MAX:,} tags, the limit; remove one: "
                f"dlcmd tag rm dl://{snapshot.dataset} TAG"
            )
        signature = self._identity.sign(_message(name, snapshot))
        self._store.put_record(record, signature + snapshot.content)
        return _describe(name, snapshot)

    def get(self, dataset: str, dataset_id: bytes, name: str) -> Snapshot:
        """The snapshot that a tag names. Raises NotFound, Damaged."""
        content = self._store.get_record(_record_name(dataset_id, check_tag_name(name)))
        if content is None:
            raise NotFound(
                f"dataset {dataset} has no tag {name!r}; list its tags with: dlcmd tag ls dl://{dataset}"
            )
        source = f"tag {name} of {dataset}"
        snapshot = Snapshot(content[SIGNATURE_BYTES:], source)
        snapshot.verify()
        check_signed(snapshot, self._identity)
        if snapshot.header.dataset_id != dataset_id:
            raise Damaged(f"tag {name} of {dataset} holds the snapshot of another dataset")
        pin, public_key = self._identity.pin, self._identity.public_key
        try:
            check_signature(pin, public_key, _message(name, snapshot), content[:SIGNATURE_BYTES], source)
        except AccessDenied as error:
            raise Damaged(str(error)) from None
        return snapshot

    def names(self, dataset_id: bytes) -> list[str]:
        prefix = _prefix(dataset_id)
        found = (record.removeprefix(prefix) for record in self._store.list_records(prefix))
        return sorted(bytes.fromhex(name).decode("ascii", "replace") for name in found)

    def all(self, dataset: str, dataset_id: bytes) -> list[TagRecord]:
        """All tags of a dataset, ordered by name. Raises Damaged if one cannot be read."""
        return [self.record(dataset, dataset_id, name) for name in self.names(dataset_id)]

    def record(self, dataset: str, dataset_id: bytes, name: str) -> TagRecord:
        """What one tag says. Raises NotFound, Damaged."""
        return _describe(name, self.get(dataset, dataset_id, name))

    def remove(self, dataset: str, dataset_id: bytes, name: str) -> None:
        """Remove a tag; a later purge removes the chunks that only it needed. Raises NotFound."""
        if name not in self.names(dataset_id):
            raise NotFound(f"dataset {dataset} has no tag {name!r}")
        self._store.delete_record(_record_name(dataset_id, check_tag_name(name)))

    def drop(self, dataset_id: bytes) -> None:
        for record in self._store.list_records(_prefix(dataset_id)):
            self._store.delete_record(record)

    def needed_chunks(self, dataset: str, dataset_id: bytes) -> dict[str, set[bytes]]:
        """IDs of the chunks of each tagged generation, by tag. Raises Damaged if a tag cannot be read."""
        needed: dict[str, set[bytes]] = {}
        for name in self.names(dataset_id):
            snapshot = self.get(dataset, dataset_id, name)
            used = np.unique(snapshot.column("extent_chunks")).tolist()
            needed[name] = {snapshot.chunk_id(chunk) for chunk in used}
        return needed


def replace_identity(store: ObjectStore) -> tuple[Identity, int]:
    """Make the next identity the present one, and sign all tags with it; returns it, and the number of tags. No server
    may run. An interrupted call is repeated: then some tags have the new signature already.

    Raises InvalidInput without a next identity, Damaged for a tag that neither has signed; nothing is replaced then.
    """
    old, new = store_identity(store), next_identity(store)
    if new is None:
        raise InvalidInput(
            "there is no next identity: make one with --new-identity announce, and give keys time"
        )
    records = [name for name in store.list_records("tag-") if _TAG_RECORD.fullmatch(name)]
    for record in records:
        content = store.get_record(record)
        if content is not None:
            store.put_record(record, _signed_again(record, content, old, new))
    store.put_record(IDENTITY_RECORD, new.encode())
    store.delete_record(NEXT_RECORD)
    return new, len(records)


def _signed_again(record: str, content: bytes, old: Identity, new: Identity) -> bytes:
    """The content of a tag with signatures of `new`. Raises Damaged."""
    name = bytes.fromhex(record.rpartition("-")[2]).decode("ascii", "replace")
    snapshot = Snapshot(content[SIGNATURE_BYTES:], f"tag {name}")
    snapshot.verify()
    by = new if snapshot.header.signer == new.public_key else old
    check_signed(snapshot, by)
    message = _message(name, snapshot)
    try:
        check_signature(by.pin, by.public_key, message, content[:SIGNATURE_BYTES], snapshot.source)
    except AccessDenied as error:
        raise Damaged(str(error)) from None
    return new.sign(message) + signed(bytes(snapshot.content), new)


def _prefix(dataset_id: bytes) -> str:
    return f"tag-{dataset_id.hex()}-"


def _record_name(dataset_id: bytes, name: str) -> str:
    return _prefix(dataset_id) + name.encode("ascii").hex()


def _message(name: str, snapshot: Snapshot) -> bytes:
    return b"dieselfs tag\0" + name.encode("ascii") + b"\0" + snapshot.digest


def _describe(name: str, snapshot: Snapshot) -> TagRecord:
    header = snapshot.header
    return TagRecord(
        name, header.generation, header.updated_ns, header.files, header.total_bytes, header.digest
    )
