"""A server with two workers: kills of workers cost no call, a stop leaves no process, a failed start is one line."""

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from urllib.request import urlopen

import httpx
import numpy as np
import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_UNAVAILABLE, AccessDenied
from dieselfs.process.launch import ProcessHandle
from dieselfs.rpc.limit_kinds import RateRecord
from dieselfs.rpc.records import PageLink
from dieselfs_server.admission.throttle import BURST_S
from dieselfs_server.workers.parent import Parent
from lab.redis_process import running_redis
from tests.support.server import RunningServer, free_port, running_server

WAIT_S = 30.0
TWO = ("--workers", "2")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "server", TWO) as running:
        yield running


def workers_of(server: RunningServer) -> list[int]:
    process = server.process.pid
    return sorted(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.fixture(params=["sqlite", "redis"])
def over_each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningServer]:
    with ExitStack() as stack:
        options: tuple[str, ...] = TWO
        if request.param == "redis":
            if shutil.which("redis-server") is None:
                pytest.skip("no redis-server")
            redis = stack.enter_context(running_redis(tmp_path / "redis"))
            metadata = f"redis://127.0.0.1:{redis.port}/0"
            options = (*TWO, "--metadata", metadata, "--state", str(tmp_path / "state"))
        yield stack.enter_context(running_server(tmp_path / "server", options))


def test_a_killed_worker_is_replaced_and_no_call_fails(over_each_store: RunningServer) -> None:
    server = over_each_store
    key = server.user("alice", all_datasets="admin")
    content = {f"{number}.bin": os.urandom(3000) for number in range(8)}
    with Dataset(server.settings(key), "data", must_exist=False) as writing:
        writing.create()
        for path, data in content.items():
            writing.put(path, data)
        writing.flush()
    is_over, calls = Event(), [0] * 4

    def call(place: int) -> None:
        """Over connections of its own."""
        with Dataset(server.settings(key), "data") as reading:
            while not is_over.is_set():
                for path, expected in content.items():
                    assert reading.client.stat("data", path.encode()).size == len(expected)
                    assert reading.client.dataset("data").files == len(content)
                    calls[place] += 1

    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(call, place) for place in range(len(calls))]
        try:
            until(lambda: all(calls))
            for place in (0, 1, 0):
                _kill(server, place)
                _await_more(calls, running)
        finally:
            is_over.set()
        for each in running:
            each.result(WAIT_S)
    assert server.stop() == 0


def test_a_worker_that_hangs_is_replaced_and_the_logs_tell(server: RunningServer) -> None:
    key = server.user("alice", all_datasets="admin")
    hanging = ProcessHandle(workers_of(server)[1])
    hanging.send(signal.SIGSTOP)
    assert hanging.wait(WAIT_S)
    until(lambda: len(workers_of(server)) == 2)
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(server.client(key))) for _ in range(2)]
        until(lambda: all(client.status().metrics["workers.replaced"] == 1 for client in clients))
    entries = map(json.loads, (server.folder / "state/audit.log").read_text().splitlines())
    (entry,) = (each for each in entries if each["event"] == "replace_worker")
    assert entry["worker"] == "1" and "did not answer for 10 s" in entry["reason"]


def _kill(server: RunningServer, place: int) -> None:
    """Kill a worker, and wait for another one in its place."""
    killed = workers_of(server)[place]
    os.kill(killed, signal.SIGKILL)
    until(lambda: killed not in workers_of(server) and len(workers_of(server)) == 2)


def _await_more(calls: list[int], running: list["Future[None]"]) -> None:
    """Wait until each thread has made calls that began after now. Raises the error of one that has failed."""
    before = [*calls]

    def have_more() -> bool:
        for each in running:
            if each.done():
                each.result()
        return all(now > then + 2 for now, then in zip(calls, before, strict=True))

    until(have_more)


def test_the_connections_of_a_client_are_spread(server: RunningServer) -> None:
    """Each worker has an end of some of them: a kill of one ends half."""
    key = server.user("alice", all_datasets="admin")
    clients = [server.client(key) for _ in range(4)]
    for client in clients:
        client.datasets()
    port = server.tcp.rpartition(":")[2]
    held = [sum(f":{int(port):04X} " in line for line in _tcp_of(worker)) for worker in workers_of(server)]
    assert held == [2, 2]
    for client in clients:
        client.close()


def test_a_removed_key_is_refused_by_all_workers_at_once(server: RunningServer) -> None:
    key = server.user("alice", all_datasets="admin")
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(server.client(key))) for _ in range(4)]
        for client in clients:
            assert client.datasets() == []
        stack.enter_context(closing(server.client())).grant("alice", "*", "none")
        for client in clients:
            with pytest.raises(AccessDenied):
                client.groups()


def _tcp_of(process: int) -> list[str]:
    """The lines of established TCP connections of a process."""
    inodes = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        target = os.readlink(link)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    lines = Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    return [line for line in lines if line.split()[3] == "01" and line.split()[9] in inodes]


def test_a_stop_leaves_no_process(server: RunningServer) -> None:
    handles = [ProcessHandle(worker) for worker in workers_of(server)]
    assert len(handles) == 2
    assert server.stop() == 0
    assert all(handle.has_ended for handle in handles)


def test_workers_end_with_a_parent_that_is_killed(server: RunningServer) -> None:
    handles = [ProcessHandle(worker) for worker in workers_of(server)]
    server.kill()
    assert all(handle.wait(WAIT_S) for handle in handles)


def started(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dieselfs_server.main", *TWO, *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S)


def test_a_worker_that_cannot_start_ends_the_server_with_one_line(tmp_path: Path) -> None:
    """The store has no marker: without --init it could be a folder that is not mounted."""
    ended = started(
        *("--listen", "tcp://127.0.0.1:0", "--store", f"posix://{tmp_path}/chunks"),
        *("--metadata", f"sqlite://{tmp_path}/metadata.db"),
    )
    assert ended.returncode == EXIT_UNAVAILABLE
    lines = [line for line in ended.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1 and lines[0].startswith("dieselfs-server: ") and "--init" in lines[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--store", "memory:"), "memory of one process"),
        (("--workers", "65"), "from 1 to 64"),
        (("--listen", "unix:/tmp/never"), "Unix sockets"),
    ],
)
def test_what_needs_one_process_is_refused_with_the_reason(
    tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    usual = ("--store", f"posix://{tmp_path}/chunks", "--metadata", f"sqlite://{tmp_path}/metadata.db")
    ended = started(*usual, *options)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert reason in line


RATE = 4 << 20
BURST = int(RATE * BURST_S)


def test_the_rate_of_a_user_holds_over_all_workers(server: RunningServer) -> None:
    """Two workers with a bucket each would give twice the burst at once."""
    key, content = server.user("alice", all_datasets="admin"), os.urandom(BURST // 2)
    with Dataset(server.settings(key), "data", must_exist=False) as writing:
        writing.put("large", content)
        writing.flush()
    with closing(server.client()) as administrator, ExitStack() as stack:
        readers = [stack.enter_context(Dataset(server.settings(key), "data")) for _ in range(2)]
        administrator.set_rate(RateRecord("alice", bytes_per_s=RATE))
        began_s = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            for read in [pool.submit(_read_parts, reader, len(content)) for reader in readers]:
                assert read.result(WAIT_S) == 3 * len(content)
        assert time.monotonic() - began_s >= (6 * len(content) - BURST) / RATE * 0.9


def _read_parts(reader: Dataset, length: int) -> int:
    """Read a file three times, in parts, each from the server."""
    chunk_id = reader.snapshot.chunk_id(0)
    parts = np.array([[start, length // 4] for start in range(0, length, length // 4)], np.uint32)
    return sum(len(reader.client.ranges("data", chunk_id, parts)) for _ in range(3))


def test_links_and_sessions_of_the_page_hold_whichever_worker_answers(tmp_path: Path) -> None:
    options = (*TWO, "--web", f"127.0.0.1:{free_port()}")
    with running_server(tmp_path / "server", options) as server, ExitStack() as stack:
        key = server.user("alice", all_datasets="admin")
        clients = [stack.enter_context(closing(server.client(key))) for _ in range(2)]
        links = [client.open_page(60) for client in clients]
        assert len({(link.address, link.fingerprint) for link in links}) == 1
        with httpx.Client(verify=False, base_url=links[0].address) as browser:
            for link in links:
                assert log_in(browser, link).status_code == 200
                assert log_in(browser, link).status_code >= 400  # it is for one use
                assert browser.get("/api/failures").status_code == 200
            _kill(server, 0)
            until(lambda: _answers(links[0].address))
            assert browser.get("/api/failures").status_code == 200  # the session is that of the server


def log_in(browser: httpx.Client, link: PageLink) -> httpx.Response:
    origin = link.address.rstrip("/")
    return browser.post("/api/link", json={"token": link.token}, headers={"origin": origin})


def test_status_and_metrics_of_all_workers_are_those_of_one_server(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with running_server(tmp_path / "server", (*TWO, "--metrics", address)) as server, ExitStack() as stack:
        key = server.user("alice", all_datasets="admin")
        clients = [stack.enter_context(closing(server.client(key))) for _ in range(4)]
        for client in clients:
            for _ in range(5):
                client.datasets()

        def seen(name: str) -> set[int]:
            return {client.status().metrics[name] for client in clients}

        # What a worker tells is a second old at most.
        until(lambda: seen("rpc.connections") == {len(clients)})
        assert len({client.status().started_s for client in clients}) == 1

        def scraped(name: str) -> float:
            text = urlopen(f"http://{address}/metrics", timeout=WAIT_S).read().decode()
            return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

        answered = 'dieselfs_rpc_answered_seconds_count{component="server",method="list_datasets"}'
        until(lambda: scraped(answered) == 5 * len(clients))
        _kill(server, 1)
        assert scraped(answered) == 5 * len(clients)  # sums do not fall
        _kill(server, 0)
        until(lambda: _answers(f"http://{address}/metrics"))
        assert scraped(answered) == 5 * len(clients)


def _answers(url: str) -> bool:
    """Whether a web server answers, whatever it says."""
    try:
        httpx.get(url, verify=False, timeout=WAIT_S)
    except httpx.TransportError:
        return False
    return True


def test_a_channel_that_a_signal_has_closed_is_not_heard() -> None:
    """SIGCHLD and the end of the channel of a worker come together. Here each event closes the other's channel."""
    parent, heard = Parent(0, [], lambda *_: 0, lambda: None, lambda: None), list[str]()
    with ExitStack() as stack:
        ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
        for each in (*ours, *theirs):
            stack.enter_context(each)

        def hear(name: str, other: socket.socket) -> None:
            heard.append(name)
            parent._selector.unregister(other)
            other.close()

        parent._selector.register(ours[0], selectors.EVENT_READ, lambda: hear("first", ours[1]))
        parent._selector.register(ours[1], selectors.EVENT_READ, lambda: hear("second", ours[0]))
        for each in theirs:
            each.close()
        parent._step()
    assert len(heard) == 1
