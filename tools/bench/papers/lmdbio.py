"""The six optimisations of LMDBIO, one after the other, with 1 to 16 readers beside py-lmdb.

Readers take turns: each reads the next contiguous files as its part of a batch, as Caffe does (section 3.1 of "Scalable
Deep Learning via I/O Analysis and Optimization"). py-lmdb has a cursor for each reader, which passes over the files of
the others. The server of a run starts before the clock. This module starts processes.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import trio

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import SMALL_FILE_BYTES, SourceTree, drop_caches, make_lmdb, make_tree
from bench.harness.readers import ForkedProcess, Work, open_lmdb, read_together
from bench.papers.request_path import PathSettings, RequestPath, serving
from dieselfs.dataset import Dataset
from dieselfs.limits import LIBRARY_MEMORY_BYTES, MIB
from dieselfs.net.address import UnixAddress
from dieselfs.rpc.client import ServerClient
from dieselfs.settings import Settings
from dieselfs_server.assemble import run_server
from lab.server import upload

READERS = (1, 2, 4, 8, 16)
QUICK_READERS = (1, 4)
FILES, QUICK_FILES = 32_768, 2_048
SOME_FILES = 1_024
"""For steps that read file by file."""
PART_FILES = 256
"""The part of one reader of a batch: 1 MiB, a large read of a store."""
BASE = "py-lmdb, a cursor for each reader"
ON_CEPHFS = "LMDB on CephFS"
"""The side of `lmdbio_ceph` that others are compared with."""
DATASET = "bench"
SHARED_BYTES = 512 * MIB
_START_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Step:
    """A reader and its server. `path`: of the server; the others are what the reader does."""

    path: RequestPath
    has_provenance: bool = True
    is_batched: bool = True
    is_placed: bool = False
    is_shared: bool = False


class Store(NamedTuple):
    """Where a server has its chunks. `url`: "" for its folder; `processes`: of the store."""

    url: str = ""
    processes: Sequence[int] = ()


IN_FOLDER = Store()
NOTHING = RequestPath(is_coalescing=False, is_staggering=False, is_bounded=False)
COALESCING = replace(NOTHING, is_coalescing=True)
BOUNDED = replace(COALESCING, is_bounded=True)
STAGGERING = replace(BOUNDED, is_staggering=True)
STEPS = {
    "none: places from the server, file by file": Step(NOTHING, has_provenance=False, is_batched=False),
    "+ provenance: places from the snapshot": Step(NOTHING, is_batched=False),
    "+ coalescing": Step(COALESCING),
    "+ bounded concurrency": Step(BOUNDED),
    "+ staggering": Step(STAGGERING),
    "+ direct placement, whole chunks": Step(STAGGERING, is_placed=True),
    "+ one reader a node": Step(STAGGERING, is_placed=True, is_shared=True),
}
"""Each has the optimisations of those before."""


def lmdbio(folder: Path, scale: Scale) -> Generator[Trial]:
    tree = make_tree(folder / "source", QUICK_FILES if scale.is_quick else FILES, SMALL_FILE_BYTES)
    make_lmdb(tree, folder / "data.mdb")
    store_chunks(tree, folder)
    for readers in QUICK_READERS if scale.is_quick else READERS:
        sides = [
            _side(
                tree,
                name,
                tree.files if step.is_batched else SOME_FILES,
                partial(read_step, folder, step, readers),
            )
            for name, step in STEPS.items()
        ]
        sides.append(_side(tree, BASE, tree.files, partial(_read_lmdb, folder, readers)))
        title = f"{tree.title}, cold, {'1 reader' if readers == 1 else f'{readers} readers'}"
        yield Trial(title, sides, scale.rounds, BASE)


def store_chunks(tree: SourceTree, folder: Path, store: Store = IN_FOLDER) -> None:
    with running(folder, Step(STAGGERING), store) as (settings, _):
        settings = replace(settings, key_file=None)
        with Dataset(settings, DATASET, must_exist=False) as data:
            upload(data, tree.folder)


def _side(tree: SourceTree, name: str, files: int, read: Callable[[Sequence[str]], Run]) -> Side:
    paths = sorted(tree.paths())[:files]
    return Side(name, partial(read, paths), files, "files", files * tree.file_bytes)


def parts_of(paths: Sequence[str], reader: int, readers: int) -> list[Sequence[str]]:
    """The parts of one reader, at most PART_FILES each, smaller where not all readers would have one."""
    part = min(PART_FILES, -(-len(paths) // readers))
    return [paths[first : first + part] for first in range(reader * part, len(paths), readers * part)]


# -- dieselfs ------------------------------------------------------------------------------------------------


@contextmanager
def running(folder: Path, step: Step, store: Store = IN_FOLDER) -> Iterator[tuple[Settings, int]]:
    """A server over the data of the folder, until the end of the block: the settings of its readers, its process ID."""
    address = UnixAddress(str(folder / "server.sock"))
    settings = PathSettings(
        listen=[address],
        store=store.url or f"posix://{folder}/chunks",
        metadata=f"sqlite://{folder}/metadata.db",
        state=folder / "state",
        is_new=not (folder / "metadata.db").exists(),
        shared_memory_bytes=SHARED_BYTES if step.is_shared else 0,
        path=step.path,
    )
    with closing(ForkedProcess(partial(_serve, settings))) as server:
        server.receive(_START_TIMEOUT_S)
        own = Settings(folder / "no-home", folder / "cache", f"unix:{address.path}")
        # To a reader with a key, as on another machine, the server passes no files.
        yield own if step.is_placed else replace(own, key_file=str(_key(folder, own))), server.pid


def _serve(settings: PathSettings, pipe: Connection) -> None:
    with serving(settings.path):
        trio.run(run_server, settings, lambda: pipe.send("ready"))


def _key(folder: Path, settings: Settings) -> Path:
    path = folder / "reader.key"
    if not path.exists():
        with closing(ServerClient(settings)) as client:
            text = client.add_key("reader").text()
            client.grant("reader", "*", "read")
        path.touch(0o600)
        path.write_text(text)
    return path


def read_step(folder: Path, step: Step, readers: int, paths: Sequence[str], store: Store = IN_FOLDER) -> Run:
    with running(folder, step, store) as (settings, server):
        each = [
            partial(_reader, settings, step, parts_of(paths, reader, readers)) for reader in range(readers)
        ]
        drop_caches()
        return read_together(each, len(paths), {"servers": [server, *store.processes]})


def _reader(settings: Settings, step: Step, parts: Sequence[Sequence[str]]) -> Work:
    # Without memory the library fetches no whole chunks.
    data = Dataset(settings, DATASET, memory_bytes=LIBRARY_MEMORY_BYTES if step.is_placed else 0)
    data.snapshot  # noqa: B018  # fetched before the clock runs
    get: Callable[[Sequence[str]], int] = partial(_get_each, data, step.has_provenance)
    if step.is_batched:
        get = partial(_get_batch, data)
    return lambda: sum(map(get, parts))


def _get_batch(data: Dataset, paths: Sequence[str]) -> int:
    return len(data.get_many(paths))


def _get_each(data: Dataset, has_provenance: bool, paths: Sequence[str]) -> int:
    for path in paths:
        if not has_provenance:
            data.client.stat(DATASET, path.encode())
        data.get(path)
    return len(paths)


# -- py-lmdb -------------------------------------------------------------------------------------------------


def _read_lmdb(folder: Path, readers: int, paths: Sequence[str]) -> Run:
    drop_caches()
    each = [partial(_lmdb_reader, folder / "data.mdb", reader, readers) for reader in range(readers)]
    return read_together(each, len(paths))


def _lmdb_reader(file: Path, reader: int, readers: int) -> Work:
    def read() -> int:
        cursor = open_lmdb(file).cursor()
        files = number = 0
        has_more = cursor.first()
        while has_more:
            if number // PART_FILES % readers == reader:
                files += bool(cursor.value())
            number += 1
            has_more = cursor.next()
        return files

    return read
