"""The library: a dataset as an object (DIESEL, table 3). This module waits for sockets and opens files.

    import dieselfs

    with dieselfs.connect("imagenet") as data:
        data.put("train/cat/1.jpg", jpeg)
        data.flush()
        image = data.get("train/cat/1.jpg")

Reads come from one frozen snapshot: other writers change nothing under a reader's feet until it calls
`refresh`. A dataset may be used from several threads, after a fork, and in a spawned process (it pickles as
its settings and its generation), so it can be an attribute of a PyTorch `Dataset` as it is.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.cache.node_socket import NodeClient, runtime_folder, socket_path
from dieselfs.config import Settings
from dieselfs.errors import AlreadyExists, DieselfsError, InvalidInput
from dieselfs.file_reader import FileReader, Path, ReadStatistics
from dieselfs.job_access import JobAccess
from dieselfs.limits import LIBRARY_MEMORY_BYTES
from dieselfs.meta.records import DatasetRecord
from dieselfs.meta.snapshot import Snapshot, Stat
from dieselfs.names import SCHEME, check_dataset_name, is_location, parse_location, printable, user_path
from dieselfs.peers.attachment import Attachment
from dieselfs.reader import ChunkReader
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import PurgeReport
from dieselfs.sender import ChunkSender
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.order import DEFAULT_GROUP_CHUNKS, Layout
from dieselfs.shuffle.plan import Plan, ShuffledPaths
from dieselfs.shuffle.skips import Skips
from dieselfs.snapshot_cache import SnapshotCache, load_snapshot
from dieselfs.writer import DatasetWriter

DEFAULT_GRACE_S = 24 * 3600
"""How long purge leaves dead chunks to those who still read an older snapshot."""


class Dataset:
    """A dataset, opened. Close it, or use it in a `with` block, which flushes at a normal end.

    Paths are given relative to the dataset's root, as text or bytes, with or without a leading slash. Methods
    raise NotFound, InvalidInput, Damaged, AccessDenied, Unavailable, StorageFull (all are DieselfsError).
    Each wait for the server is bounded (30 s without a byte).
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        generation: int = 0,
        tag: str = "",
        is_created: bool = True,
        memory_bytes: int = LIBRARY_MEMORY_BYTES,
        job: JobAccess | None = None,
    ) -> None:
        """Use `connect`. `generation` 0: the newest, or what `tag` names; `is_created`: the dataset must
        exist, or is made at the first put; `job`: whose nodes have its chunks in memory.
        """
        self._settings = settings
        self._name = check_dataset_name(name)
        self._pinned = generation
        self._tag = tag
        self._memory_bytes = memory_bytes
        self._job = job
        self._client = ServerClient(settings)
        self._lock = RLock()  # guards the three below
        self._record: DatasetRecord | None = None
        self._reader: FileReader | None = None
        self._writing: tuple[int, ChunkSender, DatasetWriter] | None = None  # with the process that writes
        self._layout: tuple[Snapshot, Layout] | None = None  # made anew by whoever finds another snapshot's
        if is_created:
            try:
                self._record = self._client.dataset(self._name)
            except BaseException:
                self._client.close()
                raise

    # -- what it is --------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    @property
    def client(self) -> ServerClient:
        return self._client

    @property
    def snapshot(self) -> Snapshot:
        """The metadata that reads use; fetched at first use."""
        return self._reading().chunks.snapshot

    @property
    def chunks(self) -> ChunkReader:
        """Verified chunks and pieces of the snapshot, for those who cache on their own."""
        return self._reading().chunks

    @property
    def generation(self) -> int:
        """Generation of the snapshot."""
        return self.snapshot.generation

    def record(self) -> DatasetRecord:
        """Totals and generation, asked from the server just now."""
        return self._client.dataset(self._name)

    def _reading(self) -> FileReader:
        with self._lock:
            if self._reader is None:
                cache = SnapshotCache(self._settings.cache / "snapshots")
                return self._use(cache.get(self._client, self.record(), self._pinned, self._tag))
            return self._reader

    def _use(self, snapshot: Snapshot) -> FileReader:
        self._leave()
        chunks = ChunkReader(self._client, snapshot)
        daemon: NodeClient | Attachment
        if self._job is None:
            path = socket_path(runtime_folder(), snapshot.dataset, snapshot.digest)
            daemon = NodeClient(path, snapshot.digest)
        else:
            daemon = self._job.attach(snapshot, chunks)
        self._reader = FileReader(chunks, self._memory_bytes, daemon)
        return self._reader

    def _leave(self) -> None:
        """Read with another snapshot from now on."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def refresh(self) -> int:
        """See what has been stored since; returns the generation. A dataset opened by a tag stays at the tag."""
        with self._lock:
            self._pinned = 0
            self._leave()
        return self.generation

    # -- reading -----------------------------------------------------------------------------------------

    def get(self, path: Path) -> bytes:
        """All bytes of a file (DL_get). Symbolic links inside the dataset are followed."""
        return (self._reader or self._reading()).get(path)

    def get_many(self, paths: Iterable[Path]) -> list[bytes]:
        """All bytes of each file, in this order; each chunk is asked for once, however many files of it are
        wanted.
        """
        reader = self._reader or self._reading()
        if isinstance(paths, ShuffledPaths) and paths.snapshot is reader.chunks.snapshot:
            return reader.read_many(paths.nodes, is_common=paths.world > 1)  # whose names nobody needs
        return reader.get_many(paths)

    def get_nodes(
        self, nodes: Sequence[int] | npt.NDArray[np.integer], is_common: bool = False
    ) -> list[bytes]:
        """As `get_many`, for files by their numbers in the snapshot, as plans and walks have them.

        `is_common`: they are read in the order of a plan, as other processes of the job do at the same time.
        """
        return (self._reader or self._reading()).read_many(nodes, is_common)

    def views(self, paths: Iterable[Path]) -> list[memoryview]:
        """As `get_many`, but nothing is copied that is in memory: several times as fast for small files.

        The views are read-only. Each keeps the chunk that it lies in in memory, so let go of them soon.
        """
        return (self._reader or self._reading()).views(paths)

    def statistics(self) -> ReadStatistics:
        """What reading this snapshot came to so far, in this process."""
        return self._reading().statistics()

    def stat(self, path: Path) -> Stat:
        """Type, size, time and inode of a path (DL_stat); of a link itself, not of its target."""
        snapshot = self.snapshot
        return snapshot.stat(snapshot.require(user_path(os.fspath(path))))

    def exists(self, path: Path) -> bool:
        return self.snapshot.find(user_path(os.fspath(path))) >= 0

    def ls(self, path: Path = "") -> list[str]:
        """Names in a folder, sorted as bytes (DL_ls).

        Bytes that are not UTF-8 come as `os.fsdecode` gives them.
        """
        snapshot = self.snapshot
        folder = snapshot.require(user_path(os.fspath(path)))
        if not snapshot.stat(folder).is_folder:
            raise InvalidInput(f"{printable(snapshot.path(folder))} is not a folder")
        return [os.fsdecode(snapshot.name(node)) for node in snapshot.children(folder)]

    def files(self, path: Path = "") -> Iterator[str]:
        """Paths of all files in a folder and below."""
        snapshot = self.snapshot
        for node in snapshot.walk(snapshot.require(user_path(os.fspath(path)))):
            if snapshot.stat(node).is_file:
                yield os.fsdecode(snapshot.path(node))

    def __len__(self) -> int:
        """Number of files."""
        return self.snapshot.header.files

    def shuffle(
        self, seed: int = 0, epoch: int = 0, group_chunks: int = DEFAULT_GROUP_CHUNKS
    ) -> ShuffledPaths:
        """The files in the order of an epoch (DL_shuffle): chunk-wise in groups of `group_chunks`, fully with
        0.

        The same on every machine for the same snapshot, seed, epoch and group size. A sequence: paths are
        made when asked for.
        """
        return self.plan(seed, epoch, group_chunks).share().paths

    def plan(
        self,
        seed: int = 0,
        epoch: int = 0,
        group_chunks: int = DEFAULT_GROUP_CHUNKS,
        skips: Skips | Iterable[range] = (),
        folder: Path = "",
    ) -> Plan:
        """The order of an epoch, to be dealt out to ranks and workers, and begun anywhere: `Plan.share`.

        `skips` are positions of the whole order to leave out; with a `folder`, the order is of what lies in it.
        """
        snapshot = self.snapshot
        layout = self._layout_of(snapshot, user_path(os.fspath(folder)))
        return Plan(snapshot, seed, epoch, group_chunks, skips, layout)

    def plan_at(self, cursor: Cursor | str, folder: Path = "") -> Plan:
        """The plan that a cursor stands in; go on with `plan.share(start=cursor.position)`. Raises InvalidInput
        if the cursor is of another snapshot, or of another folder.
        """
        snapshot = self.snapshot
        layout = self._layout_of(snapshot, user_path(os.fspath(folder)))
        return Plan.at(snapshot, Cursor.parse(cursor) if isinstance(cursor, str) else cursor, layout)

    def _layout_of(self, snapshot: Snapshot, folder: bytes) -> Layout:
        """The layout of a snapshot or of a folder in it, made once for all epochs of it."""
        kept = self._layout
        if kept is None or kept[0] is not snapshot or kept[1].folder != folder:
            self._layout = kept = snapshot, Layout.of(snapshot, folder)
        return kept[1]

    # -- metadata files ----------------------------------------------------------------------------------

    def save_meta(self, path: str | os.PathLike[str]) -> None:
        """Save the snapshot to a file, for other processes and nodes to load (DL_save_meta).

        Whole or not at all.
        """
        target = os.fspath(path)
        aside = f"{target}.{os.getpid()}.tmp"
        try:
            with open(aside, "wb") as file:
                file.write(self.snapshot.content)
            os.replace(aside, target)
        except OSError as error:
            raise DieselfsError(f"cannot save the snapshot to {target}: {error.strerror}") from None

    def load_meta(self, path: str | os.PathLike[str], is_stale_allowed: bool = False) -> None:
        """Read with a snapshot from a file (DL_load_meta); it must be of the server's generation unless a
        stale one is allowed.
        """
        snapshot = load_snapshot(path, self.record(), is_stale_allowed)
        with self._lock:
            self._pinned = snapshot.generation
            self._use(snapshot)

    # -- writing -----------------------------------------------------------------------------------------

    @property
    def writer(self) -> DatasetWriter:
        """Collects puts and deletes of this process; the dataset is made at first use."""
        with self._lock:
            if (
                self._writing is None or self._writing[0] != os.getpid()
            ):  # a forked child has none of the threads
                sender = ChunkSender(self._client, self.create())
                self._writing = (os.getpid(), sender, DatasetWriter(sender))
            return self._writing[2]

    def create(self) -> DatasetRecord:
        """Make the dataset unless it exists."""
        with self._lock:
            if self._record is None:
                try:
                    self._record = self._client.create_dataset(self._name)
                except AlreadyExists:
                    self._record = self._client.dataset(self._name)
            return self._record

    def put(self, path: Path, data: bytes, mode: int = 0o644, mtime_ns: int | None = None) -> None:
        """Store a file, replacing one of this path (DL_put).

        It is safe, and visible, once `flush` has returned.
        """
        self.writer.put(user_path(os.fspath(path)), data, mode, mtime_ns)

    def delete(self, path: Path) -> None:
        """Delete a file, a link, or a folder with all that is in it (DL_delete). Takes effect at `flush`."""
        snapshot = self.snapshot
        node = snapshot.require(user_path(os.fspath(path)))
        for below in snapshot.walk(node):
            self.writer.delete(snapshot.path(below))
        if node:
            self.writer.delete(snapshot.path(node))

    def rename(self, old: Path, new: Path) -> None:
        """Give a file, a link, or a folder with all that is in it another path: stored under the new one,
        then deleted under the old (DIESEL 4.1.1). A crash in between leaves it under both. Takes effect when
        it returns.

        Raises NotFound, AlreadyExists if there is something at the new path, InvalidInput if that lies in the
        old one.
        """
        source, target = user_path(os.fspath(old)), user_path(os.fspath(new))
        snapshot = self.snapshot
        top = snapshot.require(source)
        if snapshot.find(target) >= 0:
            raise AlreadyExists(f"dl://{self._name}/{printable(target)} exists already")
        if not source or not target or target.startswith(source + b"/"):
            raise InvalidInput(f"{printable(source)} cannot be moved into itself")
        chunks = self.chunks
        for node in (top, *snapshot.walk(top)):
            self._copy(chunks, node, target + snapshot.path(node)[len(source) :])
        self.flush()
        for node in (top, *snapshot.walk(top)):
            self.writer.delete(snapshot.path(node))
        self.flush()

    def _copy(self, chunks: ChunkReader, node: int, path: bytes) -> None:
        """Store what `node` is under another path."""
        snapshot, stat = chunks.snapshot, chunks.snapshot.stat(node)
        if stat.is_link:
            self.writer.put_link(path, snapshot.target(node), stat.mode, stat.mtime_ns)
        elif stat.is_folder:
            self.writer.put_folder(path, stat.mode, stat.mtime_ns)
        else:
            extents = snapshot.extents(node)
            pieces = (chunks.fetch_extent(extent) for extent in extents)
            if len(extents) > 1:
                self.writer.put_pieces(path, pieces, stat.size, stat.mode, stat.mtime_ns)
            else:
                self.writer.put(path, b"".join(pieces), stat.mode, stat.mtime_ns)

    def flush(self) -> int:
        """Wait until all that was put or deleted is stored (DL_flush); returns the generation. Later reads
        see it.
        """
        with self._lock:
            writing = self._writing
        if writing is None or writing[0] != os.getpid():
            return self._record.generation if self._record else 0
        generation = writing[2].flush()
        with self._lock:
            if self._pinned == 0:
                self._leave()
        return generation

    def purge(self, grace_s: int = DEFAULT_GRACE_S, is_dry_run: bool = False) -> PurgeReport:
        """Merge chunks with holes into full ones, and remove chunks that have been dead for `grace_s`
        (DL_purge).
        """
        return self._client.purge(self._name, grace_s, is_dry_run)

    def delete_dataset(self) -> None:
        """Remove the dataset with all its files, for good (DL_delete_dataset)."""
        self._client.drop_dataset(self._name)

    # -- life --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, and let go of connections and threads (DL_close). May be called again."""
        try:
            self.flush()
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            writing, self._writing = self._writing, None
            if self._reader is not None:
                self._reader.close()
        if writing is not None and writing[0] == os.getpid():
            writing[1].abandon()
        self._client.close()

    def __enter__(self) -> "Dataset":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
        else:  # what was put since the last flush may be half of what was meant
            self._end()

    def __getstate__(self) -> dict[str, Any]:
        snapshot = self.snapshot
        return {
            "settings": self._settings,
            "name": self._name,
            "generation": snapshot.generation,
            "tag": self._tag,
            "memory_bytes": self._memory_bytes,
            "is_in_job": self._job is not None,
            "meta": snapshot.source,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a spawned process: the same snapshot from the same file, without asking the server."""
        settings, name, tag = state["settings"], state["name"], state["tag"]
        dataset = Dataset(
            settings,
            name,
            state["generation"],
            tag,
            is_created=False,
            memory_bytes=state["memory_bytes"],
            job=JobAccess.find(settings, name, tag) if state["is_in_job"] else None,
        )
        self.__dict__.update(dataset.__dict__)
        with suppress(DieselfsError):  # the file may have been cleared away; the server may have it still
            self._use(Snapshot.open(state["meta"]))

    def __repr__(self) -> str:
        return f"<dieselfs.Dataset {self._name!r} at {self._client.address}>"


def connect(
    dataset: str,
    *,
    server: str | None = None,
    key_file: str | None = None,
    home: str | os.PathLike[str] | None = None,
    generation: int = 0,
    create: bool = False,
    memory_bytes: int = LIBRARY_MEMORY_BYTES,
    job: str | None = None,
    job_secret: str | os.PathLike[str] | None = None,
    job_memory_bytes: int | None = None,
) -> Dataset:
    """Open a dataset by its name, at a tag by `name@tag`; either may begin with `dl://` (DL_connect).

    `server` is `tcp://host:port`, several of these with commas between, `etcd://host:port` (which knows the
    servers), or `unix:PATH`; by default what the environment or the configuration file
    says, and with nothing there, an embedded server over `home`. The user is the one of the key file. With
    `create`, a dataset that does not exist is made at the first put. Chunks that were read are kept, in each process
    that reads, within `memory_bytes`.

    `job`: the nodes of this job pool their memory, and each chunk leaves the servers once (docs/library.md); `auto` for
    the job that Slurm, torchrun or Open MPI has started, the empty text for none, whatever the configuration says.
    `job_secret` is a file that all of them have, by default the key; `job_memory_bytes` is what this node offers.

    Raises NotFound, AccessDenied, Unavailable, InvalidInput.
    """
    location = parse_location(dataset if is_location(dataset) else SCHEME + dataset)
    settings = Settings.load(server, key_file, home=home).in_job(job, job_secret, job_memory_bytes)
    access = JobAccess.find(settings, location.dataset, location.tag, is_asked_for=job is not None)
    return Dataset(settings, location.dataset, generation, location.tag, not create, memory_bytes, access)
