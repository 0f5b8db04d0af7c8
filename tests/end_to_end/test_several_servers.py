"""Several servers over the same stores, found in a list or in etcd: clients spread, and go on when one is killed."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import NotFound, Unavailable
from dieselfs.etcd.keys import SERVERS_PREFIX, decode_servers
from dieselfs.limits import MIB
from dieselfs.rpc.client import ServerClient
from dieselfs.settings import Settings
from dieselfs.transfer.upload import Failed, SourceEntry, TreeUpload, walk_source
from tests.support.cut_off import server_that_hangs_up
from tests.support.dlcmd import wait_until
from tests.support.etcd import RunningEtcd, running_etcd
from tests.support.server import RunningServer, free_port, running_servers

FILES = 200
FILE_BYTES = 100_000


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[RunningServer]]:
    with running_servers(tmp_path / "servers", "abc") as running:
        yield running


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    chance, folder = random.Random(3), tmp_path / "tree"
    folder.mkdir()
    for number in range(FILES):
        (folder / str(number)).write_bytes(chance.randbytes(FILE_BYTES))
    return folder


def settings_for(servers: list[RunningServer], server: str | None = None) -> Settings:
    """Of a user who may do everything; the first server is asked to make them."""
    key_file = servers[0].user("ada", all_datasets="admin")
    listed = ",".join(running.tcp for running in servers)
    return replace(servers[0].settings(key_file), server=server or listed)


def connections(server: RunningServer) -> int:
    """How many clients a server has, but for the one that asks."""
    client = server.client()
    try:
        return client.status().metrics["rpc.connections"] - 1
    finally:
        client.close()


def kill_the_busiest(servers: list[RunningServer]) -> None:
    count, victim = max(((connections(server), server) for server in servers), key=lambda pair: pair[0])
    assert count > 0, "killing a server that nobody uses would show nothing"
    victim.kill()


def upload(data: Dataset, tree: Path, halfway: Callable[[], None]) -> None:
    def entries(failed: Failed) -> Iterator[SourceEntry]:
        for number, entry in enumerate(walk_source(os.fsencode(tree), b"", failed)):
            if number == FILES // 2:
                halfway()
            yield entry

    report = TreeUpload(data.client, data.create(), None, chunk_bytes=MIB).run(entries)
    assert not report.failures and report.done_files == FILES + 1  # and the folder


def assert_holds(data: Dataset, tree: Path) -> None:
    assert sorted(data.files()) == sorted(path.name for path in tree.iterdir())
    for path in tree.iterdir():
        assert data.get(path.name) == path.read_bytes()


def test_an_upload_and_reads_go_on_while_servers_are_killed(servers: list[RunningServer], tree: Path) -> None:
    settings = settings_for(servers)
    with Dataset(settings, "photos", must_exist=False) as data:
        upload(data, tree, lambda: kill_the_busiest(servers))
        alive = [server for server in servers if server.process.poll() is None]
        assert len(alive) == 2
        names = [path.name for path in tree.iterdir()] * 3
        with ThreadPoolExecutor(4) as readers:
            contents = readers.map(data.get, names)
            for number, (name, content) in enumerate(zip(names, contents, strict=True)):
                assert content == (tree / name).read_bytes()
                if number == FILES // 2:
                    kill_the_busiest(alive)
    with Dataset(settings, "photos") as again:  # a client that begins with one server of three
        assert_holds(again, tree)


def test_all_servers_gone_is_one_clear_error(servers: list[RunningServer]) -> None:
    client = ServerClient(settings_for(servers))
    client.datasets()
    for server in servers:
        server.kill()
    with pytest.raises(
        Unavailable, match="none of 3 servers answers; the last one: cannot reach the server at tcp://"
    ):
        client.datasets()
    client.close()


@pytest.mark.parametrize("start", range(3))
def test_a_call_that_must_not_happen_twice_goes_on_while_no_connection_was_made(
    servers: list[RunningServer], start: int
) -> None:
    settings = settings_for(servers)
    servers[start].kill()
    client = ServerClient(settings, start)
    with pytest.raises(NotFound):
        client.remove_key("nobody")
    client.close()


def test_a_call_that_must_not_happen_twice_fails_where_it_may_have_happened(
    servers: list[RunningServer], tmp_path: Path
) -> None:
    with server_that_hangs_up(tmp_path / "false.sock") as false:
        settings = replace(servers[0].settings(), server=f"unix:{false.path},{servers[0].unix}")
        client = ServerClient(settings, start=0)
        with pytest.raises(Unavailable, match="lost the server"):
            client.remove_key("grace")
        client.close()
        assert false.calls == 1
        client = ServerClient(settings, start=0)
        assert [user.name for user in client.users()] == []  # this one may be repeated, and was
        client.close()
        assert false.calls == 2


def test_a_server_that_hangs_is_passed_over(
    servers: list[RunningServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.rpc.connection.CONNECT_TIMEOUT_S", 0.3)
    path = tmp_path / "hanging.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()  # the kernel takes connections, and nobody ever answers
        settings = replace(servers[0].settings(), server=f"unix:{path},{servers[0].unix}")
        client = ServerClient(settings, start=0)
        assert client.datasets() == []
        client.close()


def test_connections_of_many_clients_go_to_all_servers(servers: list[RunningServer]) -> None:
    settings = settings_for(servers)
    clients = [ServerClient(settings, start) for start in range(9)]
    for client in clients:
        client.datasets()
    assert [connections(server) for server in servers] == [3, 3, 3]
    for client in clients:
        client.close()


def test_what_one_server_stores_the_others_serve(servers: list[RunningServer]) -> None:
    settings = settings_for(servers)
    for number, server in enumerate(servers):
        with Dataset(replace(settings, server=server.tcp), "shared", must_exist=False) as data:
            data.put(f"{number}", b"from %d" % number)
    for server in servers:
        with Dataset(replace(settings, server=server.tcp), "shared") as data:
            assert data.get_many(["0", "1", "2"]) == [b"from 0", b"from 1", b"from 2"]
    client = ServerClient(replace(settings, server=servers[1].tcp))
    client.drop_dataset("shared")
    client.close()
    for server in servers:
        with pytest.raises(NotFound):
            Dataset(replace(settings, server=server.tcp), "shared")


# -- etcd ------------------------------------------------------------------------------------------------


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[RunningEtcd]:
    with running_etcd(tmp_path / "etcd") as running:
        yield running


@pytest.fixture
def registered(tmp_path: Path, etcd: RunningEtcd) -> Iterator[list[RunningServer]]:
    with running_servers(tmp_path / "servers", "abc", ["--etcd", str(etcd.address)]) as running:
        wait_until(lambda: len(decode_servers(etcd.client().values(SERVERS_PREFIX))) == 3)
        yield running


def test_clients_find_servers_in_etcd_and_go_on_without_it(
    etcd: RunningEtcd, registered: list[RunningServer], tree: Path
) -> None:
    settings = settings_for(registered, str(etcd.address))
    clients = [ServerClient(settings, start) for start in range(9)]
    for client in clients:
        client.datasets()
    assert [connections(server) for server in registered] == [3, 3, 3]

    def kill() -> None:
        etcd.kill()
        kill_the_busiest(registered)

    with Dataset(settings, "photos", must_exist=False) as data:
        upload(data, tree, kill)
        assert_holds(data, tree)
    for client in clients:
        assert [dataset.name for dataset in client.datasets()] == ["photos"]
        client.close()


CHILDREN = """
import os, sys
import dieselfs
data = dieselfs.connect("photos")
assert data.get("a") == b"content"
for child in range(3):
    sys.stdin.readline() if child == 1 else None  # etcd is killed meanwhile
    process = os.fork()
    if not process:
        os._exit(0 if data.get("a") == b"content" else 1)
    assert os.waitpid(process, 0)[1] == 0
    print("child", child, flush=True)
"""


def test_forked_workers_find_servers_too_with_and_without_etcd(
    etcd: RunningEtcd, registered: list[RunningServer], tmp_path: Path
) -> None:
    settings = settings_for(registered)
    with Dataset(settings, "photos", must_exist=False) as data:
        data.put("a", b"content")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "DIESELFS_SERVER": str(etcd.address),
        "DIESELFS_KEY_FILE": str(settings.key_file),
        "DIESELFS_HOME": str(tmp_path / "home"),
    }
    program = subprocess.Popen(
        [sys.executable, "-c", CHILDREN], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"child 0\n"
        etcd.kill()
        rest, _ = program.communicate(b"\n", timeout=60)
        assert rest == b"child 1\nchild 2\n"
        assert program.returncode == 0
    finally:
        program.kill()
        program.wait()


def test_etcd_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    address = f"etcd://127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-m", "dieselfs_tools.dlcmd", "--server", address, "ls"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DIESELFS_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 6
    assert done.stderr.startswith(f"dlcmd: cannot reach etcd at {address} (") and done.stderr.count("\n") == 1
