"""The library: a dataset as an object (DIESEL, table 3). This module waits for sockets and opens files.

    import dieselfs

    with dieselfs.connect("imagenet") as data:
        data.put("train/cat/1.jpg", jpeg)
        data.flush()
        image = data.get("train/cat/1.jpg")

Reads come from one frozen snapshot: changes by other writers are visible after `refresh`. A dataset may be used from
several threads, after a fork, and in a spawned process (it pickles as its settings and its generation), so it can be
an attribute of a PyTorch `Dataset`.
"""

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.cache.file_reader import Path
from dieselfs.cache.look_ahead import LookAhead
from dieselfs.chunk.frames import Compression
from dieselfs.cluster.access import JobAccess
from dieselfs.dataset.batches import (
    DEFAULT_BATCHES_AHEAD,
    DEFAULT_BUFFER_BYTES,
    BatchReader,
    Ring,
    opportunistic_batches,
)
from dieselfs.dataset.file import DatasetFile, buffered
from dieselfs.dataset.reader import FrozenReader
from dieselfs.dataset.strata import strata_of
from dieselfs.errors import AlreadyExists, DieselfsError, InvalidInput, NotFound
from dieselfs.limits import CHUNK_TARGET_BYTES, LIBRARY_MEMORY_BYTES
from dieselfs.names import (
    COLUMNS_PATH,
    SCHEME,
    check_dataset_name,
    is_location,
    parse_location,
    printable,
    user_path,
)
from dieselfs.records import DatasetRecord
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import CopyRequest, PurgeReport, RepackReport
from dieselfs.selection.selected import content_at
from dieselfs.settings import Settings
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.opportunistic import ServedLog
from dieselfs.shuffle.plan import Plan, Share, ShuffledPaths
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot, Stat
from dieselfs.snapshot.saved import check_saved, load_snapshot, save_snapshot
from dieselfs.snapshot.subtree import files_below, listed_children, walk_order
from dieselfs.sources.server import ServerSource
from dieselfs.transfer.sender import ChunkSender
from dieselfs.transfer.writer import DatasetWriter

if TYPE_CHECKING:  # imported in a job alone
    from dieselfs.cluster.attachment import Attachment

DEFAULT_GRACE_S = 24 * 3600
"""Purge removes chunks that have been dead for this long; readers of older snapshots may need younger ones."""
NO_OTHERS = ReaderSpec()
"""The reader of a whole epoch."""


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
        must_exist: bool = True,
        memory_bytes: int = LIBRARY_MEMORY_BYTES,
        job: JobAccess | None = None,
        encrypt: bool = False,
        where: str = "",
        compress: str = "",
    ) -> None:
        """Use `connect`. `generation` 0: the one of `tag`, else the newest. Without `must_exist`, the first put
        creates a missing dataset. `job`: the job whose nodes pool their memory. `encrypt`, `where`, `compress`: see
        `connect`.
        """
        if compress:
            Compression.parse(compress)
        self._compress = compress
        self._settings = settings
        self.name = check_dataset_name(name)
        self.client = ServerClient(settings)
        self._frozen = FrozenReader(self.client, settings, name, generation, tag, memory_bytes, job, where)
        self._encrypt = encrypt  # what is written
        self._lock = RLock()  # guards the two below
        self._record: DatasetRecord | None = None
        self._writing: tuple[int, ChunkSender, DatasetWriter] | None = None  # and the ID of the process
        if must_exist:
            try:
                self._record = self.client.dataset(self.name)
            except BaseException:
                self.client.close()
                raise

    # -- what it is --------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        """The metadata that reads use; fetched at first use."""
        return self._frozen.open().chunks.snapshot

    @property
    def chunks(self) -> ServerSource:
        """Verified chunks and extents of the snapshot, for callers with a cache of their own."""
        return self._frozen.open().chunks

    @property
    def generation(self) -> int:
        """Generation of the snapshot."""
        return self.snapshot.generation

    def record(self) -> DatasetRecord:
        """Totals and generation, as the server has them now."""
        return self.client.dataset(self.name)

    def refresh(self) -> int:
        """Read the newest generation from now on; returns it. A dataset opened by a tag stays at the tag."""
        self._frozen.refresh()
        return self.generation

    # -- reading -----------------------------------------------------------------------------------------

    def get(self, path: Path) -> bytes:
        """All bytes of a file (DL_get). Symbolic links inside the dataset are followed."""
        return (self._frozen.reader or self._frozen.open()).get(path)

    @overload
    def get_many(self, paths: Iterable[Path], *, copy: Literal[True] = True) -> list[bytes]: ...

    @overload
    def get_many(self, paths: Iterable[Path], *, copy: bool) -> list[bytes] | list[memoryview]: ...

    def get_many(self, paths: Iterable[Path], *, copy: bool = True) -> list[bytes] | list[memoryview]:
        """All bytes of each file, in this order. Each chunk is requested once for all of its files.

        Without `copy`, read-only views, which copy nothing that is in memory: several times as fast. Each keeps its
        whole chunk in memory as long as it exists, also after `close`: release them soon.

        Slices of the paths of a plan, one after the other, are read ahead, as in `ahead`.
        """
        reader = self._frozen.reader or self._frozen.open()
        _check_several(paths)
        if isinstance(paths, ShuffledPaths) and paths.snapshot is reader.chunks.snapshot:
            reader.look_ahead.will_read(paths)
            return (self.get_nodes if copy else self.node_views)(paths.nodes, paths.world > 1)
        return reader.get_many(paths) if copy else reader.views(paths)

    @property
    def look_ahead(self) -> LookAhead:
        """Loads files of plans ahead of their readers, in this process; of the snapshot that is read now."""
        return (self._frozen.reader or self._frozen.open()).look_ahead

    def ahead(self, paths: ShuffledPaths) -> Iterator[str]:
        """The same paths of a plan, one by one, while threads load what comes next (docs/guide/python.md)."""
        return self.look_ahead.along(paths)

    def get_nodes(
        self, nodes: Sequence[int] | npt.NDArray[np.integer], is_shared_plan: bool = False
    ) -> list[bytes]:
        """As `get_many`, for files by their node numbers in the snapshot: shape (n,).

        `is_shared_plan`: the order is that of a plan, which other processes of the job read at the same time.
        """
        return (self._frozen.reader or self._frozen.open()).read_many(nodes, is_shared_plan)

    def node_views(
        self, nodes: Sequence[int] | npt.NDArray[np.integer], is_shared_plan: bool = False
    ) -> list[memoryview]:
        """As `get_nodes`, and `get_many` with `copy=False`."""
        return (self._frozen.reader or self._frozen.open()).node_views(nodes, is_shared_plan)

    def views(self, paths: Iterable[Path]) -> list[memoryview]:
        """As `get_many` with `copy=False`."""
        _check_several(paths)
        return (self._frozen.reader or self._frozen.open()).views(paths)

    def get_range(self, path: Path, start: int, end: int) -> bytes:
        """The bytes of a file from `start` up to `end`, as a slice gives them; only extents that have them are read."""
        reader = self._frozen.reader or self._frozen.open()
        snapshot = reader.chunks.snapshot
        node = snapshot.follow(user_path(path))
        start, end, _ = slice(start, end).indices(snapshot.size(node))
        return reader.read_range(node, start, end) if start < end else b""

    def read_rows(self, node: int, firsts: Numbers, rows: npt.NDArray[np.uint8]) -> None:
        """Many ranges of equal length of a file, by its node number: row i gets the bytes from `firsts[i]` on, all of
        which must be in the file. `firsts`: shape (n,); `rows`: shape (n, bytes), contiguous.
        """
        (self._frozen.reader or self._frozen.open()).read_rows(node, firsts, rows)

    def open(self, path: Path) -> io.BytesIO | io.BufferedReader:
        """A file as a binary, seekable file object. A small file is read at once; of a larger one (4 MiB), the extents
        are read when they are needed.
        """
        reader = self._frozen.reader or self._frozen.open()
        snapshot = reader.chunks.snapshot
        node = snapshot.follow(user_path(path))
        if (size := snapshot.size(node)) <= CHUNK_TARGET_BYTES:
            return io.BytesIO(self.get(path))
        location = f"{SCHEME}{self._frozen.state}/{printable(snapshot.path(node))}"
        return buffered(DatasetFile(size, partial(reader.read_range, node), location))

    @property
    def job_node(self) -> str | None:
        """The name of this node in the job in which the dataset is read; None without a job."""
        return None if self._frozen.job is None else self._frozen.job.job.node

    @property
    def attachment(self) -> "Attachment | None":
        """The access to the nodes of the job, for samplers; None without a job."""
        self._frozen.open()
        return self._frozen.attachment

    def statistics(self) -> dict[str, Any]:
        """Read counters of this process since the snapshot was opened, by group and name."""
        return self._frozen.open().metrics.as_dict()

    def stat(self, path: Path) -> Stat:
        """Type, size, time and inode of a path (DL_stat); of a link itself, not of its target."""
        snapshot = self.snapshot
        return snapshot.stat(snapshot.require(user_path(path)))

    def exists(self, path: Path) -> bool:
        return self.snapshot.find(user_path(path)) >= 0

    def ls(self, path: Path = "") -> list[str]:
        """Names in a folder, sorted as bytes (DL_ls), decoded by `os.fsdecode`."""
        snapshot = self.snapshot
        folder = snapshot.require_folder(user_path(path))
        return [os.fsdecode(snapshot.name(node)) for node in listed_children(snapshot, folder)]

    def files(self, path: Path = "") -> Iterator[str]:
        """Paths of all files in a folder and below."""
        snapshot = self.snapshot
        for node in walk_order(snapshot, snapshot.require(user_path(path))).tolist():
            if snapshot.stat(node).is_file:
                yield os.fsdecode(snapshot.path(node))

    def __len__(self) -> int:
        """Number of files."""
        snapshot = self.snapshot
        return len(files_below(snapshot)) if snapshot.find(COLUMNS_PATH) >= 0 else snapshot.header.files

    def select(self, where: str) -> "Dataset":
        """The files for which an expression over their columns is true, as a dataset of its own, at this generation:
        `data.select("width >= 512 and lang = 'de'")`. Close it as well. Raises InvalidInput.
        """
        earlier = self._frozen.where
        # On their own lines, so that a comment at the end of one hides nothing of what follows.
        state = {**self.__getstate__(), "where": f"(\n{earlier}\n) and (\n{where}\n)" if earlier else where}
        selected = Dataset.__new__(Dataset)
        selected.__setstate__(state)
        try:
            selected._frozen.open()
        except BaseException:
            selected.close()
            raise
        return selected

    def columns(self) -> Any:
        """The values of files, as a `pyarrow.Table` with their paths in the column `path`; of a selection, as of the
        whole dataset. Raises NotFound without columns, InvalidInput without pyarrow.
        """
        from dieselfs.selection.file_columns import FileColumns  # with pyarrow, for columns alone

        snapshot = self.snapshot
        return FileColumns.decode(
            content_at(self._frozen.whole or snapshot, self.client, COLUMNS_PATH)
        ).with_text()

    def shuffle(self, seed: int = 0, epoch: int = 0, group_chunks: int | None = None) -> ShuffledPaths:
        """The files in the order of an epoch (DL_shuffle): chunk-wise in groups of `group_chunks`; 0 shuffles fully.

        The same on every machine for the same snapshot, seed, epoch and group size. Paths are made when they are
        accessed.
        """
        return self.plan(seed, epoch, group_chunks).share().paths

    def plan(
        self,
        seed: int = 0,
        epoch: int = 0,
        group_chunks: int | None = None,
        skips: Skips | Iterable[range] = (),
        folder: Path = "",
    ) -> Plan:
        """The order of an epoch; `Plan.share` gives the part of one rank or worker, from any position on.

        `skips`: positions of the whole order to leave out. `folder`: order only the files below it.
        """
        skips = skips if isinstance(skips, Skips) else Skips(skips)
        return self.plan_of(PlanSpec(seed, epoch, group_chunks, skips, user_path(folder)))

    def plan_of(self, spec: PlanSpec) -> Plan:
        """As `plan`, of a spec: for other shuffle policies, and for code that passes specs on."""
        snapshot, layout = self._frozen.layout(spec.folder)
        return Plan(snapshot, spec, layout)

    def plan_at(self, cursor: Cursor | str, folder: Path = "") -> Plan:
        """The plan of a cursor; continue with `plan.share(start=cursor.position)`. Raises InvalidInput if the cursor
        is of another snapshot or folder.
        """
        cursor = Cursor.parse(cursor) if isinstance(cursor, str) else cursor
        plan = self.plan_of(replace(cursor.spec, folder=user_path(folder)))
        plan.check_cursor(cursor)
        return plan

    def batches(
        self,
        batch: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        folder: Path = "",
        is_opportunistic: bool = True,
        group_chunks: int | None = None,
        reader: ReaderSpec = NO_OTHERS,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        ahead: int = DEFAULT_BATCHES_AHEAD,
        log: ServedLog | None = None,
    ) -> BatchReader:
        """Batches of `batch` files, read ahead by a thread. `reader`: rank, world and start; in a job also `nodes`, so
        that each rank reads what its node owns.

        Opportunistic: what is in memory first, of this node and then of others, each file once, drawn from a buffer of
        `buffer_bytes`; with the `log` of another run, in its order. Otherwise in the order of `plan(seed, epoch,
        group_chunks)`, of which `ahead` batches wait in memory.
        """
        if batch < 1:
            raise InvalidInput(f"batch is {batch}: give the number of files, 1 or more")
        if ahead < 1:
            raise InvalidInput(f"ahead is {ahead}: give the number of batches to read ahead, 1 or more")
        plan = self.plan(seed, epoch, group_chunks, folder=folder)
        if not is_opportunistic:
            share = Share(plan, reader)
            return BatchReader(self, Ring.of_list(share.nodes(), batch, ahead), share.world > 1)
        return opportunistic_batches(
            self, plan, reader, batch, distances=self.distances(), buffer_bytes=buffer_bytes, log=log
        )

    def distances(self) -> Numbers:
        """Where the chunks of the snapshot are: shape (chunks,). 0: in the memory of this node, 1: of another node of
        the job, 2: elsewhere.
        """
        return self._frozen.open().distances()

    # -- metadata files ----------------------------------------------------------------------------------

    def save_meta(self, path: str | os.PathLike[str]) -> None:
        """Save the snapshot to a file that other processes and nodes can load (DL_save_meta); atomic."""
        save_snapshot(self.snapshot, path)

    def load_meta(self, path: str | os.PathLike[str], is_stale_allowed: bool = False) -> None:
        """Read with a snapshot from a file (DL_load_meta). Raises DieselfsError if it is not of the server's
        generation, unless a stale one is allowed.
        """
        snapshot = load_snapshot(path, self.record(), is_stale_allowed)
        check_saved(snapshot, self._settings.max_age_s, self.client.servers_pins)
        self._frozen.use(snapshot)

    # -- writing -----------------------------------------------------------------------------------------

    @property
    def writer(self) -> DatasetWriter:
        """Collects puts and deletes of this process; creates the dataset at first use."""
        with self._lock:
            self._frozen.check_open()
            # A forked child has none of the threads.
            if self._writing is None or self._writing[0] != os.getpid():
                compression = Compression.parse(self._compress) if self._compress else None
                sender = ChunkSender(self.client, self.create(), compression=compression)
                self._writing = (os.getpid(), sender, DatasetWriter(sender))
            return self._writing[2]

    def create(self) -> DatasetRecord:
        """Create the dataset unless it exists; with its key if it is to be encrypted."""
        with self._lock:
            if self._record is None:
                self._record = self.client.ensure_dataset(self.name)
            if self._encrypt:
                self.client.encrypt(self._record)
            return self._record

    def put(self, path: Path, data: bytes, mode: int = 0o644, mtime_ns: int | None = None) -> None:
        """Store a file, replacing one at this path (DL_put). It is durable and visible when `flush` has returned."""
        self.writer.put(user_path(path), data, mode, mtime_ns)

    def delete(self, path: Path) -> None:
        """Delete a file, a link, or a folder with its content (DL_delete). Takes effect at `flush`."""
        snapshot = self.snapshot
        node = snapshot.require(user_path(path))
        for below in snapshot.walk(node):
            self.writer.delete(snapshot.path(below))
        if node:
            self.writer.delete(snapshot.path(node))

    def rename(self, old: Path, new: Path) -> None:
        """Move a file, a link, or a folder with its content: the servers store it at the new path, then delete it at
        the old (DIESEL 4.1.1). A crash in between leaves it at both. Takes effect when it returns.

        Raises NotFound, AlreadyExists if the new path exists, InvalidInput if it lies in the old one.
        """
        self.flush()
        name, target = self.name, user_path(new)
        with suppress(NotFound):
            self.client.stat(name, target)
            raise AlreadyExists(f"dl://{name}/{printable(target)} exists: delete it, or choose another path")
        self.client.copy_entries(CopyRequest(name, user_path(old), name, target, is_move=True))
        self._frozen.refresh_if_newest()

    def flush(self) -> int:
        """Wait until all puts and deletes are stored (DL_flush); returns the generation. Later reads see them."""
        with self._lock:
            writing = self._writing
        if writing is None or writing[0] != os.getpid():
            return self._record.generation if self._record else 0
        generation = writing[2].flush()
        self._frozen.refresh_if_newest()
        return generation

    def purge(self, grace_s: int = DEFAULT_GRACE_S, is_dry_run: bool = False) -> PurgeReport:
        """Merge chunks that have dead entries, and remove chunks that have been dead for `grace_s` (DL_purge)."""
        return self.client.purge(self.name, grace_s, is_dry_run)

    def repack(
        self,
        stratify: str = "class",
        *,
        class_of: str | None = None,
        column: str | None = None,
        seed: int = 0,
        is_dry_run: bool = False,
    ) -> RepackReport:
        """Copy files, inside the store, into chunks that have all strata in proportion, which `strata_of` explains.
        Later reads see the new generation. Raises NotFound, StorageFull; after an error, the same call continues.
        """
        strata = strata_of(self.snapshot, self.client, stratify, class_of, column)
        report = self.client.repack(self.name, self.snapshot.generation, strata, seed, is_dry_run)
        self._frozen.refresh_if_newest()
        return report

    def delete_dataset(self) -> None:
        """Remove the dataset with all its files permanently (DL_delete_dataset). Raises NotFound, also if it was
        removed and another one has been made under its name since.
        """
        record = self._record or self.client.dataset(self.name)
        self.client.drop_dataset(self.name, record.dataset_id)

    # -- life --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, then end connections and threads (DL_close). May be called again."""
        try:
            self.flush()
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            writing, self._writing = self._writing, None
            self._frozen.close()
        if writing is not None and writing[0] == os.getpid():
            writing[1].abandon()
        self.client.close()

    def __enter__(self) -> "Dataset":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
        else:  # the puts since the last flush may be incomplete
            self._end()

    def __getstate__(self) -> dict[str, Any]:
        snapshot = self.snapshot
        return {
            "settings": self._settings,
            "name": self.name,
            "generation": snapshot.generation,
            "tag": self._frozen.tag,
            "memory_bytes": self._frozen.memory_bytes,
            "is_in_job": self._frozen.job is not None,
            "encrypt": self._encrypt,
            "meta": (self._frozen.whole or snapshot).source,
            "where": self._frozen.where,
            "compress": self._compress,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a spawned process: the same snapshot from the same file, without a request to the server."""
        settings, name, tag = state["settings"], state["name"], state["tag"]
        dataset = Dataset(
            settings,
            name,
            state["generation"],
            tag,
            must_exist=False,
            memory_bytes=state["memory_bytes"],
            job=JobAccess.find(settings, name, tag) if state["is_in_job"] else None,
            encrypt=state["encrypt"],
            where=state.get("where", ""),
            compress=state.get("compress", ""),
        )
        self.__dict__.update(dataset.__dict__)
        with suppress(DieselfsError):  # the file may be gone; then the server is asked at first use
            self._frozen.use(Snapshot.open(state["meta"]))

    def __repr__(self) -> str:
        return f"<dieselfs.Dataset {self._frozen.state!r} at {self.client.address}>"


def _check_several(paths: Iterable[Path]) -> None:
    if isinstance(paths, str | bytes):
        raise InvalidInput(f"{paths!r} is one path: give a list of paths, or use get")


def connect(
    dataset: str,
    *,
    server: str | None = None,
    key_file: str | None = None,
    home: str | os.PathLike[str] | None = None,
    generation: int = 0,
    create: bool = False,
    encrypt: bool = False,
    memory_bytes: int = LIBRARY_MEMORY_BYTES,
    job: str | None = None,
    job_secret: str | os.PathLike[str] | None = None,
    job_memory_bytes: int | None = None,
    where: str = "",
    compress: str = "",
) -> Dataset:
    """Open a dataset by its name, at a tag by `name@tag`; either may begin with `dl://` (DL_connect).

    `server`: `tcp://host:port`, several of these with commas between, `etcd://host:port` (the registry of the servers),
    or `unix:PATH`. By default it comes from the environment or the configuration file; if neither has one, an embedded
    server over `home` is used. The key file determines the user. With `create`, the first put creates a missing
    dataset. `memory_bytes` limits the chunk cache of each process that reads.

    `encrypt`: the first put gives a dataset without files a key, as `dlcmd put --encrypt` does; it raises InvalidInput
    if the dataset has files that are not encrypted. A dataset that has a key needs no `encrypt`.

    `job`: the nodes of this job pool their memory, and the servers send each chunk once (docs/guide/python.md). `auto`:
    the job that Slurm, torchrun or Open MPI has started; empty: none, whatever the configuration says. `job_secret`: a
    file with the same content on all nodes, by default the key. `job_memory_bytes`: memory that this node offers.

    `compress`: `zstd` or `zstd:LEVEL`; files that are put are stored compressed where they shrink, but for those of an
    encrypted dataset.

    `where`: only the files for which this expression over their columns is true (docs/guide/columns.md); all reads and
    orders are then of these files.

    Raises NotFound, AccessDenied, Unavailable, InvalidInput.
    """
    settings = Settings.load(server, key_file, home=home)
    of_job = job, job_secret, job_memory_bytes
    return connect_with(
        settings, dataset, generation, create, memory_bytes, *of_job, encrypt, where, compress
    )


def connect_with(
    settings: Settings,
    dataset: str,
    generation: int = 0,
    create: bool = False,
    memory_bytes: int = LIBRARY_MEMORY_BYTES,
    job: str | None = None,
    job_secret: str | os.PathLike[str] | None = None,
    job_memory_bytes: int | None = None,
    encrypt: bool = False,
    where: str = "",
    compress: str = "",
) -> Dataset:
    """As `connect`, with these settings."""
    location = parse_location(dataset if is_location(dataset) else SCHEME + dataset)
    if location.path:
        folder = printable(location.path)
        raise InvalidInput(
            f"connect opens whole datasets: write connect({location.state!r}) and give paths below {folder!r}, "
            f"as in ls({folder!r}) or plan(folder={folder!r})"
        )
    settings = settings.in_job(job, job_secret, job_memory_bytes)
    access = JobAccess.find(settings, location.dataset, location.tag, is_required=job is not None)
    at = location.dataset, generation, location.tag
    return Dataset(settings, *at, not create, memory_bytes, access, encrypt, where, compress)
