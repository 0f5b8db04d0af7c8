"""What the page reads from real stores, and how often."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dieselfs.cluster.member import Member
from dieselfs.cluster.secret import JobSecret
from dieselfs.errors import NotFound, Unavailable
from dieselfs.limits import GIB
from dieselfs.net.address import TcpAddress
from dieselfs.records import ChunkRecord, DatasetRecord, DatasetUsage
from dieselfs.rpc.members import JobId
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.usage import Traffic, Usages
from dieselfs_server.datasets.snapshots import signed
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.lease import JobMembers, JoinRequest, lease_ns
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.web.facts import CHUNKS_S, DATASETS_S, DETAILS_S, JOBS_S, SCAN_S, TAG_S, USERS_S, Facts
from tests.support.identity import IDENTITY
from tests.support.snapshots import DATASET_ID, SAMPLE, SOURCE, snapshot_bytes

NOW_NS = 1_800_000_000 * 10**9
TERMS = JobId("a", "train", 5, b"d" * 32)
SECRET = JobSecret(b"s" * 32)


class Counting(SqliteMetadata):
    """Counts how often all datasets, and the chunks of one, are listed."""

    listings = chunk_listings = usage_calls = 0
    is_away = False

    def datasets(self) -> list[DatasetRecord]:
        self.listings += 1
        if self.is_away:
            raise Unavailable("the database is away")
        return super().datasets()

    def usage(self, names: Sequence[str]) -> list[DatasetUsage | None]:
        self.usage_calls += 1
        return super().usage(names)

    def chunks(self, dataset_id: bytes) -> list[ChunkRecord]:
        self.chunk_listings += 1
        return super().chunks(dataset_id)


class World:
    """Facts over real stores, at a time of the test."""

    def __init__(self, folder: Path) -> None:
        self.metadata = Counting(str(folder / "metadata.db"))
        self.now_s = 0.0
        self.store = MemoryStore()
        self.tags = TagStore(self.store, IDENTITY)
        users = UserStore(self.store)
        self.usages = Usages(self.metadata, users, Traffic(self.metadata, users))
        self.facts = Facts(
            self.metadata, self.tags, self.usages, lambda: NOW_NS + int(self.now_s * 1e9), lambda: self.now_s
        )

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


def test_datasets_are_listed_again_after_a_failure(world: World) -> None:
    world.metadata.is_away = True
    with pytest.raises(Unavailable):
        world.facts.datasets()
    world.metadata.is_away = False
    assert len(world.facts.datasets()) == 3


def test_chunks_are_listed_when_the_generation_is_another_and_not_at_each_commit(world: World) -> None:
    dataset = world.facts.dataset("a")

    def listings_after(generation: int, now_s: float) -> int:
        world.now_s = now_s
        world.facts.chunks(dataset._replace(generation=generation))
        return world.metadata.chunk_listings

    assert listings_after(1, 0) == 1
    assert listings_after(2, CHUNKS_S - 1) == 1
    assert listings_after(1, 2 * CHUNKS_S) == 1
    assert listings_after(2, 2 * CHUNKS_S) == 2


def test_a_damaged_tag_is_shown_with_the_others_and_a_removed_one_is_not(world: World) -> None:
    world.metadata.create_dataset("pets", DATASET_ID)
    for name in ("v1", "v2", "v3"):
        world.tags.add(Snapshot(signed(snapshot_bytes(SAMPLE), IDENTITY), SOURCE), name)
    pets = world.facts.dataset("pets")
    assert [(name, tag is not None) for name, tag in world.facts.tags(pets)] == [
        ("v1", True),
        ("v2", True),
        ("v3", True),
    ]
    one, two, _ = sorted(world.store.list_records("tag-"))
    content = world.store.get_record(one)
    assert content is not None
    world.store.put_record(one, content[:-1] + bytes([content[-1] ^ 1]))
    world.store.delete_record(two)
    world.now_s += max(TAG_S, DETAILS_S)
    assert [(name, tag is not None) for name, tag in world.facts.tags(pets)] == [("v1", False), ("v3", True)]


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


def test_usage_is_read_once_in_an_interval(world: World) -> None:
    a = world.metadata.dataset("a")
    for _ in range(3):
        assert world.facts.usage(a).name == "a"
        assert world.facts.usage_of_user("ann").name == "ann"
        assert world.facts.usage_of_users() == []
    assert world.metadata.usage_calls == 3
    world.now_s += USERS_S
    world.facts.usage(a)
    world.facts.usage_of_users()
    assert world.metadata.usage_calls == 5


def test_usage_of_a_dropped_dataset_is_not_found(world: World) -> None:
    a = world.metadata.dataset("a")
    world.metadata.drop_dataset(a.dataset_id)
    with pytest.raises(NotFound, match="dataset a was dropped"):
        world.facts.usage(a)
