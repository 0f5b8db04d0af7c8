"""The membership list of a job: members and leases, changes of its version, and the effects of its loss."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from dieselfs.cluster.member import Member
from dieselfs.cluster.secret import JobSecret
from dieselfs.errors import AlreadyExists, InvalidInput, NotFound
from dieselfs.limits import (
    GIB,
    JOB_INTERVAL_S_MIN,
    JOB_LEASE_S_MIN,
    JOB_MESSAGES_PER_S,
    JOB_NODES_MAX,
    SEAL_BYTES,
)
from dieselfs.net.address import TcpAddress
from dieselfs.records import NoteChange
from dieselfs.rpc.members import JobId, MembershipList, job_digest
from dieselfs_server.leases import lease as members_module
from dieselfs_server.leases.lease import (
    Head,
    JobMembers,
    JoinRequest,
    Lease,
    interval_s,
    lease_ns,
    with_member,
)
from dieselfs_server.metadata.sqlite.store import SqliteMetadata

DATASET = bytes(range(16))
NOW_NS = 1_800_000_000 * 10**9
SECOND_NS = 10**9
LEASE_NS = int(JOB_LEASE_S_MIN * SECOND_NS)
SECRET = JobSecret(b"s" * 32)
TERMS = JobId("data", "train", 5, b"d" * 32)


@dataclass
class Caller:
    """A member as the server sees it: sends requests, and keeps the answers."""

    job_members: JobMembers
    node: str
    incarnation: bytes = b"i" * 16
    digest: bytes = TERMS.digest
    version: int = 0
    members: tuple[str, ...] = ()

    def application(self) -> JoinRequest:
        member = Member(self.node, 1, TcpAddress("10.0.0.1", 7071), GIB, self.incarnation)
        sealed = SECRET.seal(member, replace(TERMS, digest=self.digest), 0)
        return JoinRequest(sealed, self.node, 5 + self.digest[0], self.digest, self.version)

    def ask(self, now_ns: int) -> MembershipList:
        told = self.job_members.renew(self.application(), now_ns) or self.job_members.admit(
            self.application(), now_ns
        )
        self.version = told.version
        if told.members is not None:
            self.members = tuple(Member.of(sealed[SEAL_BYTES:]).node for sealed in told.members)
        return told

    def leave(self) -> None:
        self.job_members.remove(self.application().sealed, self.node)


@pytest.fixture
def metadata() -> Iterator[SqliteMetadata]:
    with closing(SqliteMetadata(":memory:")) as store:
        store.create_dataset("data", DATASET)
        yield store


@pytest.fixture
def job_members(metadata: SqliteMetadata) -> JobMembers:
    return JobMembers(metadata, DATASET, "train", b"f" * 16)


def job_of(job_members: JobMembers, count: int, now_ns: int = NOW_NS) -> list[Caller]:
    """So many members, each of whom knows all."""
    callers = [Caller(job_members, f"n{number}") for number in range(count)]
    for caller in [*callers, *callers]:
        caller.ask(now_ns)
    return callers


def test_members_learn_of_each_other(job_members: JobMembers) -> None:
    one, two = Caller(job_members, "n1"), Caller(job_members, "n2")
    told = one.ask(NOW_NS)
    assert told.members is not None and len(told.members) == 1
    assert two.ask(NOW_NS + 1).version > told.version
    one.ask(NOW_NS + 2)
    assert one.members == two.members == ("n1", "n2") and one.version == two.version
    for later_ns in range(0, 60 * SECOND_NS, SECOND_NS):
        for caller in (one, two):
            assert caller.ask(NOW_NS + later_ns).members is None, "nothing has changed"


def test_no_concurrent_join_is_lost(job_members: JobMembers) -> None:
    first = job_of(job_members, 1)[0].version
    callers = [Caller(job_members, f"m{number:02d}") for number in range(12)]
    with ThreadPoolExecutor(6) as threads:
        versions = list(threads.map(lambda caller: caller.ask(NOW_NS).version, callers))
    assert sorted(versions) == list(range(first + 1, first + 13)), "every change has a version of its own"
    for caller in callers:
        caller.ask(NOW_NS)
        assert caller.members == (*(other.node for other in callers), "n0")


def test_a_member_that_leaves_is_gone_at_once(job_members: JobMembers, metadata: SqliteMetadata) -> None:
    one, two, three = job_of(job_members, 3)
    two.leave()
    two.leave()
    assert one.ask(NOW_NS + 1).members is not None and one.members == ("n0", "n2")
    one.leave()
    three.leave()
    assert metadata.notes_below(DATASET, "") == {}, "the roll is gone with the last lease"


def test_a_member_that_dies_is_gone_when_its_lease_ends(job_members: JobMembers) -> None:
    one, _, three = job_of(job_members, 3)
    for later_ns in range(SECOND_NS, LEASE_NS, SECOND_NS):
        assert one.ask(NOW_NS + later_ns).members is None
        assert three.ask(NOW_NS + later_ns).members is None
    one.ask(NOW_NS + LEASE_NS)
    three.ask(NOW_NS + LEASE_NS)
    assert one.members == three.members == ("n0", "n2")


def test_a_member_that_returns_late_is_added_again(job_members: JobMembers) -> None:
    one, two, three = job_of(job_members, 3)
    for later_ns in (LEASE_NS // 2, LEASE_NS, 3 * LEASE_NS // 2):
        one.ask(NOW_NS + later_ns)
        three.ask(NOW_NS + later_ns)
    assert one.members == ("n0", "n2")
    two.ask(NOW_NS + 3 * LEASE_NS // 2)
    one.ask(NOW_NS + 3 * LEASE_NS // 2)
    assert one.members == two.members == ("n0", "n1", "n2")


def test_members_keep_their_list_after_the_servers_lost_it(metadata: SqliteMetadata) -> None:
    callers = job_of(JobMembers(metadata, DATASET, "train", b"f" * 16), 4)
    metadata.drop_dataset(DATASET)
    metadata.create_dataset("data", DATASET)  # Redis from nothing, and rebuilt
    lost_ns = NOW_NS + 3 * SECOND_NS
    for number, caller in enumerate(callers[:3]):
        told = caller.ask(lost_ns + number)
        assert told.members is None and caller.members == ("n0", "n1", "n2", "n3")
    new = Caller(callers[0].job_members, "n9")
    new.ask(lost_ns + 5)
    assert new.members == ("n0", "n1", "n2", "n9"), "a member without a list gets the new one"
    for later_ns in (LEASE_NS // 2, LEASE_NS + 10):
        for caller in (*callers[:3], new):
            caller.ask(lost_ns + later_ns)
    for caller in callers[:3]:
        assert caller.members == ("n0", "n1", "n2", "n9"), "n3 did not come back in time"


def test_after_servers_lost_a_change_no_list_has_a_version_that_members_know(
    job_members: JobMembers, metadata: SqliteMetadata
) -> None:
    """Redis comes back without its newest writes: two lists of one version would never be told apart."""
    one, two = job_of(job_members, 2)
    before = metadata.notes_below(DATASET, "jobs/")
    three = Caller(job_members, "n2")
    for caller in (three, one):
        caller.ask(NOW_NS)
    assert one.members == ("n0", "n1", "n2")
    after = metadata.notes_below(DATASET, "jobs/")
    changes = [NoteChange(name, after.get(name), before.get(name)) for name in sorted(before | after)]
    assert metadata.change_notes(DATASET, changes)
    known, told = one.version, one.ask(NOW_NS + SECOND_NS)
    assert told.version > known
    other = Caller(job_members, "n3")
    for caller in (other, one, two, other):
        caller.ask(NOW_NS + SECOND_NS)
    assert one.members == two.members == other.members == ("n0", "n1", "n3")


def test_a_version_that_a_store_has_forgotten_does_not_come_back() -> None:
    def request(node: str, known: int) -> JoinRequest:
        return JoinRequest(b"", node, 5, TERMS.digest, known)

    first, leases = with_member(None, {}, request("a", 0), NOW_NS)
    forgotten, _ = with_member(first, leases, request("b", 0), NOW_NS + 1000)
    again, _ = with_member(first, leases, request("c", first.version), NOW_NS + 2000)
    assert again.version > forgotten.version > first.version


def test_in_a_large_job_the_first_to_return_keep_their_list_until_the_last(
    metadata: SqliteMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        members_module, "JOB_MESSAGES_PER_S", 1
    )  # so 40 are a large job: each asks every 40 s
    callers = job_of(JobMembers(metadata, DATASET, "train", b"f" * 16), 40)
    everyone = callers[0].members
    assert len(everyone) == 40
    metadata.drop_dataset(DATASET)
    metadata.create_dataset("data", DATASET)
    for second in range(400):
        caller = callers[second % 40]
        told = caller.ask(NOW_NS + second * SECOND_NS)
        assert told.members is None or caller.members == everyone
    assert len({caller.version for caller in callers}) == 1, "in the end all have the new list"


def test_after_an_outage_of_the_servers_members_keep_their_list(job_members: JobMembers) -> None:
    callers = job_of(job_members, 4)
    back_ns = NOW_NS + 100 * SECOND_NS
    for number, caller in enumerate(callers):
        assert caller.ask(back_ns + number).members is None
    for caller in callers:
        caller.ask(back_ns + LEASE_NS - 1)
        caller.ask(back_ns + LEASE_NS)
        assert caller.members == ("n0", "n1", "n2", "n3")


def test_another_snapshot_is_refused_with_one_clear_line(job_members: JobMembers) -> None:
    one = Caller(job_members, "n1", digest=b"\1" * 32)
    one.ask(NOW_NS)
    with pytest.raises(AlreadyExists, match=r"^the job reads generation 6, and node n2 has generation 7; .*"):
        Caller(job_members, "n2", digest=b"\2" * 32).ask(NOW_NS)
    one.leave()
    two = Caller(job_members, "n2", digest=b"\2" * 32)
    two.ask(NOW_NS)
    assert two.members == ("n2",)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 3)])
def test_a_version_with_another_default_order_is_refused(
    job_members: JobMembers, first: int, second: int
) -> None:
    one = Caller(job_members, "n1", digest=job_digest(TERMS.digest, first))
    one.ask(NOW_NS)
    two = Caller(job_members, "n2", digest=job_digest(TERMS.digest, second))
    with pytest.raises(
        AlreadyExists, match=r"^node n2 has another version of dieselfs .* install one version"
    ):
        two.ask(NOW_NS)
    assert one.ask(NOW_NS).members is None, "it is not disturbed"
    one.leave()
    two.ask(NOW_NS)
    assert two.members == ("n2",)


def test_an_expired_job_does_not_bind_a_new_one(job_members: JobMembers) -> None:
    Caller(job_members, "n1", digest=b"\1" * 32).ask(NOW_NS)
    two = Caller(job_members, "n2", digest=b"\2" * 32)
    two.ask(NOW_NS + LEASE_NS)
    assert two.members == ("n2",)


def test_a_node_has_one_master_the_newest(job_members: JobMembers) -> None:
    one, _ = job_of(job_members, 2)
    restarted = Caller(job_members, "n0", incarnation=b"j" * 16)
    restarted.ask(NOW_NS + 1)
    assert restarted.members == ("n0", "n1")
    with pytest.raises(
        AlreadyExists, match=r"node n0 of the job has a new master, rank 1 at tcp://10.0.0.1.*--job-node"
    ):
        one.ask(NOW_NS + 2)
    one.leave()  # not the new one's membership
    assert restarted.ask(NOW_NS + 3).members is None


def test_a_changed_member_record_reaches_the_others(job_members: JobMembers) -> None:
    one, two = job_of(job_members, 2)
    changed = Member("n1", 1, TcpAddress("10.0.0.2", 7071), 2 * GIB, two.incarnation)
    application = replace(two.application(), sealed=SECRET.seal(changed, TERMS, 0))
    assert job_members.renew(application, NOW_NS) is None
    assert job_members.admit(application, NOW_NS).version > one.version
    told = one.ask(NOW_NS)
    assert told.members is not None and Member.of(told.members[1][SEAL_BYTES:]) == changed


def test_jobs_with_another_secret_or_dataset_do_not_meet(metadata: SqliteMetadata) -> None:
    metadata.create_dataset("other", bytes(16))
    rolls = [
        JobMembers(metadata, dataset, job, fingerprint)
        for dataset, job, fingerprint in (
            (DATASET, "train", b"f" * 16),
            (DATASET, "train", b"g" * 16),
            (DATASET, "train2", b"f" * 16),
            (bytes(16), "train", b"f" * 16),
        )
    ]
    callers = [Caller(job_members, f"n{number}") for number, job_members in enumerate(rolls)]
    for caller in callers * 2:
        caller.ask(NOW_NS)
    assert [caller.members for caller in callers] == [("n0",), ("n1",), ("n2",), ("n3",)]


def test_a_new_job_removes_what_dead_ones_left(metadata: SqliteMetadata) -> None:
    dead, live = (JobMembers(metadata, DATASET, job, b"f" * 16) for job in ("dead", "live"))
    job_of(dead, 3)
    keeper = job_of(live, 2)[0]
    for later_ns in (LEASE_NS // 2, LEASE_NS):
        keeper.ask(NOW_NS + later_ns)
    job_of(JobMembers(metadata, DATASET, "new", b"f" * 16), 1, NOW_NS + LEASE_NS)
    assert {name.split("/")[1] for name in metadata.notes_below(DATASET, "jobs/")} == {"live", "new"}


def test_jobs_and_members_are_bounded(metadata: SqliteMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "JOBS_MAX", 2)
    for job in ("a", "b"):
        job_of(JobMembers(metadata, DATASET, job, b"f" * 16), 1)
    with pytest.raises(InvalidInput, match="2 jobs"):
        job_of(JobMembers(metadata, DATASET, "c", b"f" * 16), 1)
    job_of(JobMembers(metadata, DATASET, "c", b"f" * 16), 1, NOW_NS + LEASE_NS)
    full = {f"n{number}": Lease(NOW_NS + 1, b"") for number in range(JOB_NODES_MAX)}
    head = Head(NOW_NS, 1, 0, JOB_NODES_MAX, 5, TERMS.digest)
    with pytest.raises(InvalidInput, match=f"{JOB_NODES_MAX} nodes already"):
        with_member(head, full, JoinRequest(b"", "one-more", 5, TERMS.digest, 0), NOW_NS)


def test_a_dataset_that_is_gone_is_not_found(metadata: SqliteMetadata, job_members: JobMembers) -> None:
    (one,) = job_of(job_members, 1)
    metadata.drop_dataset(DATASET)
    with pytest.raises(NotFound):
        one.ask(NOW_NS)


@pytest.mark.parametrize("members", [1, 8, 100, 1024, JOB_NODES_MAX])
def test_a_large_job_asks_no_more_often_than_a_small_one(members: int) -> None:
    assert interval_s(members) >= JOB_INTERVAL_S_MIN
    assert members / interval_s(members) <= JOB_MESSAGES_PER_S
    assert lease_ns(members) >= 3 * interval_s(members) * SECOND_NS
