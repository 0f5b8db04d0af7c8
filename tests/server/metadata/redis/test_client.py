"""Whatever Redis does, an error of ours comes in bounded time, and things go on when Redis is back."""

import logging
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from dieselfs.errors import InvalidInput, StorageFull, Unavailable
from dieselfs.limits import REDIS_AWAY_S, REDIS_PATIENCE_S, REDIS_REQUEST_TIMEOUT_S
from dieselfs_server.metadata.redis.client import RedisClient, RedisLocation, RedisTls, parse_redis_url
from dieselfs_server.metadata.redis.fields import Command
from dieselfs_server.metadata.redis.store import RedisMetadata
from tests.conformance.metadata_suite import check_against_model
from tests.support.certificates import make_certificate
from tests.support.documents import REPOSITORY
from tests.support.metadata_chunks import (
    DATASET,
    DATASET_ID,
    NOW_NS,
    Put,
    apply,
    chunk_id,
    delete,
    list_all,
    pack,
)
from tests.support.name_servers import SILENT, silent_name_servers
from tests.support.redis import HOST, RedisCluster, free_ports, needs_redis, running_cluster, running_redis
from tests.support.redis_faults import store_with

pytestmark = needs_redis

BOUND_S = 25.0
"""Patience, a silent node, and what a busy machine adds."""


def test_nothing_there(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    for url in (
        f"redis://{HOST}:{port}",
        f"redis+cluster://{HOST}:{port}",
        f"redis+unix://{tmp_path}/no.sock",
    ):
        begun_s = time.monotonic()
        with pytest.raises(Unavailable, match=r"no\.sock" if "unix" in url else str(port)):
            RedisMetadata.open(url)
        assert time.monotonic() - begun_s < BOUND_S


def test_a_socket_in_a_folder(tmp_path: Path) -> None:
    with (
        running_redis(tmp_path / "r", "--unixsocket", str(tmp_path / "s"), "--unixsocketperm", "700"),
        closing(RedisMetadata.open(f"redis+unix://{tmp_path}/s")) as store,
    ):
        store.create_dataset(DATASET, DATASET_ID)
        apply(store, [Put(b"a", 1)], chunk_id(1))


def test_a_server_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """With its scripts forgotten, and with what it had: an append-only file."""
    with (
        running_redis(tmp_path / "r", "--appendonly", "yes", "--appendfsync", "always") as server,
        closing(store_with(f"redis://{HOST}:{server.port}")) as store,
    ):
        store.create_dataset(DATASET, DATASET_ID)
        packed = {chunk_id(n): pack([Put(b"d/%d" % n, 1)], chunk_id(n)) for n in range(4)}
        for number in range(3):
            store.apply(DATASET_ID, *packed[chunk_id(number)], NOW_NS)
        server.kill()
        begun_s = time.monotonic()
        with pytest.raises(Unavailable, match=f"{HOST}:{server.port}"):
            store.apply(DATASET_ID, *packed[chunk_id(3)], NOW_NS)
        assert time.monotonic() - begun_s < BOUND_S
        begun_s = time.monotonic()
        with pytest.raises(Unavailable, match=f"{HOST}:{server.port}"):
            store.apply(DATASET_ID, *packed[chunk_id(3)], NOW_NS)
        assert time.monotonic() - begun_s < REDIS_PATIENCE_S, "the outage was waited out once"
        server.start()
        store.apply(DATASET_ID, *packed[chunk_id(3)], NOW_NS)
        check_against_model(store, {identity: header for identity, (_, header) in packed.items()})


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs_server.metadata.redis.client.REDIS_REQUEST_TIMEOUT_S", 0.2)
    with socket.create_server((HOST, 0)) as silent:
        begun_s = time.monotonic()
        with pytest.raises(Unavailable, match="try again"):
            RedisClient(RedisLocation([(HOST, silent.getsockname()[1])]))
        assert time.monotonic() - begun_s < 5


def test_a_server_that_hangs_is_waited_for_once(tmp_path: Path) -> None:
    with (
        running_redis(tmp_path / "r") as server,
        closing(RedisClient(RedisLocation([(HOST, server.port)]))) as client,
    ):
        ping: Command[bytes] = Command(b"", (b"PING",))
        assert client.execute([ping]) == [b"PONG"]
        waits_s = []
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for _ in range(2):
                begun_s = time.monotonic()
                with pytest.raises(Unavailable, match="try again"):
                    client.execute([ping])
                waits_s.append(time.monotonic() - begun_s)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert REDIS_REQUEST_TIMEOUT_S <= waits_s[0] < REDIS_PATIENCE_S, "it was not retried"
        assert REDIS_AWAY_S <= waits_s[1] < REDIS_REQUEST_TIMEOUT_S, "the call waited for a connection only"
        assert client.execute([ping]) == [b"PONG"]


def test_a_name_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs_server.metadata.redis.client.REDIS_CONNECT_TIMEOUT_S", 0.05)
    location = RedisLocation([(SILENT, 6379)])
    unanswered = pytest.raises(Unavailable, match=f"no name server has answered for {SILENT}")
    with silent_name_servers(monkeypatch), unanswered:
        RedisClient(location)


def test_no_room(tmp_path: Path) -> None:
    with (
        running_redis(tmp_path / "r", "--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as server,
        closing(store_with(f"redis://{HOST}:{server.port}")) as store,
    ):
        store.create_dataset(DATASET, DATASET_ID)
        headers = {}
        with pytest.raises(StorageFull, match="maxmemory"):
            for number in range(100):
                preamble, header = pack(
                    [Put(b"d%d/f%d" % (number, i), 1) for i in range(1000)], chunk_id(number)
                )
                store.apply(DATASET_ID, preamble, header, NOW_NS)
                headers[chunk_id(number)] = header
        refused = number
        with server.client() as client:
            client.config_set("maxmemory", "0")
        store.apply(DATASET_ID, preamble, header, NOW_NS)
        assert store.dataset(DATASET).files == (refused + 1) * 1000
        assert len(list_all(store, b"d%d" % refused)) == 1000


def test_a_replica_that_may_not_be_written(tmp_path: Path) -> None:
    with running_redis(tmp_path / "master") as master:
        options = ("--replicaof", f"{HOST} {master.port}")
        with (
            running_redis(tmp_path / "replica", *options) as replica,
            closing(store_with(f"redis://{HOST}:{replica.port}")) as store,
            pytest.raises(Unavailable, match="read only replica"),
        ):
            store.create_dataset(DATASET, DATASET_ID)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Port and password file of a server with the user of the document, and with nobody else."""
    text = (REPOSITORY / "docs" / "reference" / "metadata-keys.md").read_text("utf-8")
    match = re.search(r"^user dieselfs on (.*)$", text, re.MULTILINE)
    assert match is not None
    (tmp_path / "r").mkdir()
    rules = match[1].replace(">PASSWORD", ">secret")
    (tmp_path / "acl").write_text(f"user dieselfs on {rules}\nuser default off\n")
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text("secret\n")
    with running_redis(tmp_path / "r", "--aclfile", str(tmp_path / "acl")) as server:
        yield server.port, password


def test_a_user_who_may_do_only_what_is_needed(guarded: tuple[int, Path]) -> None:
    port, password = guarded
    with closing(RedisMetadata.open(f"redis://dieselfs@{HOST}:{port}?password_file={password}")) as store:
        store.create_dataset(DATASET, DATASET_ID)
        packed = {
            chunk_id(1): pack([Put(b"a", 1), Put(b"x/d/f", 1, size=3, length=2)], chunk_id(1)),
            chunk_id(2): pack([delete(b"a", 2), Put(b"x/d/f", 1, size=3, place=2, length=1)], chunk_id(2)),
        }
        for preamble, header in packed.values():
            store.apply(DATASET_ID, preamble, header, NOW_NS)
        check_against_model(store, {identity: header for identity, (_, header) in packed.items()})
        store.drop_dataset(DATASET_ID)
    with redis.Redis(HOST, port, username="dieselfs", password="secret") as client:
        for command in (
            ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("DEBUG", "JMAP"), ("GET", "other"),
            ("HGET", "other", "x"), ("SCAN", "0"), ("EVAL", "return 1", "0"), ("ACL", "LIST"), ("SHUTDOWN",),
        ):  # fmt: skip
            with pytest.raises(redis.exceptions.ResponseError, match=r"permission|not allowed"):
                client.execute_command(*command)


def test_a_wrong_password(guarded: tuple[int, Path], tmp_path: Path) -> None:
    port, _ = guarded
    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_text("guess")
    for url in (f"redis://dieselfs@{HOST}:{port}?password_file={wrong}", f"redis://{HOST}:{port}"):
        with pytest.raises(Unavailable, match="password") as refused:
            RedisMetadata.open(url)
        assert "guess" not in str(refused.value)


def test_an_open_server_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running_redis(tmp_path / "r") as server, caplog.at_level(logging.WARNING):
        RedisClient(RedisLocation([(HOST, server.port)])).close()
        assert "every user of this machine" in caplog.text
        RedisClient(RedisLocation([("0.0.0.0", server.port)])).close()  # this machine, by no loopback address
        assert "every host that can connect" in caplog.text


def test_tls_with_an_authority(tmp_path: Path) -> None:
    folder, other = tmp_path / "r", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    certificate, key = make_certificate(folder)
    stranger, _ = make_certificate(other)
    (port,) = free_ports(1)
    options = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    with running_redis(folder, *options, "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"):
        RedisMetadata.open(f"rediss://{HOST}:{port}?ca_file={certificate}").close()
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            RedisMetadata.open(f"rediss://{HOST}:{port}?ca_file={stranger}")
        with pytest.raises(Unavailable):  # no silent change to plain TCP
            RedisMetadata.open(f"redis://{HOST}:{port}")


def test_tls_with_certificates_of_both_ends(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    certificate, key = make_certificate(own)
    stranger, strangers_key = make_certificate(other)
    (port,) = free_ports(1)
    files = (
        "--tls-cert-file",
        str(certificate),
        "--tls-key-file",
        str(key),
        "--tls-ca-cert-file",
        str(certificate),
    )
    with running_redis(tmp_path / "redis", "--tls-port", str(port), *files, "--tls-auth-clients", "yes"):
        url = f"rediss://{HOST}:{port}?ca_file={certificate}"
        RedisMetadata.open(f"{url}&certificate_file={certificate}&key_file={key}").close()
        for pair in ("", f"&certificate_file={stranger}&key_file={strangers_key}"):
            with pytest.raises(Unavailable):
                RedisMetadata.open(f"{url}{pair}")


def test_a_node_of_a_cluster_dies_and_another_takes_its_place(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path) as cluster,
        closing(RedisMetadata.open(f"redis+cluster://{cluster.hosts}")) as store,
    ):
        store.create_dataset(DATASET, DATASET_ID)
        packed = {
            chunk_id(n): pack([Put(b"d%d/f%d" % (i, n % 2), n + 1, size=n) for i in range(40)], chunk_id(n))
            for n in range(8)
        }
        for number in range(4):
            store.apply(DATASET_ID, *packed[chunk_id(number)], NOW_NS)
        _wait_for_replicas(cluster)
        victim = cluster.masters()[0]
        victim.kill()
        for number in range(4, 8):
            _apply_when_back(store, packed[chunk_id(number)])
        assert store.lineage() > 0  # a replica that took a place may lack writes
        victim.start()
        cluster.wait_until_whole()
        headers = {identity: header for identity, (_, header) in packed.items()}
        check_against_model(store, headers)


def _wait_for_replicas(cluster: RedisCluster) -> None:
    """A cluster may lose what it has acknowledged, if a node dies before its replica has it: not the matter here."""
    for node in cluster.masters():
        with node.client() as client:
            assert client.execute_command("WAIT", 1, 10_000) == 1


def _apply_when_back(store: RedisMetadata, chunk: tuple[object, object]) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        begun_s = time.monotonic()
        try:
            store.apply(DATASET_ID, *chunk, NOW_NS)  # type: ignore[arg-type]  # a packed chunk
            return
        except Unavailable:
            assert begun_s < deadline_s, "the cluster does not come back"
        finally:
            assert time.monotonic() - begun_s < BOUND_S


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("redis://localhost", RedisLocation([("localhost", 6379)])),
        ("redis://10.0.0.5:7000/3", RedisLocation([("10.0.0.5", 7000)], database=3)),
        ("redis://me@h:1/", RedisLocation([("h", 1)], user="me")),
        ("redis://[::1]:7", RedisLocation([("::1", 7)])),
        ("redis://h?prefix=lab1:", RedisLocation([("h", 6379)], prefix=b"lab1:")),
        ("redis+cluster://a:1,b,c:3", RedisLocation([("a", 1), ("b", 6379), ("c", 3)], is_cluster=True)),
        ("redis+unix:///run/r%20s.sock", RedisLocation([], socket_path="/run/r s.sock")),
        ("rediss://h", RedisLocation([("h", 6379)], tls=RedisTls())),
        ("rediss+cluster://a,b", RedisLocation([("a", 6379), ("b", 6379)], is_cluster=True, tls=RedisTls())),
    ],
)
def test_addresses(url: str, location: RedisLocation) -> None:
    assert parse_redis_url(url) == location


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://me:secret@h", "password_file"),
        ("redis://:secret@h", "password_file"),
        ("redis://h:0", "HOST:PORT"),
        ("redis://h:65536", "HOST:PORT"),
        ("redis://", "HOST:PORT"),
        ("redis+cluster://a:1,,b:2", "HOST:PORT"),
        ("redis://h/one", "database"),
        ("redis+cluster://h/1", "no databases"),
        ("redis://h?timeout=3", "timeout"),
        ("redis://h?prefix={x}", "prefix"),
        ("redis://h?prefix=", "prefix"),
        ("redis://h?ca_file=/etc/ca.pem", "ca_file"),
        ("rediss://h?ca_file=/nonexistent", "/nonexistent"),
        ("rediss://h?certificate_file=/dev/null", "both certificate_file and key_file"),
        ("redis://h?password_file=/nonexistent", "/nonexistent"),
    ],
)
def test_what_is_no_address(url: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        parse_redis_url(url)
    assert "secret" not in str(refused.value)


def test_the_password_comes_from_a_file_of_ours_alone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("se cret\n")
    location = parse_redis_url(f"redis://h?password_file={file}")
    assert location.password == "se cret"
    assert "se cret" not in f"{location} {location!r}"
    file.chmod(0o640)
    with pytest.raises(InvalidInput, match="chmod 600"):
        parse_redis_url(f"redis://h?password_file={file}")
    file.chmod(0o600)
    for content in (b"", b"\n", b"\xff", b"x" * 5000):
        file.write_bytes(content)
        with pytest.raises(InvalidInput, match="password file"):
            parse_redis_url(f"redis://h?password_file={file}")


@pytest.mark.parametrize(
    ("url", "danger"),
    [
        ("redis://10.0.0.5", "no password"),
        ("rediss://10.0.0.5", "no password"),
        ("redis://10.0.0.5?password_file={}", "without TLS"),
        ("rediss://10.0.0.5?password_file={}", ""),
        ("redis://localhost", "every user of this machine"),
        ("redis://localhost?password_file={}", ""),
        ("redis+unix:///run/redis.sock", ""),
    ],
)
def test_what_is_open_on_the_network(tmp_path: Path, url: str, danger: str) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("secret")
    found = parse_redis_url(url.format(file)).danger()
    assert danger in found and bool(found) == bool(danger)
