"""The private server: starts by itself, is shared, survives being killed, goes away when nobody needs it."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import dieselfs
from dieselfs.errors import AccessDenied, Unavailable
from dieselfs.net.address import UnixAddress
from dieselfs.net.sockets import open_socket
from dieselfs.process.embedded_server import connect_embedded, socket_path
from dieselfs_server.store.opening import open_store
from tests.support.users import NOBODY

END_TIMEOUT_S = 20.0


def servers_of(home: Path) -> list[int]:
    """Process IDs of the servers of this home."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"dieselfs_server.main" in words and os.fsencode(home) in words:
                found.append(int(process.name))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        os.sched_yield()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    # A path longer than a Unix socket's address can be.
    folder = tmp_path / ("long-" * 20) / "home"
    yield folder
    for process_id in servers_of(folder):
        os.kill(process_id, signal.SIGTERM)
    wait_until(lambda: not servers_of(folder))


def test_with_nothing_configured_a_server_starts_and_is_shared(home: Path) -> None:
    with dieselfs.connect("data", home=home, server="embedded", create=True) as data:
        data.put("file", b"content")
        data.flush()
        assert data.get("file") == b"content"
        assert len(servers_of(home)) == 1
        with dieselfs.connect("data", home=home, server="embedded") as other:
            assert other.get("file") == b"content"
        assert len(servers_of(home)) == 1
    assert home.stat().st_mode & 0o077 == 0
    assert socket_path(home).stat().st_mode & 0o077 == 0


def test_readers_of_a_running_server_import_neither_tls_nor_jobs(home: Path) -> None:
    """Nor what starts processes: each program and each worker of a training waits for its imports."""
    with dieselfs.connect("data", home=home, server="embedded", create=True) as data:
        data.put("file", b"content")
    # Not `ssl` and `json`: thriftpy2 imports them.
    unused = ("subprocess", "uuid", "tomllib", "dieselfs.cluster.attachment", "dieselfs.net.tls")
    program = f"""
import sys, dieselfs
with dieselfs.connect("data", home={str(home)!r}, server="embedded") as data:
    assert data.get("file") == b"content"
print([name for name in {unused} if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_many_that_start_at_once_get_one_server(home: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        for sock in threads.map(lambda _: connect_embedded(home), range(8)):
            sock.close()
    assert len(servers_of(home)) == 1


@pytest.mark.processes
def test_who_has_many_descriptors_can_start_one(home: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while stack.enter_context(open(os.devnull, "rb")).fileno() < 1023:
            pass
        with dieselfs.connect("data", home=home, server="embedded", create=True) as data:
            data.put("file", b"content")


@pytest.mark.processes
def test_a_server_that_was_killed_is_started_again_under_an_open_dataset(home: Path) -> None:
    with dieselfs.connect("data", home=home, server="embedded", create=True) as data:
        data.put("file", b"content")
        data.flush()
        (process_id,) = servers_of(home)
        os.kill(process_id, signal.SIGKILL)
        wait_until(lambda: process_id not in servers_of(home))
        assert data.get("file") == b"content"
        data.put("other", b"more")
        data.flush()
        assert data.get("other") == b"more"


def test_the_server_ends_when_its_home_is_removed(home: Path) -> None:
    connect_embedded(home).close()
    assert servers_of(home)
    socket_path(home).unlink()
    wait_until(lambda: not servers_of(home))


def server_that_ends_when_idle(home: Path, idle_s: int) -> subprocess.Popen[bytes]:
    """It is ready."""
    ready, report = os.pipe()
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "dieselfs_server.main", "--embedded", str(home)),
            *("--idle-exit-s", str(idle_s), "--ready-fd", str(report)),
        ],
        pass_fds=(report,),
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    os.close(report)
    with os.fdopen(ready) as answer:
        assert answer.read() == "ready\n"
    return server


def test_the_server_ends_when_idle(home: Path) -> None:
    for idle_s in (2, 15, 60):
        server = server_that_ends_when_idle(home, idle_s)
        try:
            connection = open_socket(UnixAddress(str(socket_path(home))))
            break
        except Unavailable:  # the machine has stalled for so long: with another, that idles longer
            server.wait(END_TIMEOUT_S)
    with connection, pytest.raises(subprocess.TimeoutExpired):
        server.wait(1.5 * idle_s)  # somebody is connected
    assert server.wait(END_TIMEOUT_S + idle_s) == 0
    assert not socket_path(home).exists()


def test_a_home_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="DIESELFS_HOME"):
        connect_embedded(tmp_path / "file" / "home")


def test_a_server_that_cannot_start_says_why(home: Path) -> None:
    open_store(f"posix://{home}/chunks", is_new=True).close()
    (home / "metadata.db").write_bytes(
        b"this is not a database, but it is long enough to look like one" * 100
    )
    with pytest.raises(Unavailable, match=r"did not start.*metadata"):
        connect_embedded(home)


@pytest.mark.processes
def test_a_home_without_its_chunks_is_unavailable_at_once(home: Path) -> None:
    with dieselfs.connect("data", home=home, server="embedded", create=True) as data:
        data.put("file", b"content")
        data.flush()
        (process_id,) = servers_of(home)
        (home / "chunks").rename(home / "away")
        with pytest.raises(Unavailable, match="marker is missing"):
            data.client.rebuild("data")
        os.kill(process_id, signal.SIGKILL)
        wait_until(lambda: process_id not in servers_of(home))
        with pytest.raises(Unavailable, match="has no marker"):
            data.client.datasets()
        assert not (home / "chunks").exists()
        (home / "away").rename(home / "chunks")
        assert data.get("file") == b"content"


LISTENER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
@pytest.mark.parametrize(("user", "is_believed"), [(0, True), (NOBODY, False)])
def test_a_server_of_another_user_is_not_believed(user: int, is_believed: bool) -> None:
    """It would get what is put, and make up what is read."""
    with tempfile.TemporaryDirectory() as folder:
        path = socket_path(Path(folder))
        path.parent.mkdir()
        os.chmod(folder, 0o711)
        os.chown(path.parent, user, user)
        command = [
            "setpriv",
            f"--reuid={user}",
            f"--regid={user}",
            "--clear-groups",
            sys.executable,
            "-S",
            "-E",
        ]
        with subprocess.Popen(
            [*command, "-c", LISTENER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "listening\n"
                if is_believed:
                    connect_embedded(Path(folder)).close()
                else:
                    with pytest.raises(AccessDenied, match=f"belongs to user ID {NOBODY}"):
                        connect_embedded(Path(folder))
            finally:
                process.kill()
