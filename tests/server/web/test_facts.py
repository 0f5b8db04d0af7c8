"""What the page reads from real stores, and how often."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.address import TcpAddress
from dieselfs.cluster.member import Member
from dieselfs.cluster.secret import JobSecret
from dieselfs.errors import NotFound
from dieselfs.limits import GIB
from dieselfs.records import DatasetRecord
from dieselfs.rpc.members import JobId
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.job_members import JobMembers, JoinRequest, lease_ns
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.web.facts import DATASETS_S, JOBS_S, SCAN_S, Facts
from tests.support.identity import IDENTITY

NOW_NS = 1_800_000_000 * 10**9
TERMS = JobId("a", "train", 5, b"d" * 32)
SECRET = JobSecret(b"s" * 32)


class Counting(SqliteMetadata):
    """Counts how often all datasets are listed."""

    listings = 0

    def datasets(self) -> list[DatasetRecord]:
        self.listings += 1
        return super().datasets()


class World:
    """Facts over real stores, at a time of the test."""

    def __init__(self, folder: Path) -> None:
        self.metadata = Counting(str(folder / "metadata.db"))
        self.now_s = 0.0
        tags = TagStore(MemoryStore(), IDENTITY)
        self.facts = Facts(self.metadata, tags, lambda: NOW_NS + int(self.now_s * 1e9), lambda: self.now_s)

    def join(self, name: str) -> None:
        member = Member("n0", 0, TcpAddress("10.0.0.1", 7000), GIB, b"i" * 16)
        request = JoinRequest(SECRET.seal(member, TERMS, 0), "n0", 5, TERMS.digest, 0)
        dataset_id = self.metadata.dataset(name).dataset_id
        JobMembers(self.metadata, dataset_id, "train", SECRET.fingerprint()).admit(
            request, NOW_NS + int(self.now_s * 1e9)
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    for number, name in enumerate("abc"):
        world.metadata.create_dataset(name, number.to_bytes(16, "big"))
    yield world
    world.metadata.close()


def test_datasets_are_listed_once_in_an_interval(world: World) -> None:
    assert [each.name for each in world.facts.datasets()] == ["a", "b", "c"]
    world.metadata.create_dataset("d", b"d" * 16)
    assert len(world.facts.datasets()) == 3 and world.metadata.listings == 1
    world.now_s += DATASETS_S
    assert len(world.facts.datasets()) == 4 and world.metadata.listings == 2


def test_a_job_is_found_and_ends_with_its_leases(world: World) -> None:
    world.join("b")
    (job,) = world.facts.jobs()
    assert (job.dataset, job.job, job.fingerprint, [*job.leases]) == (
        "b",
        "train",
        SECRET.fingerprint().hex(),
        ["n0"],
    )
    world.now_s += lease_ns(1) / 1e9
    assert world.facts.jobs() == []


def test_a_new_job_is_found_by_the_next_scan(world: World) -> None:
    assert world.facts.jobs() == []
    world.join("c")
    world.now_s += JOBS_S
    assert world.facts.jobs() == []
    world.now_s = SCAN_S
    world.join("c")
    assert [job.dataset for job in world.facts.jobs()] == ["c"]


def test_a_dataset_that_is_gone(world: World) -> None:
    with pytest.raises(NotFound):
        world.facts.dataset("x")
    gone = world.facts.dataset("a")
    world.metadata.drop_dataset(gone.dataset_id)
    assert world.facts.jobs_of(gone) == []
    assert world.facts.tags(gone) == []
