"""Stores what programs have written through a mount: one *round* after another. This module calls the server.

The daemon of the mount does a round at each interval; `dlcmd sync`, `dlcmd umount`, and the next mount after a crash do
the same. It can be killed at any moment, and the next one does the rest: an upload is repeated, and
what is stored twice counts once. What a round cannot store stays in the write folder.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dieselfs.errors import DieselfsError, MountError, NotFound, SourceChanged, Unavailable
from dieselfs.names import SCHEME, parse_location, printable
from dieselfs.process.state_dirs import writes_path
from dieselfs.records import DatasetRecord
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import Settings
from dieselfs.snapshot.reader import Snapshot, Stat
from dieselfs.snapshot.store import SnapshotStore
from dieselfs.transfer.sender import ChunkSender
from dieselfs.transfer.upload import Failed, TreeUpload, UploadEntry
from dieselfs.transfer.writer import DEFAULT_FOLDER_MODE, DatasetWriter
from dieselfs.units import count
from dieselfs_client.mount.points.mount_table import mount_at, parse_mountinfo
from dieselfs_client.mount.points.mounting import unmount
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import supervision_of
from dieselfs_client.writing.changes import Base, Changes, Key, Remains, changes, is_other
from dieselfs_client.writing.moves import MovedEntry, Origin, copy, left
from dieselfs_client.writing.upper import CHANGED, TICK_NS, State, UpperEntry, WriteFolder

ROUND_WAIT_S = 600.0
"""Wait for a round of another process, which may store large files."""
PREFIX_TRIES = 3
"""After this many rounds in which a file has changed while it was read, it is stored as long as it was."""
WALKS_MAX = 3
"""If programs rename files during each of these walks through the write folder, the round deletes nothing."""
HELD = "deleted once all that was written is stored"
SUSPECT = "the disk failed to write it: check its bytes, and replace it by a copy"
NAMED_MAX = 3
"""Paths in one message."""


class Outcome(NamedTuple):
    """What a round has done. `conflicts`: paths that another writer has changed as well; `refused`: what no dataset can
    have; `waiting`: paths that are not stored yet, and why; `is_noted`: the write folder had room to note what is.
    """

    dataset: str
    generation: int
    stored: int = 0
    stored_bytes: int = 0
    deleted: int = 0
    conflicts: Sequence[str] = ()
    refused: Sequence[str] = ()
    waiting: Sequence[tuple[str, str]] = ()
    is_noted: bool = True

    def warnings(self) -> Iterator[str]:
        """One line for each kind of trouble."""
        if self.conflicts:
            yield f"another writer has changed {_named(self.conflicts)} as well: what was written here counts"
        if self.refused:
            yield f"not stored, as no dataset can have it (socket, pipe or device): {_named(self.refused)}"
        if self.waiting:
            paths = [path for path, _ in self.waiting]
            yield f"not stored yet: {_named(paths)}: {self.waiting[0][1]}"
        if not self.is_noted:
            yield "the disk of the write folder is full: the next round stores the same once more"


def _named(paths: Sequence[str]) -> str:
    others = len(paths) - NAMED_MAX
    return ", ".join(paths[:NAMED_MAX]) + (f" and {count(others, 'other')}" if others > 0 else "")


class Shown:
    """A snapshot as the base of a mount. `folder`: which of its folders is mounted."""

    def __init__(self, snapshot: Snapshot | None, folder: bytes = b"") -> None:
        self.snapshot, self._head = snapshot, folder and folder + b"/"

    def node(self, path: bytes) -> int:
        """The entry of the snapshot at a path; -1 without one."""
        return -1 if self.snapshot is None else self.snapshot.find(self._head + path)

    def stat(self, path: bytes) -> Stat | None:
        node = self.node(path)
        return None if self.snapshot is None or node < 0 else self.snapshot.stat(node)

    def below(self, path: bytes) -> Iterable[bytes]:
        snapshot = self.snapshot
        if snapshot is None or (node := self.node(path)) < 0:
            return
        if snapshot.stat(node).is_folder:
            for below in snapshot.walk(node):
                yield snapshot.path(below)[len(self._head) :]


class _Upload(TreeUpload):
    """Also has the reasons of failures, by source."""

    def __init__(
        self, client: ServerClient, dataset: DatasetRecord, progressed: Callable[[], object]
    ) -> None:
        super().__init__(client, dataset, None, progressed=progressed, at_once=True)
        self.reasons: dict[bytes, str] = {}

    def fail(self, source: bytes, reason: str, is_damaged: bool = False) -> None:
        self.reasons[source] = reason
        super().fail(source, reason, is_damaged)


class _Sent(NamedTuple):
    """What an upload has stored and deleted, by path of the mount, and what it has not, with the reason."""

    stored: dict[bytes, Key]
    moved: dict[bytes, bytes]
    deleted: set[bytes]
    waiting: list[tuple[str, str]]


class _Round:
    """One round, of a write folder whose lock is held. `base`: that of the mount; None: it is fetched."""

    def __init__(self, folder: WriteFolder, client: ServerClient, base: Shown | None) -> None:
        self._folder, self._client = folder, client
        self.state, self._done = folder.load()
        location = parse_location(SCHEME + self.state.dataset)
        self._name, self._path = location.dataset, location.path
        self._head = self._path and self._path + b"/"
        self._shown = base
        self._chunks = 0
        self._began_ns = 0

    def run(self) -> Outcome:
        """Raises what the server or the disk answers; then what was stored is stored again in the next round."""
        base = self._base()
        work, is_still = self._work(base)
        refused = [printable(path) for path in work.refused]
        if not any(True for _ in work.paths()):
            if self.state.waiting or self.state.trouble:
                self._save(
                    replace(self.state, waiting=0, trouble="")
                )  # without room for it, it stays as it is
            return Outcome(self._name, self.state.generation, refused=refused)
        unknown = {*self._done.begun}
        self._flush(work, base)
        if self._done.begin(work, base):
            self._save(self.state)
        moved = self._moved(work, base)
        record = self._client.dataset(self._name)
        conflicts = self._conflicts(work, unknown, record, base)
        upload = _Upload(self._client, record, self._count)
        sent = self._upload(upload, work, moved, is_still)
        generation = upload.report.generation
        self._done.note(sent.stored, sent.moved, sent.deleted)
        # Generations count chunks: with others between, the next round looks what they are.
        is_alone = generation == record.generation + self._chunks
        seen = generation if is_alone else self.state.generation
        inodes = {found.key.inode for found in work.put}
        is_noted = self._save(
            replace(
                self.state,
                generation=seen,
                tries={
                    path: self.state.tries.get(path, 0) + 1 for path, why in sent.waiting if why == CHANGED
                },
                suspects=[number for number in self.state.suspects if number in inodes],
                waiting=len(sent.waiting),
                trouble="",
                stored_s=time.time(),
            )
        )
        counts = len(sent.stored) + len(sent.moved), upload.report.done_bytes, len(sent.deleted)
        return Outcome(self._name, generation, *counts, conflicts, refused, sent.waiting, is_noted)

    def note_trouble(self, error: Exception) -> None:
        with suppress(OSError):  # the disk is full, say
            self._save(replace(self.state, trouble=str(error)))

    def _save(self, state: State) -> bool:
        """Replace the state; False if the disk is full. Then it says too little, which costs a repeated upload."""
        self.state = state
        try:
            self._folder.save(state, self._done)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        return True

    def _base(self) -> Base:
        """The generation of the mount, from the server or this machine; what remains of it if it is gone."""
        if self._shown is not None:
            return self._shown
        if self.state.base == 0:  # nothing was in the dataset
            self._shown = Shown(None)
            return self._shown
        try:
            self._shown = Shown(self._snapshot(self.state.base or 0), self._path)
            return self._shown
        except NotFound:
            self._shown = Shown(self._snapshot(), self._path)
            return Remains(self._shown, self._done)

    def _snapshot(self, generation: int = 0) -> Snapshot:
        record = self._client.dataset(self._name)
        return SnapshotStore.of(self._client.settings).get(self._client, record, generation)

    def _work(self, base: Base) -> tuple[Changes, bool]:
        """What is to be done; and whether nothing was renamed during the walk. Else it may have missed a file under its
        old name and its new one, so nothing may be deleted.
        """
        for tried in range(WALKS_MAX):
            if tried:
                time.sleep(TICK_NS / 1e9)
            times: dict[bytes, int] = {}
            began_ns = time.time_ns()
            work = changes(self._folder.walk(times), self._done, base)
            if not work.deleted or self._folder.is_still(times, began_ns):
                return work, True
        return work, False

    def _flush(self, work: Changes, base: Base) -> None:
        """Raises OSError of the disk. The kernel tells an error once, and may then read other bytes than were written:
        files that were not stored by then are not stored at all.
        """
        self._began_ns = time.time_ns()
        try:
            if work.put:
                self._folder.flush()
        except OSError:
            work = changes(self._folder.walk(), self._done, base)
            new = {found.key.inode for found in work.put if stat.S_ISREG(found.key.mode)}
            self.state = replace(self.state, suspects=sorted(new.union(self.state.suspects)))
            self._folder.save(self.state, self._done, is_durable=False)
            raise

    def _moved(self, work: Changes, base: Base) -> list[MovedEntry]:
        """What renamed folders show of the base, and the servers cannot copy."""
        shown = self._shown
        if not work.moved or shown is None or shown.snapshot is None:
            return []
        places = {source: path for path, source in self._done.moved.items()}
        place = base.place if isinstance(base, Remains) else bytes
        origin = Origin(self._client, shown.snapshot, lambda path: shown.node(place(path)))
        current = self._snapshot()
        paths = left(work.moved, work.moved, self._head, origin, current)
        if copy(self._client, work, paths, self._head, places, origin, current):
            paths = left(work.moved, paths, self._head, origin, self._snapshot())
        return [
            MovedEntry(origin, origin.node(work.moved[path]), self._head + path, self._source(path))
            for path in paths
        ]

    def _source(self, path: bytes) -> bytes:
        return os.path.join(os.fsencode(self._folder.upper), path)

    def _conflicts(self, work: Changes, unknown: Set[bytes], record: DatasetRecord, base: Base) -> list[str]:
        """The paths that are about to change, and that others have changed since the mount has last seen them.
        `unknown`: what an interrupted round may have stored.
        """
        if record.generation == self.state.generation:
            return []
        current = Shown(SnapshotStore.of(self._client.settings).get(self._client, record), self._path)
        self.state = replace(self.state, generation=record.generation)
        wanted: dict[bytes, Key | Stat | None] = {found.path: found.key for found in work.put}
        wanted |= {path: base.stat(source) for path, source in work.moved.items()}
        return [
            printable(path)
            for path in sorted({*work.paths()} - unknown)
            if is_other(found := current.stat(path), self._done.expected(path, base))
            and is_other(found, wanted.get(path))
        ]

    def _upload(self, upload: _Upload, work: Changes, moved: Sequence[MovedEntry], is_still: bool) -> _Sent:
        """Store, and then delete, unless something is not stored that may have had another name."""
        taken: dict[bytes, UpperEntry] = {}
        missing = set[bytes]()
        deleted = set[bytes]()
        tries, suspects, reasons = self.state.tries, {*self.state.suspects}, upload.reasons

        def entries(failed: Failed) -> Iterator[UploadEntry]:
            for found in work.put:
                is_prefix = tries.get(printable(found.path), 0) >= PREFIX_TRIES
                if found.key.inode in suspects:
                    failed(self._source(found.path), SUSPECT)
                    continue
                try:
                    entry = UpperEntry(self._folder, found, self._head + found.path, is_prefix)
                except FileNotFoundError:  # removed, or renamed: the next round
                    missing.add(found.path)
                    continue
                except (OSError, SourceChanged) as error:
                    failed(self._source(found.path), str(error))
                    continue
                taken[found.path] = entry
                yield entry
            yield from moved

        def deletions() -> Iterator[bytes]:
            absent = (one for one in work.put if one.path in missing or self._source(one.path) in reasons)
            is_whole = not any(one.may_be_renamed(self._done) for one in absent)
            if is_still and is_whole and not any(one.source in reasons for one in moved):
                deleted.update(work.deleted)
                yield from (self._head + path for path in work.deleted)

        upload.run(entries, deletions())
        stored = {}
        for path, entry in taken.items():
            if entry.source not in reasons:
                # A later change of a file that has just changed may not show in its times: the next round stores it
                # again.
                is_settled = entry.key.ctime_ns < self._began_ns - TICK_NS
                stored[path] = entry.key if is_settled else entry.key._replace(ctime_ns=-1)
        head = len(self._source(b""))
        waiting = [(printable(source[head:]), reason) for source, reason in sorted(reasons.items())]
        waiting += [(printable(path), HELD) for path in work.deleted if path not in deleted]
        there = {path: source for path, source in work.moved.items() if self._source(path) not in reasons}
        return _Sent(stored, there, deleted, waiting)

    def _count(self) -> None:
        self._chunks += 1


def store(
    folder: WriteFolder,
    client: ServerClient | None = None,
    base: Shown | None = None,
    wait_s: float = ROUND_WAIT_S,
) -> Outcome:
    """Do one round. Without `client`, with the server and key of the mount; `base`: that of the mount, else it is
    fetched. Waits `wait_s` for the round of another process.

    Raises DieselfsError and OSError; what was written stays in the folder.
    """
    try:
        with folder.locked(wait_s):
            state, _ = folder.load()
            if client is not None:
                return _one(folder, client, base)
            with closing(_client_of(state)) as own:
                return _one(folder, own, base)
    except BlockingIOError:
        raise Unavailable(f"{folder.folder}: another process has been storing it for {wait_s:g} s") from None


def _client_of(state: State) -> ServerClient:
    return ServerClient(Settings.load(state.server, state.key_file, home=state.home))


def _one(folder: WriteFolder, client: ServerClient, base: Shown | None) -> Outcome:
    one = _Round(folder, client, base)
    try:
        return one.run()
    except (DieselfsError, OSError) as error:
        one.note_trouble(error)
        raise


# -- the life of a write folder ----------------------------------------------------------------------------


def user_of(folder: WriteFolder, process: str = "self") -> str:
    """The mount point of the mount that writes there, as a process sees it; empty if there is none. Raises OSError."""
    mounts = parse_mountinfo(Path("/proc", process, "mountinfo").read_bytes())
    return next((one.mountpoint for one in mounts if one.write_folder == str(folder.folder)), "")


def writer_of(folder: WriteFolder) -> str:
    """As `user_of`, in any mount namespace (`dlcmd run` makes one); also of a detached mount whose files are open."""
    seen = set[str]()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has just ended, or belongs to another user
            namespace = os.readlink(f"/proc/{process}/ns/mnt")
            if namespace not in seen and (user := user_of(folder, process)):
                return user
            seen.add(namespace)
    place = folder.load()[0].mountpoint if folder.exists else ""
    return place if place and supervision_of(place) is not None else ""


def sync(place: str) -> Outcome:
    """Store what was written through the mount on a (resolved) path, or what is kept in a write folder.

    Raises DieselfsError and OSError; MountError if the path is neither.
    """
    record = mount_at(place)
    if record is not None and record.write_folder:
        return store(WriteFolder(record.write_folder))
    folder = WriteFolder(place)
    if not folder.exists:
        raise MountError(
            f"{place}: neither a mount that can be written (dlcmd mount --write) nor what one has kept"
        )
    return store(folder) if writer_of(folder) else finish(folder, f"what is in {place}")


def prepare(dataset: str, place: str, options: MountOptions) -> MountOptions:
    """Make the write folder of a new mount on `place`, and the dataset and its folder if they do not exist. What an
    earlier mount has left there is stored first. Returns the options with the folder.

    Raises MountError while another mount uses it, or programs have files of the earlier one open; and DieselfsError if
    what is left cannot be stored.
    """
    folder = WriteFolder(options.write_folder or writes_path(place))
    options = replace(options, write_folder=str(folder.folder)).absolute()
    folder = WriteFolder(options.write_folder or "")
    if (user := user_of(folder)) not in ("", place):
        raise MountError(f"{folder.folder}: {user} writes there; give another --write-folder")
    if user:  # a dead mount: programs may have files open there, and write to them still
        unmount(place)
    if (before := supervision_of(place)) is not None:
        raise MountError(
            f"{place}: process {before.supervisor} of the mount before has not ended: end the programs that have "
            "files of it open, then wait for its end"
        )
    if writer := writer_of(folder):
        raise MountError(f"{folder.folder}: {writer} writes there; give another --write-folder")
    try:
        if folder.exists:
            finish(folder, f"what was written at {place} before")
        mode = 0o755 if options.allow_other else 0o700
        owner = -1 if options.uid is None else options.uid, -1 if options.gid is None else options.gid
        state = State(place, dataset, options.server, options.key_file, options.home)
        _make_dataset(state)
        folder.make(state, mode, owner)
    except OSError as error:
        raise MountError(f"{folder.folder}: {error.strerror}; give another --write-folder") from None
    return options


def _make_dataset(state: State) -> None:
    location = parse_location(SCHEME + state.dataset)
    with closing(_client_of(state)) as client:
        record = client.ensure_dataset(location.dataset)
        if not location.path:
            return
        try:
            client.stat(location.dataset, location.path)
        except NotFound:
            sender = ChunkSender(client, record)
            writer = DatasetWriter(sender)
            writer.put_folder(location.path, DEFAULT_FOLDER_MODE)
            writer.flush()
            sender.close()


def finish(folder: WriteFolder, what: str) -> Outcome:
    """Store all of a write folder that no mount uses, and remove it. `what` was written there, for messages.

    Raises DieselfsError if not all can be stored; then the folder stays.
    """
    kept = f"it is kept in {folder.folder}; to store it later: dlcmd sync {folder.folder}"
    try:
        outcome = store(folder)
    except DieselfsError as error:
        raise type(error)(f"{what} is not all stored: {error}; {kept}") from error
    except OSError as error:  # of the disk of the write folder
        raise DieselfsError(f"{what} is not all stored: {error}; {kept}") from error
    if outcome.waiting:
        path, reason = outcome.waiting[0]
        raise DieselfsError(
            f"{what} is not all stored: {count(len(outcome.waiting), 'path')}, the first {path}: {reason}; {kept}"
        )
    folder.remove()
    return outcome


def end(folder: str, place: str, is_lazy: bool) -> Sequence[str]:
    """Store what was written through the mount that was on `place`; returns warnings. Raises as `finish`; a lazily
    unmounted one may be written to still, so its folder stays for the next mount.
    """
    held = WriteFolder(folder)
    outcome = store(held) if is_lazy else finish(held, f"{place} is unmounted, but what was written")
    return [*outcome.warnings()]


def described(folder: str) -> str:
    """What is stored of what was written, and what is not, as `dlcmd mounts` shows it."""
    try:
        state, _ = WriteFolder(folder).load()
    except (DieselfsError, OSError) as error:
        return f"written to {folder}: {error}"
    text = f"written to {folder}"
    if state.stored_s:
        text += f", stored {time.time() - state.stored_s:.0f} s ago"
    if state.waiting:
        text += f", {count(state.waiting, 'path')} not stored yet"
    return f"{text}; not stored: {state.trouble}" if state.trouble else text
