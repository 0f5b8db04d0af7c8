"""Joining and leaving jobs over a real server: who may, what is refused, and over several servers on one Redis."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.cluster.member import Member
from dieselfs.cluster.node_progress import PROGRESS_BYTES_MAX
from dieselfs.cluster.secret import JobSecret
from dieselfs.errors import AlreadyExists, InvalidInput, NotFound
from dieselfs.limits import GIB
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.members import JobId
from tests.support.redis import needs_redis, running_redis
from tests.support.server import RunningServer, running_servers

SECRET = JobSecret(b"s" * 32)
NOW_S = 1_800_000_000.0
"""Of all records: servers do not look at their age."""
TERMS = JobId("shared", "train", 1, b"d" * 32)


def sealed(node: str, terms: JobId = TERMS, secret: JobSecret = SECRET) -> bytes:
    member = Member(node, 0, TcpAddress("127.0.0.1", 7071), GIB, node.encode().ljust(16))
    return secret.seal(member, terms, NOW_S)


def join(
    client: ServerClient, node: str, terms: JobId = TERMS, known_version: int = 0
) -> tuple[int, list[str]]:
    """The version of the roll, and the nodes on it; none if nothing has changed."""
    job_members = client.join_job(terms, SECRET.fingerprint(), sealed(node, terms), known_version)
    assert 1.0 <= job_members.interval_s < 2.0
    return job_members.version, [
        SECRET.open(member, terms, NOW_S).node for member in job_members.members or ()
    ]


@pytest.fixture(scope="module")
def admin(server: RunningServer) -> Iterator[ServerClient]:
    client = server.client()
    client.create_dataset(TERMS.dataset)
    yield client
    client.close()


def test_what_a_node_tells_is_bounded(admin: ServerClient) -> None:
    terms = replace(TERMS, job="told")
    member = terms, SECRET.fingerprint(), sealed("n1", terms), 0
    admin.join_job(*member, bytes(PROGRESS_BYTES_MAX))
    with pytest.raises(InvalidInput, match="2049 bytes about the progress"):
        admin.join_job(*member, bytes(PROGRESS_BYTES_MAX + 1))


def test_who_may_read_may_join(admin: ServerClient, server: RunningServer) -> None:
    reader = server.client(server.user("follower", shared="read"))
    stranger = server.client(server.user("outsider", other="write"))
    version, nodes = join(admin, "n1")
    assert nodes == ["n1"]
    newer, nodes = join(reader, "n2")
    assert newer > version and nodes == ["n1", "n2"]
    assert join(admin, "n1", known_version=version) == (newer, ["n1", "n2"])
    assert join(admin, "n1", known_version=newer) == (newer, [])
    with pytest.raises(NotFound):
        join(stranger, "n3")
    with pytest.raises(NotFound):
        stranger.leave_job(TERMS, SECRET.fingerprint(), sealed("n1"))
    reader.leave_job(TERMS, SECRET.fingerprint(), sealed("n2"))
    assert join(admin, "n1", known_version=newer)[1] == ["n1"]
    for client in (reader, stranger):
        client.close()


def test_nobody_can_use_up_the_versions_of_a_list(admin: ServerClient) -> None:
    terms = replace(TERMS, job="long")
    last = (1 << 63) - 1
    for known_version in (last - 1, last, last):
        version, _ = join(admin, "n1", terms, known_version)
        assert version < last // 2
        admin.leave_job(terms, SECRET.fingerprint(), sealed("n1", terms))
    version, nodes = join(admin, "n1", terms)
    newer, nodes = join(admin, "n2", terms)
    assert newer > version and nodes == ["n1", "n2"]


def test_another_snapshot_is_refused(admin: ServerClient) -> None:
    terms = replace(TERMS, job="strict")
    join(admin, "n1", terms)
    with pytest.raises(AlreadyExists, match="generation 1, and node n2 has generation 9"):
        join(admin, "n2", replace(terms, generation=9, digest=b"e" * 32))


@pytest.mark.parametrize(
    ("terms", "fingerprint", "member", "known_version"),
    [
        (replace(TERMS, job="a/b"), b"f" * 16, sealed("n1"), 0),
        (TERMS, b"f" * 15, sealed("n1"), 0),
        (TERMS, b"f" * 16, b"", 0),
        (TERMS, b"f" * 16, sealed("n1")[:-1], 0),
        (TERMS, b"f" * 16, sealed("n1") + bytes(600), 0),
        (TERMS, b"f" * 16, sealed("n1"), -1),
        (replace(TERMS, generation=-1), b"f" * 16, sealed("n1"), 0),
        (replace(TERMS, digest=b"short"), b"f" * 16, sealed("n1"), 0),
    ],
)
def test_what_makes_no_sense_is_refused(
    admin: ServerClient, terms: JobId, fingerprint: bytes, member: bytes, known_version: int
) -> None:
    with pytest.raises(InvalidInput):
        admin.join_job(terms, fingerprint, member, known_version)


@needs_redis
def test_members_of_several_servers_meet(tmp_path: Path) -> None:
    with running_redis(tmp_path / "redis") as redis:
        options = ("--metadata", f"redis://127.0.0.1:{redis.port}/0")
        with running_servers(tmp_path, ["a", "b"], options) as servers:
            one, other = (server.client() for server in servers)
            one.create_dataset(TERMS.dataset)
            version, _ = join(one, "n1")
            newer, nodes = join(other, "n2")
            assert nodes == ["n1", "n2"]
            assert join(one, "n1", known_version=version) == (newer, nodes)
            other.leave_job(TERMS, SECRET.fingerprint(), sealed("n2"))
            assert join(one, "n1", known_version=newer)[1] == ["n1"]
            for client in (one, other):
                client.close()
