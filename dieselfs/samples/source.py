"""Reads the bytes of samples through the library or a mount. This module opens files and waits for sockets."""

import errno
import io
import json
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.chunk.format import Op
from dieselfs.dataset import Dataset, connect
from dieselfs.digests import EXTENT_DIGESTS
from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.limits import LIBRARY_MEMORY_BYTES, MIB, NAME_BYTES_MAX
from dieselfs.names import CONTROL_FOLDER, SCHEME, is_location, parse_location, user_path
from dieselfs.records import DatasetRecord, EntryTable, ExtentColumns
from dieselfs.samples.reading_list import Listed, Reading, ReadingList, loader_worker
from dieselfs.samples.worker_times import WorkerTimes
from dieselfs.shuffle.ahead_name import ahead_names
from dieselfs.shuffle.groups import GROWN_CHUNKS
from dieselfs.shuffle.opportunistic import ServedLog, log_ahead, log_of
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.policies import OPPORTUNISTIC
from dieselfs.shuffle.run_log import RunLog
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.skips import NO_SKIPS
from dieselfs.shuffle.spec import ReaderSpec
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.stalls import CAUSES, DaemonWork

_NONE = np.empty(0, np.int64)

AHEAD_BYTES = 64 * MIB
AHEAD_SHARE = 0.125
"""A mount reads this much ahead of readers of parts of files, and at most this share of its memory, which also has the
group that is read.
"""

_Content = TypeVar("_Content")

Progress = Callable[[int], None]
"""Called with a position when all positions before it have been taken by readers."""


class LibrarySource:
    """Reads through `dieselfs.Dataset`. Sources work after a fork, and pickle, so workers can use them."""

    orders_selections = True
    """Whether shares of plans of some of the files can be declared."""
    takes_lists = True
    """Whether `announce` is of use."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._is_planned = False  # pickled for workers, which start later
        self._reader = 0  # the ID of the last process that has read, as this object sees it
        self.times = WorkerTimes()
        """Times of all processes that read through this source."""
        self.partial_files: Numbers = _NONE
        """The files that are read in parts, if any are; lists are then of extents."""
        self._list = ReadingList()
        self._reading: Reading | None = None  # what this process reads, by its own reads
        self._reading_of = 0, 0  # the process, and the version of the list

    @property
    def snapshot(self) -> Snapshot:
        return self.dataset.snapshot

    @property
    def node(self) -> str | None:
        """The name of this node in the job; None without a job."""
        return self.dataset.job_node

    def read_many(self, nodes: Sequence[int]) -> list[bytes]:
        """All bytes of each file, in this order. Raises DieselfsError."""
        return self._read(self.dataset.get_nodes, nodes)

    def read_views(self, nodes: Sequence[int]) -> Sequence[bytes | memoryview]:
        """As `read_many`, but without copies of what is in memory: see `Dataset.get_many`."""
        return self._read(self.dataset.node_views, nodes)

    def read_range(self, node: int, start: int, end: int) -> bytes:
        """The bytes of a file from `start` up to `end`, which must not be behind its end. Raises DieselfsError."""
        row = np.empty((1, end - start), np.uint8)
        self.read_rows(node, np.array([start]), row)
        return row.tobytes()

    def read_rows(self, node: int, firsts: Numbers, rows: npt.NDArray[np.uint8]) -> None:
        """As `Dataset.read_rows`. Loads ahead what this process reads next."""
        self._reader = os.getpid()
        with self.times.timed("reading"):
            if not self._knows_list:
                self._join_readers()
            self.dataset.read_rows(node, firsts, rows)
            if (reading := self._reading) is not None:
                place = reading.furthest(self.snapshot.extent_numbers(node, firsts).tolist())
                self.dataset.look_ahead.follow(reading.share, place, is_reader=True)

    def _read(
        self, read: Callable[[Sequence[int], bool], list[_Content]], nodes: Sequence[int]
    ) -> list[_Content]:
        self._reader = os.getpid()
        with self.times.timed("reading"):
            self._follow(nodes, 0)
            contents = read(nodes, self._is_planned)
            if not self._knows_list:  # now it is known whether they were in memory of the node
                self._follow(nodes, len(nodes))
            return contents

    @property
    def _knows_list(self) -> bool:
        version = self._list.version
        return not version or self._reading_of == (os.getpid(), version)

    def _follow(self, nodes: Sequence[int], read: int) -> None:
        """Load ahead what this process reads after these files, of which it has read the first `read`, unless the
        sampler reports its position.
        """
        if not self._knows_list:
            self._join_readers()
        if self._reading is not None and (place := self._reading.place(nodes)) is not None:
            self.dataset.look_ahead.follow(self._reading.share, place + read, is_reader=True)

    def _join_readers(self) -> None:
        """Find what this process, a worker of a loader, will read. Workers that find chunks in memory of the node, as
        the process of the sampler has them loaded there, need not load ahead themselves.
        """
        self._reading, worker, version = None, loader_worker(), self._list.version
        if worker is not None:
            if not self._list.is_tracked and not self.dataset.look_ahead.fetches:
                return
            listed = self._list.read()
            if listed is None:
                return
            self._reading = Reading(self.snapshot, listed.of_worker(*worker), bool(len(self.partial_files)))
        self._reading_of = os.getpid(), version

    def place(self, path: bytes) -> str:
        """Where users find a file of the snapshot."""
        return os.fsdecode(path)

    def path_of(self, location: str | bytes | os.PathLike[str]) -> bytes | None:
        """The path in the snapshot of a whole location: `dl://DATASET/PATH`; None if it is relative to a folder.

        Raises InvalidInput if it is in another dataset.
        """
        text = os.fsdecode(location)
        if not is_location(text):
            return None
        place = parse_location(text)
        if place.dataset != self.dataset.name:
            raise InvalidInput(f"{text} is not in the dataset {self.dataset.name}")
        return place.path

    def drawn(self, plan: Plan, reader: ReaderSpec) -> ServedLog:
        """Draw the part of a rank in an opportunistic order of the samples of a plan; `reader` has the step, too."""
        return drawn_ahead(plan, reader, self.dataset.distances())

    def expect_plan(self) -> None:
        """Announce that all reads follow a plan: this process or another soon needs the rest of a chunk."""
        self._is_planned = True

    def declare(self, share: Share) -> Progress:
        """Threads of this process load ahead what `share` reads, here or in workers, from the first call of the result
        on, which raises DieselfsError.
        """

        def progress(position: int) -> None:
            self.dataset.look_ahead.follow(share, position, is_reader=self._reader == os.getpid())

        return progress

    def announce(self, listed: Listed, worker: int = 0, workers: int = 1) -> Progress:
        """Threads load ahead what is listed: in this process, which reads the steps of one of `workers`, from the first
        call of the result on, or as it reads; and in workers of a loader, which the list reaches.

        The result is called with the number of the step that is handed out next.
        """
        self._list.publish(listed)
        own = Reading(self.snapshot, listed.of_worker(worker, workers), bool(len(self.partial_files)))
        self._reading = own if listed.is_tracked else None
        self._reading_of = os.getpid(), self._list.version
        is_own = np.arange(len(listed.ends)) % workers == worker
        own_ends = np.cumsum(np.diff(listed.ends, prepend=0) * is_own)

        def progress(step: int) -> None:
            place = int(own_ends[step - 1]) if step else 0
            self.dataset.look_ahead.follow(own.share, place, is_reader=self._reader == os.getpid())

        return progress

    def close(self) -> None:
        self.dataset.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reading": None, "_reading_of": (0, 0)}


class MountSource:
    """Reads files on a mount. This process maps the snapshot of the mount, so it lists no folder."""

    orders_selections = False
    """See `LibrarySource`. The daemon knows orders of folders only."""

    def __init__(self, mountpoint: str, snapshot: Snapshot) -> None:
        self._mountpoint = mountpoint
        self._prefix = os.fsencode(mountpoint) + b"/"
        self.snapshot = snapshot
        self.times = WorkerTimes()
        """Times of all processes that read through this source."""
        self.partial_files: Numbers = _NONE
        """As that of `LibrarySource`."""
        self._descriptors: dict[int, int] = {}  # of these, by node
        self._knows_ahead = True  # until the mount refuses such a name

    @property
    def takes_lists(self) -> bool:
        """The daemon takes no lists of files, but of parts of files."""
        return bool(len(self.partial_files))

    def read_range(self, node: int, start: int, end: int) -> bytes:
        """As `LibrarySource.read_range`. Raises OSError, Damaged."""
        row = np.empty((1, end - start), np.uint8)
        self.read_rows(node, np.array([start]), row)
        return row.tobytes()

    def read_rows(self, node: int, firsts: Numbers, rows: npt.NDArray[np.uint8]) -> None:
        """As `Dataset.read_rows`. Raises OSError, Damaged."""
        with self.times.timed("reading"):
            descriptor = self._descriptor(node)
            for first, row in zip(firsts.tolist(), rows, strict=True):
                if os.preadv(descriptor, [row], first) < len(row):
                    path = self.place(self.snapshot.path(node))
                    raise Damaged(f"{path}: it ends before byte {first + len(row)}")

    def _descriptor(self, node: int) -> int:
        found = self._descriptors.get(node)
        if found is None:
            path = self._prefix + self.snapshot.path(node)
            found = self._descriptors[node] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return found

    def announce(self, listed: Listed, worker: int = 0, workers: int = 1) -> Progress:
        """The mount reads ahead the extents that are listed, as far as AHEAD_BYTES, and all of the next step. Of
        several `workers`, this process tells it those of its own steps. The result is as that of
        `LibrarySource.announce`; it raises OSError.
        """
        ahead_bytes = min(
            AHEAD_BYTES, int(_info_of(self._mountpoint)["options"]["memory_bytes"] * AHEAD_SHARE)
        )
        numbers = listed.of_worker(worker, workers).astype(np.int64)
        places, lengths = (
            self.snapshot.column(f"extent_{name}")[numbers].astype(np.int64) for name in ("places", "lengths")
        )
        read_bytes = np.append(0, np.cumsum(lengths))
        firsts = self.snapshot.column("firsts")[self.partial_files]
        by_first = np.argsort(firsts)
        nodes = self.partial_files[by_first][np.searchsorted(firsts[by_first], numbers, side="right") - 1]
        is_own = np.arange(len(listed.ends)) % workers == worker
        own_ends = np.cumsum(np.append(0, np.diff(listed.ends, prepend=0) * is_own))
        ahead = 0

        def progress(step: int) -> None:
            nonlocal ahead
            place, needed = own_ends[step], own_ends[min(step + 1, len(own_ends) - 1)]
            end = max(int(np.searchsorted(read_bytes, read_bytes[place] + ahead_bytes)), int(needed))
            nexts = slice(max(ahead, int(place)), min(end, len(numbers)))
            if not self._tell_ahead(numbers[nexts].tolist()):
                for node, offset, length in zip(
                    *(column[nexts].tolist() for column in (nodes, places, lengths)), strict=True
                ):
                    os.posix_fadvise(self._descriptor(node), offset, length, os.POSIX_FADV_WILLNEED)
            ahead = max(ahead, end)

        return progress

    def _tell_ahead(self, numbers: list[int]) -> bool:
        """Tell the mount which extents are read next; False if it takes no such names: it is another user's, shows
        another generation now, or is older. Then the kernel is told, which reads ahead little of each; after a refusal,
        the mount is not told again.
        """
        if not self._knows_ahead:
            return False
        folder = os.path.join(self._mountpoint, CONTROL_FOLDER, "shuffle")
        try:
            for name in ahead_names(self.snapshot.digest, numbers):
                os.stat(os.path.join(folder, name))
        except OSError as error:
            self._knows_ahead = error.errno not in (errno.EINVAL, errno.EACCES, errno.ENOENT)
            return False
        return True

    def read_many(self, nodes: Sequence[int]) -> list[bytes]:
        """As `LibrarySource.read_many`. Raises OSError, Damaged."""
        snapshot, prefix = self.snapshot, self._prefix
        with self.times.timed("reading"):
            return [_read_file(prefix + snapshot.path(node), snapshot.size(node)) for node in nodes]

    def read_views(self, nodes: Sequence[int]) -> Sequence[bytes | memoryview]:
        """As `read_many`: files have no views."""
        return self.read_many(nodes)

    def daemon_work(self) -> DaemonWork | None:
        """What the daemon of the mount has done so far; None if it cannot be asked."""
        try:
            with open(os.path.join(self._mountpoint, CONTROL_FOLDER, "stats"), "rb") as file:
                stats = json.load(file)
            seconds: dict[str, float] = catalogue.WORK_SPENT_S.find(stats)
            spent = np.array([float(seconds.get(cause, 0.0)) for cause in CAUSES])
            return DaemonWork(float(catalogue.READS_WAITED_S.find(stats)["sum"]), spent)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @property
    def node(self) -> str | None:
        """As `LibrarySource.node`, in the job of the mount. Raises OSError."""
        node: str | None = _info_of(self._mountpoint)["node"]
        return node

    def place(self, path: bytes) -> str:
        return os.fsdecode(self._prefix + path)

    def path_of(self, location: str | bytes | os.PathLike[str]) -> bytes | None:
        """The path in the snapshot of a path on this mount, without links; None if it is relative."""
        path = os.fsencode(location)
        if path.startswith(self._prefix):
            return path[len(self._prefix) :]
        if path.startswith(b"/"):
            raise InvalidInput(f"{os.fsdecode(path)} is not below {self._mountpoint}")
        return None

    def drawn(self, plan: Plan, reader: ReaderSpec) -> ServedLog:
        """As `LibrarySource.drawn`: the mount draws it, and begins to fetch its files. Raises InvalidInput for a
        selection; OSError, EINVAL if the mount refuses.
        """
        if plan.layout.selection:
            raise InvalidInput(
                "a mount draws opportunistic orders of whole folders: give the name of the dataset"
            )
        spec = replace(plan.spec, policy=OPPORTUNISTIC, skips=NO_SKIPS)
        name = ShareName(spec, reader)
        with self._shuffle(replace(name, is_log=True)) as file:
            log = RunLog.parse(file.read().decode()).logs[reader.rank]
        log.check(log_of(plan.cursor(0).snapshot, plan.spec, reader, ()))
        with self._shuffle(name) as file:
            file.read(1)
        return log

    def _shuffle(self, name: ShareName) -> io.FileIO:
        """The file of an order, unbuffered."""
        return io.FileIO(os.path.join(self._mountpoint, CONTROL_FOLDER, "shuffle", str(name)))

    def expect_plan(self) -> None:
        """The mount gets the plan by `declare`."""

    def declare(self, share: Share) -> None:
        """Reading one byte of the list of a share declares it, for all workers. Raises OSError, EINVAL if the mount
        refuses.

        A share whose name is too long (many skips, in a deep folder) is not declared, so it is not prefetched.
        """
        if share.reader.worker:
            return
        share = Share(share.plan, replace(share.reader, workers=1))
        name = ShareName.of(share)
        if len(str(name)) <= NAME_BYTES_MAX:
            with self._shuffle(name) as file:
                file.read(1)

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    _opened: Callable[[str], Snapshot] = staticmethod(Snapshot.open)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "snapshot": self.snapshot.source, "_descriptors": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, snapshot=self._opened(state["snapshot"]))


def snapshot_of(folder: str) -> Snapshot:
    """The files and folders below a plain folder, links followed, so that a training script runs without dieselfs; no
    file has an extent. Takes 5 us per entry.

    Raises NotFound if the folder is missing or empty; OSError.
    """
    if not os.path.isdir(folder) or not os.listdir(folder):
        what = "the folder is empty" if os.path.isdir(folder) else "no such folder"
        raise NotFound(
            f"{folder}: {what}, and no dataset is mounted there (`dlcmd mounts` lists mounts); "
            "to read a dataset without a mount, name it, as in imagenet/train"
        )
    rows: list[tuple[bytes, bytes, os.stat_result]] = []
    top = os.fsencode(folder)
    for place, folders, files in os.walk(top, followlinks=True):
        below = os.path.relpath(place, top) if place != top else b""
        for name in folders + files:
            status = os.stat(os.path.join(place, name))
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                rows.append((below, name, status))
    rows.sort(key=lambda row: row[:2])
    statuses = [status for _, _, status in rows]
    is_folder = np.array([stat.S_ISDIR(status.st_mode) for status in statuses], np.bool_)
    sizes = np.where(is_folder, 0, np.array([status.st_size for status in statuses], np.uint64))
    table = EntryTable(
        DatasetRecord(bytes(16), "local", 1, 0, int((~is_folder).sum()), int(sizes.sum()), 0),
        [],
        [below for below, _, _ in rows],
        [name for _, name, _ in rows],
        np.where(is_folder, Op.DIRECTORY, Op.FILE).astype(np.uint8),
        np.array([stat.S_IMODE(status.st_mode) for status in statuses], np.uint32),
        np.array([status.st_mtime_ns for status in statuses], np.int64),
        sizes.astype(np.uint64),
        np.full(len(rows), -1, np.int64),
        np.zeros(len(rows), np.uint32),
        np.zeros(len(rows), EXTENT_DIGESTS),
        {},
        ExtentColumns(*(np.zeros(0, dtype) for dtype in ("i8", "u8", "i8", "u4", "u4", EXTENT_DIGESTS))),
    )
    return Snapshot(build_snapshot(table), folder)


class LocalSource(MountSource):
    """Reads a plain folder, which must not change meanwhile: spawned workers build its snapshot again."""

    _opened = staticmethod(snapshot_of)

    def __init__(self, folder: str) -> None:
        super().__init__(folder, snapshot_of(folder))

    def declare(self, share: Share) -> None:
        """A plain folder has no prefetcher."""

    takes_lists = False

    def drawn(self, plan: Plan, reader: ReaderSpec) -> ServedLog:
        """A plain folder has no chunks, so all of it is far."""
        return drawn_ahead(plan, reader, None)

    def daemon_work(self) -> None:
        """A plain folder has no daemon."""

    node = None


SampleSource = LibrarySource | MountSource


def drawn_ahead(plan: Plan, reader: ReaderSpec, distances: Numbers | None) -> ServedLog:
    """See `log_ahead`; with the number of chunks that are mixed in the order of a plan."""
    group = plan.spec.group_chunks
    return log_ahead(plan, reader, distances, GROWN_CHUNKS if group is None else group)


def _read_file(path: bytes, size: int) -> bytes:
    """A whole file by plain system calls, without the `fstat` and `isatty` of `open`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, size)
        while len(content) < size:  # one read returns at most 2 GiB
            more = os.read(descriptor, size - len(content))
            if not more:
                raise Damaged(f"{os.fsdecode(path)}: ends after {len(content)} of {size} bytes")
            content += more
        return content
    finally:
        os.close(descriptor)


class ConnectOptions(TypedDict, total=False):
    """The options of `dieselfs.connect` with which a dataset is read."""

    server: str | None
    key_file: str | None
    home: str | os.PathLike[str] | None
    memory_bytes: int | None
    job: str | None
    job_secret: str | os.PathLike[str] | None
    where: str


def open_source(
    root: str | os.PathLike[str], **connection: Unpack[ConnectOptions]
) -> tuple[SampleSource, bytes]:
    """The source of `root`, and the folder in it: `imagenet@v3/train` in a dataset, `/mnt/imagenet/train` on a mount.

    A text that begins with `/` or `.`, and any `Path`, is a path on a mount, or a plain local folder. The options are
    those of `dieselfs.connect`, for datasets only. Raises as `dieselfs.connect`.
    """
    if not isinstance(root, str) or root.startswith(("/", ".")):
        if any(connection.values()):
            raise InvalidInput(f"{os.fspath(root)} is a local path: options of a connection are for datasets")
        return _at_path(os.path.realpath(root))
    location = parse_location(root if is_location(root) else SCHEME + root)
    options: dict[str, Any] = {**connection}
    if options.get("memory_bytes") is None:
        options["memory_bytes"] = LIBRARY_MEMORY_BYTES
    try:
        dataset = connect(location.state, **options)
    except NotFound as error:
        if os.path.isdir(root):
            raise NotFound(f"{error}; for the folder of this name, write ./{root}") from None
        raise
    return LibrarySource(dataset), location.path


def open_file_or_folder(
    root: str | os.PathLike[str], **connection: Unpack[ConnectOptions]
) -> tuple[SampleSource, bytes, bytes]:
    """As `open_source`, where `root` may be a file: the source, the folder, and the name of the file or nothing."""
    if not isinstance(root, str) or root.startswith(("/", ".")):
        path = os.path.realpath(root)
        if os.path.isfile(path):
            source, folder = open_source(Path(path).parent, **connection)
            return source, folder, os.fsencode(os.path.basename(path))
    source, folder = open_source(root, **connection)
    node = source.snapshot.find(folder)
    if node >= 0 and source.snapshot.stat(node).is_file:
        folder, _, name = folder.rpartition(b"/")
        return source, folder, name
    return source, folder, b""


def _at_path(path: str) -> tuple[MountSource, bytes]:
    mountpoint = path
    while not os.path.exists(os.path.join(mountpoint, CONTROL_FOLDER, "info")):
        if mountpoint == os.path.dirname(mountpoint):
            return LocalSource(path), b""
        mountpoint = os.path.dirname(mountpoint)
    info = _info_of(mountpoint)
    snapshot = Snapshot.open(info["snapshot"])
    if snapshot.digest.hex() != info["digest"]:
        raise Damaged(f"{info['snapshot']}: not the snapshot of the mount on {mountpoint}: mount it again")
    folder = os.path.relpath(path, mountpoint) if path != mountpoint else ""
    return MountSource(mountpoint, snapshot), user_path(folder)


def _info_of(mountpoint: str) -> dict[str, Any]:
    with open(os.path.join(mountpoint, CONTROL_FOLDER, "info"), "rb") as file:
        info: dict[str, Any] = json.load(file)
        return info
