"""A copy of an older state is restored, of the store, of the metadata, or of both: what clients notice of it."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import Damaged, DieselfsError
from dieselfs.snapshot.saved import STATEMENT_SUFFIX
from dieselfs.snapshot.store import SnapshotStore
from tests.support.redis import HOST, RedisProcess, needs_redis, running_cluster, running_redis
from tests.support.server import RunningServer, running_server
from tests.support.softhsm import soft_token

DATASET = "pets"


@dataclass
class Site:
    """A store and its metadata, of which copies are taken and restored while no server runs. `redis`: the processes
    with the metadata; without them it is in SQLite. `options`: of the server.
    """

    folder: Path
    redis: Sequence[RedisProcess]
    options: tuple[str, ...] = ()
    wait: Callable[[], object] = lambda: None
    """Until the metadata is served."""

    @contextmanager
    def serving(self) -> Iterator[RunningServer]:
        options = (*self.options, "--state", f"{self.folder}/state")
        with running_server(self.folder / "server", options) as server:
            yield server

    def _parts(self, is_store: bool) -> list[Path]:
        """Files and folders, of which no two have the same path below the folder of the site."""
        if is_store:
            return [self.folder / "server/chunks"]
        dumps = [node.folder / "dump.rdb" for node in self.redis]
        return dumps or [*self.folder.glob("server/metadata.db*")]

    def _copy_of(self, part: Path) -> Path:
        return self.folder / "copy" / part.relative_to(self.folder)

    def copy(self) -> None:
        for node in self.redis:
            with node.client() as client:
                client.save()
        for part in (*self._parts(is_store=True), *self._parts(is_store=False)):
            copied = self._copy_of(part)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(part, copied) if part.is_dir() else shutil.copy(part, copied)

    def restore(self, store: bool, metadata: bool) -> None:
        if metadata:
            for node in self.redis:
                node.kill()
        wanted = [*(self._parts(is_store=True) * store), *(self._parts(is_store=False) * metadata)]
        for part in wanted:
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        for copied in filter(Path.exists, map(self._copy_of, wanted)):
            part = self.folder / copied.relative_to(self.folder / "copy")
            shutil.copytree(copied, part) if copied.is_dir() else shutil.copy(copied, part)
        if metadata:
            for node in self.redis:
                node.start()
            self.wait()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        match request.param:
            case "redis":
                redis = stack.enter_context(running_redis(tmp_path / "redis"))
                yield Site(tmp_path, [redis], ("--metadata", f"redis://{HOST}:{redis.port}/0"))
            case "cluster":
                cluster = stack.enter_context(running_cluster(tmp_path / "redis"))
                options = "--metadata", f"redis+cluster://{cluster.hosts}"
                yield Site(tmp_path, cluster.nodes, options, cluster.wait_until_whole)
            case "token":
                token = stack.enter_context(soft_token(tmp_path / "token"))
                yield Site(tmp_path, [], ("--server-identity", token.uri("freshness")))
            case _:
                yield Site(tmp_path, [])


each_kind = pytest.mark.parametrize(
    "site",
    ["sqlite", *(pytest.param(kind, marks=needs_redis) for kind in ("redis", "cluster")), "token"],
    indirect=True,
)
"""Of metadata; with a token, the key that signs statements is not in the store."""


@contextmanager
def opened(
    site: Site, server: RunningServer, name: str = "reader", max_age_s: float = 0.0
) -> Iterator[Dataset]:
    """A reader with a memory of its own, which stays."""
    settings = replace(server.settings(), cache=site.folder / name, max_age_s=max_age_s)
    with closing(Dataset(settings, DATASET, must_exist=False)) as dataset:
        yield dataset


def put(site: Site, server: RunningServer, *names: str) -> None:
    with opened(site, server, "writer") as dataset:
        for name in names:
            dataset.put(name, name.encode())
            dataset.flush()


def files(site: Site, server: RunningServer, name: str = "reader") -> list[str]:
    with opened(site, server, name) as dataset:
        assert all(dataset.get(path) == path.encode() for path in dataset.files())
        return sorted(map(str, dataset.files()))


def aged(site: Site) -> Path:
    """A copy is taken after one of three puts, which a reader has seen; returns what it saved of the newest state."""
    saved = site.folder / "pets.snapshot"
    with site.serving() as server:
        put(site, server, "a")
    site.copy()
    with site.serving() as server:
        put(site, server, "b", "c")
        assert files(site, server) == ["a", "b", "c"]
        with opened(site, server) as dataset:
            dataset.save_meta(saved)
    return saved


@each_kind
def test_who_has_seen_a_newer_state_refuses_a_restored_one(site: Site) -> None:
    saved = aged(site)
    site.restore(store=True, metadata=True)
    with site.serving() as server:
        with pytest.raises(Damaged, match=r"older snapshot of pets \(generation 1\) than .*\(generation 3\)"):
            files(site, server)
        assert files(site, server, "without memory") == ["a"]
        statement = f"{saved}{STATEMENT_SUFFIX}"
        with opened(site, server, "without memory") as dataset:
            store, client = SnapshotStore(site.folder / "other"), dataset.client
            kept = client.tags(DATASET, with_kept=True)
            with pytest.raises(
                Damaged, match=r"older state of pets \(generation 1\) than they stated in .*3\)"
            ):
                store.check_statement(statement, dataset.record(), kept)
        put(site, server, "d")  # so the time is newer
        with pytest.raises(Damaged, match=r"older snapshot of pets \(generation 2\)"):
            files(site, server)
        with closing(server.client()) as client:  # the administrator means it
            client.rebuild(DATASET)
        assert files(site, server) == ["a", "d"]
        put(site, server, "e")
        assert files(site, server) == ["a", "d", "e"]


def test_restored_metadata_is_caught_up_with_the_store_and_accepted(site: Site) -> None:
    aged(site)
    site.restore(store=False, metadata=True)
    with site.serving() as server:
        assert files(site, server) == ["a", "b", "c"]


def test_a_restored_store_lacks_bytes_and_gives_no_others(site: Site) -> None:
    aged(site)
    site.restore(store=True, metadata=False)
    with site.serving() as server, opened(site, server) as dataset:
        assert dataset.get("a") == b"a"
        with pytest.raises(DieselfsError):
            dataset.get("c")


def test_metadata_that_was_lost_and_made_again_is_accepted(site: Site) -> None:
    aged(site)
    for part in site._parts(is_store=False):
        part.unlink()
    if site.redis:
        with site.redis[0].client() as client:
            client.flushall()
    with site.serving() as server:
        with closing(server.client()) as client:
            client.rebuild(DATASET)
        assert files(site, server) == ["a", "b", "c"]


@each_kind
def test_a_reader_with_a_limit_gets_statements_with_each_snapshot(site: Site) -> None:
    saved = aged(site)
    with site.serving() as server, opened(site, server, max_age_s=30) as dataset:
        assert sorted(map(str, dataset.files())) == ["a", "b", "c"]
        dataset.load_meta(saved)
        Path(f"{saved}{STATEMENT_SUFFIX}").unlink()
        with pytest.raises(DieselfsError, match=r"no statement of freshness .*max_age asks for it"):
            dataset.load_meta(saved)
