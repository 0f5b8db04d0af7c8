"""`dlcmd why` over real bottlenecks: each is made so strong that it is the limit on any machine."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import pytest

from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.rpc.limit_kinds import RateRecord
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_server.admission.throttle import BURST_S
from lab.network import clear
from lab.server import upload
from lab.tcp_proxy import tcp_proxy
from tests.support import slow_server
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer, running_server

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

FILES, FILES_PER_CHUNK, FILE_BYTES = 256, 4, 100_000
MEMORY_BYTES = 8 * MIB
"""A third of the dataset: each epoch fetches the rest again, so reading has no end."""
SMALL_GROUP = 4
RATE = 4_000_000
"""Ten chunks a second, so that some of them wait in each second that `why` looks at."""
AFTER_BURST = int(2 * RATE * BURST_S) // FILE_BYTES
"""Files: the first seconds of a user may pass without a wait for the rate."""
DELAY_S = 0.05
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        _fill(server, tmp_path_factory.mktemp("files"))
        yield server


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("slow"), module=slow_server.__name__) as server:
        _fill(server, tmp_path_factory.mktemp("files"))
        yield server


def _fill(server: RunningServer, folder: Path) -> None:
    for number in range(FILES):
        (folder / str(number)).write_bytes(bytes(FILE_BYTES))
    with Dataset(server.settings(), "slow", must_exist=False) as data:
        upload(data, folder, FILES_PER_CHUNK * FILE_BYTES)


@pytest.fixture
def dlcmd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dlcmd:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return Dlcmd(tmp_path / "home", tmp_path, {"XDG_RUNTIME_DIR": str(tmp_path)})


def in_order(place: Path, group: int) -> Iterator[str]:
    for epoch in count():
        yield from (place / f".dieselfs/shuffle/seed=1,epoch={epoch},group={group}").read_text().splitlines()


def at_random() -> Iterator[str]:
    draw = random.Random(1)
    while True:
        yield str(draw.randrange(FILES))


@contextmanager
def reading(place: Path, names: Iterator[str], files: int = 1) -> Iterator[None]:
    """Files of the mount are read all the time: this many before the block begins."""
    has_begun, is_over, failures = Event(), Event(), list[OSError]()

    def read() -> None:
        try:
            for number, name in enumerate(names, 1):
                (place / name).read_bytes()
                if number == files:
                    has_begun.set()
                if is_over.is_set():
                    return
        except OSError as error:
            failures.append(error)
            has_begun.set()

    thread = Thread(target=read)
    thread.start()
    try:
        assert has_begun.wait(TIMEOUT_S)
        yield
    finally:
        is_over.set()
        thread.join()
    assert not failures


@contextmanager
def mounted(folder: Path, server: str, key: Path | None = None) -> Iterator[Path]:
    place = folder / "mount"
    place.mkdir()
    key_file = str(key) if key else None
    options = MountOptions(
        server=server, key_file=key_file, memory_bytes=MEMORY_BYTES, log_file=f"{place}.log"
    )
    try:
        control.mount("slow", place, options)
        yield place
    finally:
        clear(place)


def found(dlcmd: Dlcmd, place: Path, *options: str | Path) -> tuple[str, str]:
    (record,) = dlcmd("why", place, "--for", "1s", "--json", *options).objects
    return record["limit"], record["text"]


def test_reads_without_a_plan(dlcmd: Dlcmd, slow: RunningServer) -> None:
    with mounted(dlcmd.folder, slow.unix) as place, reading(place, at_random()):
        assert found(dlcmd, place)[0] == "no-plan"


def test_groups_that_are_larger_than_the_memory(dlcmd: Dlcmd, slow: RunningServer) -> None:
    with mounted(dlcmd.folder, slow.unix) as place, reading(place, in_order(place, 0)):
        assert found(dlcmd, place)[0] == "group"


def test_a_slow_store(dlcmd: Dlcmd, slow: RunningServer) -> None:
    with mounted(dlcmd.folder, slow.unix) as place, reading(place, in_order(place, SMALL_GROUP)):
        assert found(dlcmd, place)[0] == "store"


def test_a_slow_store_of_a_server_elsewhere(dlcmd: Dlcmd, slow: RunningServer, tmp_path: Path) -> None:
    """Only its address tells of it, as it has its metrics in another folder."""
    admin, ordinary = slow.user("ada", all_datasets="admin"), slow.user("bob", slow="read")
    with (
        mounted(dlcmd.folder, slow.tcp, ordinary) as place,
        reading(place, in_order(place, SMALL_GROUP)),
    ):
        assert found(dlcmd, place, "--key-file", admin)[0] == "store"
        limit, text = found(dlcmd, place, "--key-file", ordinary)
        assert limit != "store" and "only administrators" in text


def test_the_rate_of_a_user(dlcmd: Dlcmd, server: RunningServer) -> None:
    admin, limited = server.user("eve", all_datasets="admin"), server.user("carl", slow="read")
    client = server.client()
    client.set_rate(RateRecord("carl", bytes_per_s=RATE))
    client.close()
    with (
        mounted(dlcmd.folder, server.tcp, limited) as place,
        reading(place, in_order(place, SMALL_GROUP), AFTER_BURST),
    ):
        assert found(dlcmd, place, "--key-file", admin)[0] == "rate"


def test_a_slow_network(dlcmd: Dlcmd, server: RunningServer) -> None:
    admin = server.user("dora", all_datasets="admin")
    url = urlsplit(server.tcp)
    assert url.hostname and url.port
    with tcp_proxy((url.hostname, url.port)) as proxy:
        proxy.delay(DELAY_S)
        with (
            mounted(dlcmd.folder, proxy.server, admin) as place,
            reading(place, in_order(place, SMALL_GROUP)),
        ):
            assert found(dlcmd, place, "--key-file", admin)[0] == "network"
