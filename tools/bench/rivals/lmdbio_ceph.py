"""LMDB on CephFS, and the optimisations of LMDBIO over the same storage daemon, with random reads of one node.

The node reaches the storage over a link. It mounts CephFS, where the file of LMDB lies, or has a server of dieselfs,
whose chunks are objects of the same daemon. Each run has a new mount or server. This module starts processes.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import (
    SMALL_FILE_BYTES,
    SourceTree,
    can_drop_caches,
    drop_caches,
    make_lmdb,
    make_tree,
    shuffled,
)
from bench.harness.readers import lmdb_reader, read_together, shares_of
from bench.papers.lmdbio import FILES, ON_CEPHFS, QUICK_FILES, STEPS, Step, Store, read_step, store_chunks
from bench.rivals.cephfs import CephFs, running_cephfs
from bench.rivals.field import POOL, running_ceph_pool
from bench.rivals.stage import LINKS, running_stage
from lab.network import Host, Unsuitable

READERS = 4
SOME_FILES, QUICK_SOME_FILES = 1_024, 256
"""For steps that read file by file."""
_NAME = "data.mdb"


def lmdbio_ceph(folder: Path, scale: Scale) -> Generator[Trial]:
    if not can_drop_caches():
        raise Unsuitable("caches are dropped before each run, which needs root")
    tree = make_tree(folder / "source", QUICK_FILES if scale.is_quick else FILES, SMALL_FILE_BYTES)
    database = folder / "database"
    database.mkdir()
    make_lmdb(tree, database / _NAME)
    link = LINKS[0]
    with running_stage([link]) as stage, ExitStack() as stack:
        with stage.storage.inside():
            ceph = stack.enter_context(running_ceph_pool(folder / "ceph", stage.storage))
        files = stack.enter_context(running_cephfs(ceph, stage.storage))
        files.put(stage.storage, database)
        node = _Node(stage.clients[link], folder, Store(ceph.url(POOL), [ceph.mon.pid, ceph.osd.pid]))
        with node.host.inside():
            store_chunks(tree, folder, node.store)
        some = QUICK_SOME_FILES if scale.is_quick else SOME_FILES
        sides = [
            _side(tree, name, tree.files if step.is_batched else some, partial(node.read, step))
            for name, step in STEPS.items()
        ]
        sides.append(_side(tree, ON_CEPHFS, tree.files, partial(node.read_lmdb, files, database.name)))
        yield Trial(
            f"{tree.title} at random, {READERS} readers, {link}, cold", sides, scale.rounds, ON_CEPHFS
        )


def _side(tree: SourceTree, name: str, files: int, read: Callable[[Sequence[str]], Run]) -> Side:
    paths = shuffled(tree.paths())[:files]
    return Side(name, partial(read, paths), files, "files", files * tree.file_bytes)


@dataclass(frozen=True, slots=True)
class _Node:
    """`folder`, `store`: of its server."""

    host: Host
    folder: Path
    store: Store

    def read(self, step: Step, paths: Sequence[str]) -> Run:
        with self.host.inside():
            return read_step(self.folder, step, READERS, paths, self.store)

    def read_lmdb(self, files: CephFs, tree: str, paths: Sequence[str]) -> Run:
        with files.mounted(self.host, tree) as place:
            drop_caches()
            readers = [partial(lmdb_reader, place.folder / _NAME, each) for each in shares_of(paths, READERS)]
            return read_together(readers, len(paths), {"client": place.clients, "servers": files.servers()})
