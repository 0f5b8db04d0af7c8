"""Snapshots, built from the metadata on request, signed, cached as files, and sent from these."""

import errno
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import trio

from dieselfs.errors import Damaged, InvalidInput, NotFound, StorageFull, Unavailable
from dieselfs.records import DatasetRecord
from dieselfs.rpc.records import TagRecord
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.delta import delta_between
from dieselfs.snapshot.delta_format import encode_delta
from dieselfs.snapshot.format import SnapshotHeader, decode_snapshot_header, with_signature
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.signature import check_snapshot_signature, message_of
from dieselfs_server.access.identity import Identity
from dieselfs_server.datasets.changes import Headers, content_since
from dieselfs_server.metadata.interface import MetadataStore

log = logging.getLogger(__name__)

DELTAS_KEPT = 4
"""Over all datasets; many clients ask for the same ones. Each has at most half the bytes of its snapshot."""

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
        try:
            self._write(path, content)
        except OSError as error:
            kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else Unavailable
            raise kind(
                f"the server cannot write a snapshot in {self._folder}: {error.strerror}; free space there, then retry"
            ) from None
        for unused in [each for each in self._ahead if each.name.startswith(dataset.dataset_id.hex())]:
            self._ahead.discard(unused)
            self._open.pop(unused, None)
            unused.unlink(missing_ok=True)
        self.drop(dataset.dataset_id, GENERATIONS_KEPT)
        self._open[path] = Snapshot.open(path)
        return self._open[path]

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
