"""Local snapshot files: fetched from the server once and verified. This module opens files."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import get_ident

from dieselfs.errors import Damaged, DieselfsError, NotFound
from dieselfs.limits import MIB, SNAPSHOT_BASES_MAX
from dieselfs.net.auth import pin_of
from dieselfs.records import DatasetRecord
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import RemoteSnapshot, TagRecord
from dieselfs.settings import Settings
from dieselfs.snapshot.check import Part
from dieselfs.snapshot.delta import apply_delta
from dieselfs.snapshot.delta_format import decode_delta
from dieselfs.snapshot.derived import stored_plain
from dieselfs.snapshot.files import cannot_store, created, file_name, put_file, state_of, write_aside
from dieselfs.snapshot.format import SnapshotHeader
from dieselfs.snapshot.freshness import State, Statement, is_older
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.saved import NEWEST_FILE, check_saved, read_statement, statement_of
from dieselfs.snapshot.signature import check_snapshot_signature

_log = logging.getLogger(__name__)

GENERATIONS_KEPT = 4
SIGNER_FILE = "signer"
RECEIVED_BYTES = 1 * MIB
"""A snapshot is written to its file in parts of this length as it arrives."""


class SnapshotStore:
    """One private folder per dataset, with one file per generation; shared by all processes of the user.

    A newest snapshot that is older than a stored one, or than the last statement of the servers, which is in the file
    `newest` beside the snapshots, is refused: the server may have lost data. An older one must be requested by its
    generation or tag, or allowed by `is_older_allowed` (DIESELFS_ALLOW_OLDER).

    Each snapshot is signed by the servers. The file `signer` beside the snapshots has the key that signed the first; a
    snapshot with another signer is refused. With a key file, the signer is also the one that the key file names.
    """

    def __init__(
        self,
        folder: Path,
        is_older_allowed: bool = False,
        shared: Path | None = None,
        max_age_s: float = 0.0,
    ) -> None:
        """`shared`: a folder of the same form, in which others save snapshots; copies of these are used.

        `max_age_s`: of statements of freshness, without which a newest or saved snapshot is refused then; 0: no limit.
        """
        self._folder = folder
        self._is_older_allowed = is_older_allowed
        self._max_age_s = max_age_s
        self._shared = shared

    @classmethod
    def of(cls, settings: Settings) -> "SnapshotStore":
        """The store of this user."""
        shared = Path(settings.snapshots).expanduser() if settings.snapshots else None
        return cls(settings.cache / "snapshots", settings.is_older_allowed, shared, settings.max_age_s)

    def get(
        self, client: ServerClient, dataset: DatasetRecord, generation: int = 0, tag: str = ""
    ) -> Snapshot:
        """The snapshot of a generation, 0 for the newest, or of a tag; from a local file or from the server. That of an
        encrypted dataset has plain names.

        Raises AccessDenied without the key of an encrypted dataset;
        NotFound, Unavailable, StorageFull, and Damaged if the server twice sends a snapshot that does not match
        its description, that is older than the newest one known, or that is not signed by the servers of the dataset;
        DieselfsError without a statement of freshness that is new enough.
        """
        cipher = client.cipher(dataset)
        try:
            found = self._offered(client, dataset, generation, tag)
        except Damaged:  # perhaps in transfer, or the file that a delta was applied to
            found = self._offered(client, dataset, generation, tag, is_whole=True)
        return found if cipher is None else stored_plain(found, cipher)

    def _offered(
        self,
        client: ServerClient,
        dataset: DatasetRecord,
        generation: int,
        tag: str,
        is_whole: bool = False,
    ) -> Snapshot:
        """`is_whole`: no delta. A delta takes the place of a snapshot of which little has changed."""
        folder = self._folder / dataset.dataset_id.hex()
        is_newest = not generation and not tag
        known = self._known(folder, dataset, generation) if not tag else None
        if known is None and not is_whole:
            known = self._adopted(dataset, 0 if tag else generation, client.servers_pins)
        held = [] if is_whole else self._held(folder)[:SNAPSHOT_BASES_MAX]
        bases = {snapshot.digest: snapshot for snapshot in held}
        arriving = folder / f"arriving.{os.getpid()}.{get_ident()}.tmp"
        try:
            remote = client.snapshot(
                dataset.name,
                generation,
                known.digest if known else b"",
                tag,
                b"".join(bases),
                partial(_received, arriving),
            )
            if is_newest:
                self._note_newest(folder, dataset, remote, client.servers_pins)
            if remote.content is None and known is not None:
                return known
            if not arriving.exists():
                raise Damaged(f"the server sent an empty snapshot of {dataset.name}")
            parts = None
            if remote.base_digest:
                source = f"delta of {dataset.name} from the server"
                if remote.base_digest not in bases:
                    raise Damaged(f"{source}: it is for a snapshot that is not here")
                delta = decode_delta(arriving.read_bytes(), source)
                parts = write_aside(arriving, partial(apply_delta, bases[remote.base_digest], delta, source))
            return self._keep(arriving, dataset, remote, client.servers_pins, parts)
        except OSError as error:
            raise cannot_store(folder, error) from None
        finally:
            with suppress(OSError):
                arriving.unlink(missing_ok=True)

    def _note_newest(
        self, folder: Path, dataset: DatasetRecord, remote: RemoteSnapshot, pins: Sequence[bytes]
    ) -> None:
        """Compare what the server says is the newest generation with what was seen before, and remember it."""
        known = self._newest(folder)
        if known is not None and is_older(remote, known) and not self._is_older_allowed:
            raise Damaged(
                f"the server offers an older snapshot of {dataset.name} (generation {remote.generation}) than the "
                f"newest one on this machine (generation {known.generation}); if that is right, set "
                "DIESELFS_ALLOW_OLDER=yes, or tag the generation and read the tag"
            )
        source = f"snapshot of {dataset.name} from the server"
        if not remote.statement:
            if self._max_age_s:
                raise DieselfsError(
                    f"{source}: no statement of freshness, which max_age asks for: the server is of an earlier "
                    "version, or its private key is away"
                )
            return
        statement = Statement.decode(remote.statement, source)
        stated = statement.dataset_id, statement.generation, statement.updated_ns, statement.digest
        if stated != (dataset.dataset_id, remote.generation, remote.updated_ns, remote.digest):
            raise Damaged(f"{source}: the statement of freshness is about another one")
        if remote.content is not None or self._max_age_s:  # else of a snapshot that is here and was verified
            statement.check_signature(source)
            self.check_signer(statement, pins)
        if self._max_age_s:
            statement.check_age(time.time(), self._max_age_s, source)
        if known is None or known.updated_ns <= remote.updated_ns:
            with suppress(OSError):  # the snapshot is remembered as well
                put_file(folder / NEWEST_FILE, remote.statement)

    def _newest(self, folder: Path) -> State | None:
        """The newest state that was seen: of the last statement, or of a snapshot."""
        states: list[State] = [snapshot.header for snapshot in self._held(folder)[:1]]
        if (statement := statement_of(folder / NEWEST_FILE)) is not None:
            states.append(statement)
        return max(states, key=lambda state: state.updated_ns, default=None)

    def check_statement(
        self, path: str, newest: DatasetRecord, kept: Iterable[TagRecord], pins: Sequence[bytes] = ()
    ) -> None:
        """Raise Damaged if the servers have an older state than this statement says, or another history: `newest`, and
        the generations that can be read. Also if it is not signed by the servers; NotFound without it.
        """
        statement = read_statement(path)
        if statement.dataset_id != newest.dataset_id:
            raise Damaged(f"{path}: about another dataset than {newest.name} of these servers")
        self.check_signer(statement, pins)
        if is_older(newest, statement):
            raise Damaged(
                f"the servers have an older state of {newest.name} (generation {newest.generation}) than they stated "
                f"in {path} (generation {statement.generation}): ask an administrator whether a copy was restored"
            )
        for one in kept:
            if one.generation == statement.generation and one.digest != statement.digest:
                raise Damaged(
                    f"generation {one.generation} of {newest.name} is another one than stated in {path}"
                )

    def check_signer(self, signed: SnapshotHeader | Statement, pins: Sequence[bytes] = ()) -> None:
        """Raise Damaged unless the signer is that of the first snapshot of the dataset, or the key file has the pins of
        both; StorageFull.
        """
        folder = self._folder / signed.dataset_id.hex()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_signer(folder / SIGNER_FILE, signed.dataset, signed.signer, pins)
        except OSError as error:
            raise cannot_store(folder, error) from None

    def _known(self, folder: Path, dataset: DatasetRecord, generation: int) -> Snapshot | None:
        """The local snapshot of a generation, 0 for the newest; the server decides whether it is current."""
        if not generation:
            return self._open(folder / file_name(*state_of(dataset)))
        here = max(folder.glob(f"*-{generation:x}.snapshot"), default=None)
        return None if here is None else self._open(here)

    def _adopted(self, dataset: DatasetRecord, generation: int, pins: Sequence[bytes]) -> Snapshot | None:
        """A copy of a snapshot in the shared folder. If there is none of the generation, the newest one is taken: a
        delta from it may be enough.
        """
        if self._shared is None:
            return None
        folder = self._shared / dataset.dataset_id.hex()
        pattern = f"*-{generation:x}.snapshot" if generation else file_name(*state_of(dataset))
        found = sorted(folder.glob(pattern)) or sorted(folder.glob("*.snapshot"))
        try:
            adopted = self.adopt(found[-1], pins) if found else None
        except DieselfsError as error:
            _log.warning("%s; it is not used", error)
            return None
        # Of another dataset: the file has been put into the wrong folder.
        return adopted if adopted is not None and adopted.header.dataset_id == dataset.dataset_id else None

    def adopt(self, path: str | os.PathLike[str], pins: Sequence[bytes] = ()) -> Snapshot:
        """A copy of a saved snapshot, verified as one from a server. `pins`: of the servers, from the key file.

        Raises NotFound, InvalidInput, Damaged, StorageFull, and as `check_saved`.
        """
        saved = Snapshot.open(path)
        check_saved(saved, self._max_age_s, pins)
        folder = self._folder / saved.header.dataset_id.hex()
        known = self._open(folder / file_name(*state_of(saved.header)))
        if known is not None and known.digest == saved.digest:
            return known
        aside = folder / f"adopted.{os.getpid()}.{get_ident()}.tmp"
        try:
            put_file(aside, saved.content)
            return self._put(aside, saved.source, lambda _: None, pins)
        except OSError as error:
            raise cannot_store(folder, error) from None
        finally:
            with suppress(OSError):
                aside.unlink(missing_ok=True)

    def stored(self) -> list[Snapshot]:
        """The stored snapshots of all datasets, by name, the newest first."""
        held = [self._held(folder) for folder in self._folder.glob("*")]
        return [
            snapshot
            for one in sorted(held, key=lambda one: one[0].dataset if one else "")
            for snapshot in one
        ]

    @staticmethod
    def remove(snapshot: Snapshot) -> int:
        """Remove a stored snapshot with what was made from it; returns the bytes. Readers keep what they have open."""
        return _remove(Path(snapshot.source))

    def _held(self, folder: Path) -> list[Snapshot]:
        """The stored snapshots of a dataset, the newest first."""
        found = map(self._open, sorted(folder.glob("*.snapshot"), reverse=True))
        return [snapshot for snapshot in found if snapshot is not None]

    def _open(self, path: Path) -> Snapshot | None:
        try:
            return Snapshot.open(path)
        except NotFound:
            return None
        except Damaged:
            path.unlink(missing_ok=True)
            return None

    def _keep(
        self,
        arrived: Path,
        dataset: DatasetRecord,
        remote: RemoteSnapshot,
        pins: Sequence[bytes],
        parts: Sequence[Part] | None,
    ) -> Snapshot:
        """Verify and store the snapshot file `arrived`, which the server has announced as `remote`; `parts`: as of
        `Snapshot.verify`.
        """

        def check(snapshot: Snapshot) -> None:
            header = snapshot.header
            promised = (remote.digest, remote.generation, remote.updated_ns, dataset.dataset_id, dataset.name)
            sent = (header.digest, header.generation, header.updated_ns, header.dataset_id, header.dataset)
            if sent != promised:
                snapshot.verify()  # damaged, rather than another one
                raise Damaged(f"the server sent another snapshot of {dataset.name} than it announced")

        return self._put(arrived, f"snapshot of {dataset.name} from the server", check, pins, parts)

    def _put(
        self,
        arrived: Path,
        source: str,
        check: Callable[[Snapshot], object],
        pins: Sequence[bytes],
        parts: Sequence[Part] | None = None,
    ) -> Snapshot:
        """Verify a snapshot file in the folder of its dataset, and give it its name. `pins`: of the servers, from the
        key file; none without one. Raises OSError.
        """
        folder = arrived.parent
        snapshot = Snapshot.open(arrived, source=source)
        check(snapshot)
        snapshot.verify(parts)
        header = snapshot.header
        check_snapshot_signature(header, source)
        if pins and pin_of(header.signer) not in pins:
            raise Damaged(f"{source}: signed by other servers than those that your key file names")
        self.check_signer(header, pins)
        path = folder / file_name(*state_of(header))
        arrived.rename(path)
        for old in sorted(folder.glob("*.snapshot"))[:-GENERATIONS_KEPT]:
            if old != path:  # older than all others, but requested
                _remove(old)
        return Snapshot.open(path)


def _received(path: Path, length: int) -> Iterator[memoryview]:
    """Buffers for a file of this length, which is written to `path` as they are filled. Raises StorageFull."""
    buffer = memoryview(bytearray(min(length, RECEIVED_BYTES)))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with created(path) as file:
            while length:
                part = buffer[:length]
                yield part
                file.write(part)
                length -= len(part)
    except OSError as error:
        raise cannot_store(path.parent, error) from None


def _remove(path: Path) -> int:
    """Remove a stored snapshot with its images and folders; returns the bytes."""
    removed_bytes = 0
    for each in path.parent.glob(f"{path.stem}.*"):
        removed_bytes += each.stat().st_size
        each.unlink(missing_ok=True)
    return removed_bytes


def _check_signer(path: Path, dataset: str, signer: bytes, pins: Sequence[bytes]) -> None:
    """Note the signer of the first snapshot in the file `path`; raise Damaged if it has another one, unless the pins of
    both are in `pins`: then the servers have changed their identity. Raises OSError.
    """
    known = path.read_text("ascii", "replace").strip() if path.exists() else ""
    if known and known != signer.hex() and _are_pinned((known, signer.hex()), pins):
        known = ""
    if known and known != signer.hex():
        raise Damaged(
            f"the snapshot of {dataset} is signed by other servers than those before; if the servers have a new "
            f"identity, remove {path}"
        )
    if not known:
        put_file(path, f"{signer.hex()}\n".encode())


def _are_pinned(signers: Sequence[str], pins: Sequence[bytes]) -> bool:
    try:
        return all(pin_of(bytes.fromhex(each)) in pins for each in signers)
    except ValueError:
        return False
