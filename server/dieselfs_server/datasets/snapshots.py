"""Snapshots, built from the metadata, signed, cached as files, and sent from these. This module reads metadata and
chunk headers.

They are built on request, or in the background once a dataset was written. The next one is made from the last one that
is kept and the chunks applied since: their headers say which paths may have changed, and the live entries at these come
from the metadata store. That costs as much as the changes, where reading all entries costs as much as the dataset. A
snapshot lists the chunks that its files need, and no other; so a purge does not change it. The IDs of all chunks that
were applied are in a file beside it, which no client gets.
"""

import errno
import logging
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import trio

from dieselfs.chunk.format import ChunkHeader
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.errors import Damaged, InvalidInput, NotFound, StorageFull, Unavailable
from dieselfs.process.state_dirs import locked
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs.rpc.records import TagRecord
from dieselfs.snapshot.builder import SnapshotBuilder
from dieselfs.snapshot.delta_format import Delta
from dieselfs.snapshot.encoding import Seal, with_signature
from dieselfs.snapshot.files import put_file, write_aside
from dieselfs.snapshot.format import SnapshotHeader, decode_snapshot_header
from dieselfs.snapshot.freshness import LIFETIME_S, Statement
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.signature import check_snapshot_signature, message_of
from dieselfs.snapshot.successor import NextSnapshot, with_folders
from dieselfs_server.access.identity import Identity, LiveIdentity
from dieselfs_server.datasets.deltas import STEPS_KEPT, Deltas, read_sealed, write_sealed
from dieselfs_server.metadata.interface import MetadataStore

log = logging.getLogger(__name__)

Headers = Callable[[bytes, bytes], ChunkHeader]
"""The header of a stored chunk, by dataset and chunk ID. Raises NotFound, Damaged, Unavailable."""

GENERATIONS_KEPT = 4
"""Per dataset; building a new one removes older files."""

BUILD_MEMORY_BYTES = 2 << 30
"""A server needs no more memory to build a snapshot."""
_BYTES_IN_MEMORY = 600
"""Per entry, where all entries have to be in memory."""

Write = Callable[[BinaryIO, Seal], object]
"""Writes a snapshot into an empty file, signed."""


class Made(NamedTuple):
    """A generation of a dataset, all its chunks, what writes its snapshot, and what then gives the delta to it from the
    last one.
    """

    dataset: DatasetRecord
    chunks: Sequence[ChunkRecord]
    write: Write
    delta: Callable[[Snapshot], Delta] | None = None


def seal_of(identity: Identity) -> Seal:
    return lambda digest: (identity.public_key, identity.sign(message_of(digest)))


def signed(content: bytes, identity: Identity) -> bytes:
    """The snapshot file `content` with the signature of these servers."""
    return _sealed(content, seal_of(identity))


def written(content: bytes) -> Write:
    """Writes the snapshot file `content`."""
    return lambda file, seal: file.write(_sealed(content, seal))


def _sealed(content: bytes, seal: Seal) -> bytes:
    header = decode_snapshot_header(content, len(content), "snapshot to sign")
    return with_signature(content, header, *seal(header.digest))


def check_signed(snapshot: Snapshot, identity: Identity | LiveIdentity) -> None:
    """Raise Damaged unless these servers have signed the snapshot; Unavailable."""
    if not identity.accepts(snapshot.header.signer):
        raise Damaged(f"{snapshot.source}: not signed by the servers of this store")
    check_snapshot_signature(snapshot.header, snapshot.source)


def tag_record(name: str, header: SnapshotHeader) -> TagRecord:
    return TagRecord(
        name, header.generation, header.updated_ns, header.files, header.total_bytes, header.digest
    )


BUILD_WAIT_S = 3600.0
"""How long a process waits for another one that builds a snapshot of the dataset."""


class SnapshotCache:
    """One folder with a file for each dataset and generation. Concurrent requests share one build."""

    def __init__(
        self,
        folder: Path,
        metadata: MetadataStore,
        identity: Identity | LiveIdentity,
        headers: Headers | None = None,
        run: bytes = b"",
    ) -> None:
        """`headers`: of stored chunks, to build a generation from the one before; None builds from all entries. `run`:
        names this run of the server, if other processes of it have the same folder.
        """
        self._folder = folder
        self._run, self._is_shared = run, bool(run)
        self._headers = headers
        self._identity = identity
        self._metadata = metadata
        self._locks: dict[bytes, trio.Lock] = {}  # changed only between checkpoints
        self._open: dict[Path, Snapshot] = {}  # each changed only under its dataset's lock
        # The newest one for which the disk had no room; replaced in one step.
        self._in_memory: tuple[Path, Snapshot] | None = None
        self._ahead: set[Path] = set()  # built ahead, and not requested yet
        self._deltas = Deltas()
        self._last_stated: Statement | None = None  # replaced in one step

    async def get(self, dataset: DatasetRecord, generation: int = 0) -> Snapshot:
        """The snapshot of `generation`, 0 for the newest. Raises NotFound if that generation is not kept.

        If cancelled while building, no incomplete file is left under a snapshot's name.
        """
        async with self._locks.setdefault(dataset.dataset_id, trio.Lock()):
            snapshot = await trio.to_thread.run_sync(self._get, dataset, generation)
        self._ahead.discard(Path(snapshot.source))
        return snapshot

    def stated(self, snapshot: Snapshot, now_s: int) -> bytes:
        """The signed statement that this snapshot is the newest of its dataset; many readers in a second share one.
        Empty while the private key is away. Blocks.
        """
        header, identity = snapshot.header, self._identity.current
        state = header.dataset, header.dataset_id, header.generation, header.updated_ns, header.digest
        made = Statement(*state, now_s, LIFETIME_S, identity.public_key)
        last = self._last_stated
        if last is None or last.message() != made.message():
            try:
                last = self._last_stated = replace(made, signature=identity.sign(made.message()))
            except Unavailable as error:
                log.error("no statement of freshness of %s: %s", header.dataset, error)
                return b""
        return last.encode()

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
        if self._is_shared:
            self._forget_removed(dataset.dataset_id)
        if generation not in (0, dataset.generation):
            return self._older(dataset, generation)
        if (kept := self.kept(dataset)) is not None:
            return kept
        with self._alone(dataset.dataset_id):
            if self._is_shared:
                dataset = self._metadata.dataset(dataset.name)
                if (kept := self.kept(dataset)) is not None:  # another process has built it meanwhile
                    return kept
            return self._built(dataset)

    @contextmanager
    def _alone(self, dataset_id: bytes) -> Iterator[None]:
        """The block is that of one process at a time, for a dataset."""
        if not self._is_shared:
            yield
            return
        with ExitStack() as stack:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(locked(self._lock_path(dataset_id), BUILD_WAIT_S))
            except BlockingIOError:
                raise Unavailable(
                    f"another process of the server builds a snapshot of this dataset for {BUILD_WAIT_S:.0f} s"
                ) from None
            except OSError as error:
                raise Unavailable(
                    f"the server cannot write a snapshot in {self._folder}: {error.strerror}"
                ) from None
            yield

    def _forget_removed(self, dataset_id: bytes) -> None:
        """Release the snapshots that other processes have removed."""
        for path in [*self._open]:
            if path.name.startswith(dataset_id.hex()) and not path.exists():
                self._open.pop(path, None)

    def _lock_path(self, dataset_id: bytes) -> Path:
        return self._folder / f"{dataset_id.hex()}.lock"

    def _built(self, dataset: DatasetRecord) -> Snapshot:
        """The newest snapshot, which is not kept."""
        made = self._since_last(dataset.dataset_id) or self._from_all(dataset)
        path = self._path(dataset.dataset_id, made.dataset)  # of the generation built, which may be newer
        is_stored = self._store(dataset.dataset_id, path, made.write, made.chunks)
        for unused in [each for each in self._ahead if each.name.startswith(dataset.dataset_id.hex())]:
            self._ahead.discard(unused)
            # Else built again, for a caller whose record was older, or other processes may have sent it.
            if unused != path and not self._is_shared:
                self._open.pop(unused, None)
                unused.unlink(missing_ok=True)
        self.drop(dataset.dataset_id, GENERATIONS_KEPT)
        if not is_stored:
            return self._kept_in_memory(path, made.write)
        self._open[path] = built = Snapshot.open(path)
        self._note_verified(path, built)
        if made.delta is not None:
            self._deltas.add_step(path, built, made.delta(built))
        return built

    def _from_all(self, dataset: DatasetRecord) -> Made:
        """The newest generation from all entries, which are spilled into the folder; into memory if the disk is full,
        also without older snapshots, and BUILD_MEMORY_BYTES are enough. Raises Unavailable.
        """
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratches = (str(self._folder), str(self._folder), None)
        for attempt, scratch in enumerate(scratches):
            if attempt:
                self.drop(dataset.dataset_id)
            if scratch is None and dataset.files * _BYTES_IN_MEMORY > BUILD_MEMORY_BYTES:
                break
            try:
                builder = self._metadata.read_entries(dataset.dataset_id, partial(SnapshotBuilder, scratch))
                return Made(builder.dataset, builder.chunk_table, builder.write)
            except StorageFull as error:
                log.warning("%s", error)
            except OSError as error:
                self._check_room(error)
        raise Unavailable(f"the server has no room for the snapshot of {dataset.name} in {self._folder}")

    def _store(
        self, dataset_id: bytes, path: Path, write: Write, chunks: Sequence[ChunkRecord] | None = None
    ) -> bool:
        """Write a snapshot, and the IDs of the chunks in its generation; False if the disk is full, also without the
        older ones of the dataset.
        """
        applied = None if chunks is None else b"".join(chunk.chunk_id for chunk in chunks)
        for is_retry in (False, True):
            try:
                if is_retry:
                    self.drop(dataset_id)
                if applied is not None:
                    write_sealed(_applied_path(path), applied)
                write_aside(path, lambda file: write(file, seal_of(self._identity.current)))
                return True
            except StorageFull as error:
                log.warning("%s", error)
            except OSError as error:
                self._check_room(error)
        return False

    def _check_room(self, error: OSError) -> None:
        """Log that the disk is full; raise Unavailable for another error."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable(
                f"the server cannot write a snapshot in {self._folder}: {error.strerror}"
            ) from None
        log.warning("no room for a snapshot in %s", self._folder)

    def _kept_in_memory(self, path: Path, write: Write) -> Snapshot:
        file = BytesIO()
        write(file, seal_of(self._identity.current))
        self._in_memory = path, Snapshot(file.getvalue(), str(path))
        return self._in_memory[1]

    def _since_last(self, dataset_id: bytes) -> Made | None:
        """The newest generation made from the last one that is kept; None where that is not possible."""
        last = max(self._folder.glob(f"{dataset_id.hex()}-*.snapshot"), default=None)
        if last is None or self._headers is None:
            return None
        try:
            packed = read_sealed(_applied_path(last))
        except (OSError, Damaged):  # not written yet, removed, or written before a power cut
            return None
        if (base := self._kept(last)) is None:
            return None
        applied = {packed[at : at + CHUNK_ID_BYTES] for at in range(0, len(packed), CHUNK_ID_BYTES)}
        return content_since(base, applied, self._metadata, self._headers)

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
        encoded = self._deltas.between(base, snapshot, self._folder)
        return (base.digest, encoded) if encoded else None

    def _delta_from_last(self, snapshot: Snapshot) -> None:
        others = [one.digest for one in self.generations(snapshot.header.dataset_id)]
        self._delta(snapshot, frozenset(others) - {snapshot.digest})

    def generations(self, dataset_id: bytes) -> list[TagRecord]:
        """The generations whose snapshots are kept, oldest first; records without names. Blocks."""
        found = []
        for path in sorted(self._folder.glob(f"{dataset_id.hex()}-*.snapshot")):
            with suppress(Damaged, NotFound):
                found.append(tag_record("", Snapshot.open(path).header))
        return found

    def _base(self, dataset_id: bytes, bases: frozenset[bytes]) -> Snapshot | None:
        for path in sorted(self._folder.glob(f"{dataset_id.hex()}-*.snapshot"), reverse=True):
            try:
                is_base = Snapshot.open(path).digest in bases
            except (Damaged, NotFound):
                continue
            if is_base and (base := self._open.get(path) or self._verified(path)) is not None:
                return base
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
        """The snapshot in the file `path`, verified when it is first opened, and signed again for a new identity; None
        if there is no valid one.
        """
        identity = self._identity.current
        found = self._in_memory[1] if self._in_memory and self._in_memory[0] == path else self._opened(path)
        if found is None or found.header.signer == identity.public_key:
            return found
        return self._replaced(path, found, bytes(found.content))

    def _opened(self, path: Path) -> Snapshot | None:
        if path not in self._open:
            if (snapshot := self._verified(path)) is None:
                return None
            self._open[path] = snapshot
        return self._open[path]

    def _replaced(self, path: Path, snapshot: Snapshot, content: bytes) -> Snapshot:
        """The snapshot file `content` in the place of a kept one, with a new signature."""
        self._deltas.clear()  # they have the signature
        if self._store(snapshot.header.dataset_id, path, written(content)):
            self._open[path] = Snapshot.open(path)
            return self._open[path]
        return self._kept_in_memory(path, written(content))

    def _verified(self, path: Path) -> Snapshot | None:
        try:
            snapshot = Snapshot.open(path)
            if not self._is_noted(path, snapshot):
                snapshot.verify()
                self._note_verified(path, snapshot)
            check_signed(snapshot, self._identity)
            return snapshot
        except NotFound:
            return None
        except (Damaged, InvalidInput) as error:
            log.error("%s; building it again", error)
            return None

    def _is_noted(self, path: Path, snapshot: Snapshot) -> bool:
        """Whether a process of this run has built or verified it: to verify it costs as much as the dataset."""
        with suppress(OSError):
            return (
                self._is_shared and path.with_suffix(".verified").read_bytes() == self._run + snapshot.digest
            )
        return False

    def _note_verified(self, path: Path, snapshot: Snapshot) -> None:
        if self._is_shared:
            with suppress(OSError):
                put_file(path.with_suffix(".verified"), self._run + snapshot.digest)

    def _path(self, dataset_id: bytes, state: DatasetRecord | SnapshotHeader) -> Path:
        """Files sort by age: the time is in the name, because generations can restart after a loss of metadata."""
        return self._folder / f"{dataset_id.hex()}-{state.updated_ns:016x}-{state.generation:x}.snapshot"

    def drop(self, dataset_id: bytes, kept: int = 0) -> None:
        """Remove the snapshots of a dataset, except the `kept` newest. Blocks."""
        paths = sorted(self._folder.glob(f"{dataset_id.hex()}-*.snapshot"), reverse=True)
        for path in paths[kept:]:
            self._open.pop(path, None)
            path.unlink(missing_ok=True)
        if not kept:
            self._lock_path(dataset_id).unlink(missing_ok=True)
        steps = sorted(self._folder.glob(f"{dataset_id.hex()}-*.delta"), reverse=True)
        for path in steps[STEPS_KEPT if kept else 0 :]:
            path.unlink(missing_ok=True)
        for suffix in (".chunks", ".verified"):
            for path in self._folder.glob(f"{dataset_id.hex()}-*{suffix}"):
                if not path.with_suffix(".snapshot").exists():
                    path.unlink(missing_ok=True)


def _applied_path(path: Path) -> Path:
    """The file with the IDs of all chunks in the generation of the snapshot file `path`, dead ones too."""
    return path.with_suffix(".chunks")


CHANGES_MAX = 20_000
"""With more entries in the chunks since, all entries are read instead: each path takes a request to the metadata."""
CHANGES_SHARE = 0.1
"""The same for more than this share of the dataset."""
ATTEMPTS_MAX = 3
"""The live entries are read again if a chunk is applied meanwhile."""


def content_since(
    base: Snapshot, applied: Set[bytes], metadata: MetadataStore, headers: Headers
) -> Made | None:
    """The newest generation; None where it must be built from all entries. `applied`: the IDs of the chunks in the
    generation of `base`.

    Blocks. Raises what the metadata store raises.
    """
    for _ in range(ATTEMPTS_MAX):
        dataset = metadata.dataset(base.dataset)
        chunks = metadata.chunks(base.header.dataset_id)
        new = _chunks_since(base, applied, dataset, chunks)
        if new is None:
            return None
        try:
            changed = {path for chunk in new for path in headers(dataset.dataset_id, chunk.chunk_id).paths}
            live = {path: metadata.lookup(dataset.dataset_id, path) for path in with_folders(changed)}
            if metadata.dataset(base.dataset) != dataset:
                continue
            made = NextSnapshot(base, dataset, chunks, live)
        except (Damaged, NotFound, Unavailable) as error:  # all entries are read from the metadata alone
            log.warning("the snapshot of %s is built from all entries: %s", base.dataset, error)
            return None
        is_right = (made.counts["files"], made.counts["total_bytes"]) == (dataset.files, dataset.total_bytes)
        return Made(dataset, chunks, made.write, made.delta) if is_right else None
    return None


def _chunks_since(
    base: Snapshot, applied: Set[bytes], dataset: DatasetRecord, chunks: list[ChunkRecord]
) -> list[ChunkRecord] | None:
    """The chunks applied since `base`; None if they do not say all that changed, or are too many."""
    header = base.header
    if dataset.dataset_id != header.dataset_id or dataset.updated_ns <= header.updated_ns:
        return None
    new = [chunk for chunk in chunks if chunk.chunk_id not in applied]
    # Each raises the generation by one. Purge may have removed others since, with their deletes.
    if not new or dataset.generation - header.generation != len(new):
        return None
    changes = sum(chunk.entries for chunk in new)
    return new if changes <= min(CHANGES_MAX, CHANGES_SHARE * len(base)) else None
