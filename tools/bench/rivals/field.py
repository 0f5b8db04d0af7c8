"""All rivals on the storage host of a stage, or the reasons why some cannot run. This module starts processes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.harness.figures import RunFailed
from bench.harness.forms import filesystem_type
from bench.harness.rounds import FAILURES
from bench.rivals.cephfs import CephFs, running_cephfs
from bench.rivals.glusterfs import running_glusterfs
from bench.rivals.juicefs import running_juicefs
from bench.rivals.ours import running_dieselfs
from bench.rivals.rival import Mounted, Rival, Storing, copy_tree
from bench.rivals.stage import CAPACITY_BYTES, Stage
from lab.ceph import CEPHX, RunningCeph, missing_ceph, running_ceph
from lab.cluster import EVERYWHERE, PORT
from lab.network import Host
from lab.redis_process import running_redis
from lab.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, missing_gateway, running_gateway

CEPHFS = CephFs.name
POOL = "data"
_T = TypeVar("_T")


class Local(Rival):
    """The file system that the trees are written on, without a network."""

    def __init__(self, folder: Path) -> None:
        self.name = f"local {filesystem_type(folder)}"
        self._folder = folder

    def servers(self) -> Sequence[int]:
        return ()

    def mounted(self, host: Host, tree: str) -> AbstractContextManager[Mounted]:
        return nullcontext(Mounted(self._folder / tree, ()))

    def storing(self, host: Host, folder: Path, tree: str) -> AbstractContextManager[Storing]:
        return nullcontext(Storing(partial(copy_tree, folder, self._folder / tree), ()))

    def put(self, host: Host, folder: Path) -> None:
        """They are there."""


@dataclass(frozen=True, slots=True)
class Field:
    """Rivals by name; of those that cannot run, the reasons."""

    running: Mapping[str, Rival]
    lacks: Mapping[str, str]


@contextmanager
def running_field(stage: Stage, folder: Path, trees: Sequence[Path]) -> Iterator[Field]:
    """Until the end of the block; each rival has all trees, which are folders in `folder`. Raises Unsuitable."""
    storage, lacks = stage.storage, dict[str, str]()
    running: dict[str, Rival] = {}
    with ExitStack() as stack:

        def begun(name: str, starting: AbstractContextManager[_T]) -> _T | None:
            try:
                return stack.enter_context(starting)
            except FAILURES as reason:
                lacks[name] = _line_of(reason)
                return None

        with storage.inside():
            redis = stack.enter_context(running_redis(folder / "redis", *EVERYWHERE))
            ceph = begun("Ceph", running_ceph_pool(folder / "ceph", storage))
            s3 = begun("S3", _s3(ceph, storage))
        database = f"redis://{storage.address}:{redis.port}"
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        ours = partial(running_dieselfs, storage=storage, variables=keys)
        starting: dict[str, AbstractContextManager[Rival]] = {"local": nullcontext(Local(folder))}
        if ceph is not None:
            store = ("--store", ceph.url(POOL), "--metadata", f"{database}/0")
            osd = [ceph.mon.pid, ceph.osd.pid, redis.pid]
            starting[CEPHFS] = running_cephfs(ceph, storage)
            name = "dieselfs, rados"
            starting[name] = ours(name, folder / "d-rados", port=PORT, options=store, stores=osd)
        if s3 is not None:
            store = ("--store", s3.url("dieselfs"), "--metadata", f"{database}/2")
            gateway = [s3.process, *osd]
            starting["JuiceFS"] = running_juicefs(database, s3, gateway, storage)
            name = "dieselfs, S3"
            starting[name] = ours(name, folder / "d-s3", port=PORT + 1, options=store, stores=gateway)
        starting["GlusterFS"] = running_glusterfs(folder / "gluster", storage)
        for name, each in starting.items():
            rival = begun(name, each)
            if rival is not None:
                try:
                    for tree in trees:
                        rival.put(storage, tree)
                except FAILURES as reason:
                    lacks[name] = f"storing: {_line_of(reason)}"
                else:
                    running[rival.name] = rival
        yield Field(running, lacks)


@contextmanager
def running_ceph_pool(folder: Path, storage: Host) -> Iterator[RunningCeph]:
    """Ceph with POOL for the chunks of dieselfs, until the end of the block. Raises RunFailed."""
    missing = missing_ceph()
    if missing is not None:
        raise RunFailed(missing)
    with running_ceph(folder, CEPHX, CAPACITY_BYTES, storage.address) as ceph:
        ceph.make_pool(POOL)
        yield ceph


@contextmanager
def _s3(ceph: RunningCeph | None, storage: Host) -> Iterator[S3Server]:
    """Raises RunFailed."""
    missing = missing_gateway()
    if ceph is None or missing is not None:
        raise RunFailed(missing or "there is no Ceph")
    with running_gateway(ceph, storage.address) as server:
        yield server


def _line_of(reason: BaseException) -> str:
    return str(reason).partition("\n")[0]
