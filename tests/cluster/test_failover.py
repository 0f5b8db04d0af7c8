"""A server vanishes while a node reads: from the library and through a mount, the reads go on."""

import errno
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.limits import LOST_MACHINE_S, MIB, READ_GONE_S, READ_TIMEOUT_S
from dieselfs.net.address import TcpAddress
from dieselfs.net.sockets import open_socket
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.wire import Wire
from dieselfs.settings import Settings
from dieselfs.transfer.upload import TreeUpload, walk_source
from lab.cluster import PORT, Cluster, Storage, running_storage
from lab.network import Host, Network, clear
from lab.tcp_proxy import tcp_proxy
from tests.support.dlcmd import COMMAND

FILES = 48
FILE_BYTES = MIB
"""As much as a chunk, so that each file is a fetch of its own."""
READERS = 4
STORAGE_BYTES_PER_S = 10_000_000
"""Slow enough for the readers' chunks to be on their way at the same time, from all servers."""
PATIENCE_S = 60.0
TRANSFER_S = 1.0
"""More than a file takes at this rate, while all readers share the server that is left."""

Fault = Callable[[Network, Storage], None]


def cut_off(net: Network, storage: Storage) -> None:
    net.cut_off(storage.host)


def stop(net: Network, storage: Storage) -> None:
    storage.host.stop()


def kill(net: Network, storage: Storage) -> None:
    storage.host.kill()


@pytest.fixture
def tree(cluster: Cluster, node: Host) -> Path:
    """A folder whose content is stored as the dataset `photos`."""
    chance, folder = random.Random(5), node.folder / "tree"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number:03}").write_bytes(chance.randbytes(FILE_BYTES))
    with node.inside(), Dataset(cluster.settings(node), "photos", must_exist=False) as data:
        upload = TreeUpload(data.client, data.create(), None, chunk_bytes=FILE_BYTES)
        assert not upload.run(lambda failed: walk_source(os.fsencode(folder), b"", failed)).failures
    for storage in cluster.storages:
        cluster.net.rate(storage.host, STORAGE_BYTES_PER_S)
    return folder


@pytest.fixture
def mount(cluster: Cluster, node: Host, tree: Path) -> Iterator[Path]:
    """`photos`, mounted on the node."""
    place = node.folder / "mount"
    place.mkdir()
    key = ("--key-file", cluster.key_file)
    node.run([*COMMAND, "--server", cluster.servers, *key, "mount", "photos", place])
    yield place
    clear(place)


def settings_for(cluster: Cluster, node: Host, server: str) -> Settings:
    """For a client on `node` that knows only this server, or these."""
    return replace(cluster.settings(node), server=server)


def longest_read_s(read: Callable[[str], bytes], tree: Path, halfway: Callable[[], None]) -> float:
    """Read all files, several at a time, and compare them."""
    names = sorted(path.name for path in tree.iterdir())
    share = len(names) // READERS

    def timed(name: str) -> float:
        began_s = time.monotonic()
        content = read(name)
        took_s = time.monotonic() - began_s
        assert content == (tree / name).read_bytes(), name
        return took_s

    def read_share(reader: int) -> float:
        """The last one meddles halfway; the others read meanwhile."""
        mine = names[reader * share : (reader + 1) * share]
        longest_s = max(map(timed, mine[: share // 2]))
        if reader == READERS - 1:
            halfway()
        return max(longest_s, *map(timed, mine[share // 2 :]))

    with ThreadPoolExecutor(READERS) as readers:
        return max(readers.map(read_share, range(READERS)))


def through(mount: Path) -> Callable[[str], bytes]:
    return lambda name: (mount / name).read_bytes()


@pytest.mark.parametrize("fault", [cut_off, kill])
def test_a_mount_reads_on_when_a_server_vanishes(
    cluster: Cluster, tree: Path, mount: Path, fault: Fault
) -> None:
    longest_s = longest_read_s(through(mount), tree, lambda: fault(cluster.net, cluster.busiest()))
    assert longest_s < LOST_MACHINE_S + TRANSFER_S


def test_a_mount_reads_on_when_redis_vanishes(cluster: Cluster, tree: Path, mount: Path) -> None:
    longest_s = longest_read_s(through(mount), tree, lambda: cluster.net.cut_off(cluster.redis))
    # Of the reads that were the first to find it silent; the others do not ask.
    assert longest_s < LOST_MACHINE_S + TRANSFER_S


def test_a_mount_waits_for_servers_that_are_all_away(cluster: Cluster, tree: Path, mount: Path) -> None:
    with ExitStack() as stack:

        def restart() -> None:
            for storage in cluster.storages:
                storage.host.kill()
            for storage in cluster.storages:
                stack.enter_context(running_storage(storage.host, cluster.options))

        assert longest_read_s(through(mount), tree, restart) < READ_TIMEOUT_S


def test_the_library_reads_on_and_comes_back_to_a_server(
    cluster: Cluster, node: Host, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.rpc.server_connections.SERVER_SILENCE_S", 1.0)
    for fault in (cut_off, stop):
        lost: list[Storage] = []

        def halfway(fault: Fault = fault, lost: list[Storage] = lost) -> None:
            lost.append(cluster.busiest())
            fault(cluster.net, lost[0])

        with node.inside(), Dataset(cluster.settings(node), "photos") as data:
            assert longest_read_s(data.get, tree, halfway) < READ_TIMEOUT_S
        cluster.net.heal()
        lost[0].host.resume()
        with node.inside(), closing(ServerClient(settings_for(cluster, node, lost[0].address))) as back:
            assert [dataset.name for dataset in back.datasets()] == ["photos"]


def test_a_server_that_was_killed_comes_back(cluster: Cluster, node: Host) -> None:
    one, other = cluster.storages
    with node.inside(), Dataset(cluster.settings(node), "letters", must_exist=False) as data:
        one.host.kill()
        data.put("a", b"content")
        data.flush()
        other.host.kill()
        with running_storage(one.host, cluster.options):
            assert data.get("a") == b"content"


def test_the_only_server_left_may_take_its_time(
    cluster: Cluster, node: Host, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.rpc.server_connections.SERVER_SILENCE_S", 0.2)
    one, other = cluster.storages
    with ExitStack() as stack:
        with one.host.inside():
            slow = stack.enter_context(tcp_proxy((one.host.address, PORT), one.host.address))
        stack.enter_context(node.inside())
        settings = settings_for(cluster, node, f"{slow.server},{other.address}")
        data = stack.enter_context(Dataset(settings, "photos"))
        other.host.kill()
        slow.delay(0.3)
        for name in ("000", "001"):
            assert data.get(name) == (tree / name).read_bytes()


def test_bytes_that_are_altered_or_cut_on_the_way_never_reach_a_reader(
    cluster: Cluster, node: Host, tree: Path
) -> None:
    server = cluster.storages[0].host
    with ExitStack() as stack:
        with server.inside():
            proxy = stack.enter_context(tcp_proxy((server.address, PORT), server.address))
        stack.enter_context(node.inside())
        data = stack.enter_context(Dataset(settings_for(cluster, node, proxy.server), "photos"))
        assert sum(1 for _ in data.files()) == FILES  # the snapshot is here
        for number in range(8):
            fault = (proxy.alter_after, proxy.cut_after)[number % 2]
            fault(1000 + number * FILE_BYTES // 8)  # behind the message, in the bytes of the file
            assert data.get(f"{number:03}") == (tree / f"{number:03}").read_bytes()
        passed = proxy.passed()
        assert (passed.alterations, passed.cuts) == (4, 4)


def test_a_machine_that_is_gone_is_noticed_however_long_a_call_may_take(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.net.sockets.SERVER_GONE_S", 4.0)
    storage, node = net.host("storage"), net.host("node")
    with ExitStack() as stack:
        with storage.inside():
            listening = stack.enter_context(socket.create_server((storage.address, 0)))
        address = TcpAddress(storage.address, listening.getsockname()[1])
        with node.inside():
            asking, waiting, reading = (stack.enter_context(open_socket(address)) for _ in range(3))
        wire = Wire(reading)
        wire.limit(PATIENCE_S)
        wire.gone_s = READ_GONE_S
        net.cut_off(storage)
        began_s = time.monotonic()
        with pytest.raises(TimeoutError):  # the kernel's: it comes before the one of the call
            wire.receive(1)
        assert time.monotonic() - began_s < LOST_MACHINE_S
        asking.sendall(b"a question that does not arrive")
        for connection in (asking, waiting):
            connection.settimeout(PATIENCE_S)
            with pytest.raises(TimeoutError) as caught:
                connection.recv(1)
            assert caught.value.errno == errno.ETIMEDOUT  # the kernel's, not ours
