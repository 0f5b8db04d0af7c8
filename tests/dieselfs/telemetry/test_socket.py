"""Daemons publish over real sockets, and tools find those that live."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from dieselfs.errors import AccessDenied
from dieselfs.telemetry import catalogue
from dieselfs.telemetry import socket as metrics_socket
from dieselfs.telemetry.registry import Family, Registry, Report
from dieselfs.telemetry.series import History, Window
from dieselfs.telemetry.socket import (
    HISTORY,
    SOCKETS_MAX,
    DaemonSocket,
    PublishedMetrics,
    harmless,
    histories,
    histories_of_nodes,
    is_for_all_users,
    node_sockets,
    of_nodes,
    publish,
    published,
)

ABOUT = {"component": "cache", "dataset": "d"}
HITS = Family("counter", "node_cache.hits", "Hits.")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "metrics"
    place.mkdir(mode=0o700)
    return place


def registry() -> Registry:
    metrics = Registry()
    metrics.declare(HITS).value = 3
    metrics.info("plans", "Plans.", lambda: [1])
    return metrics


async def read_while_published(folder: Path, metrics: Registry) -> list[tuple[int, Report]]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, PublishedMetrics(metrics, ABOUT), folder)
        while not (folder / f"{os.getpid()}.sock").exists():
            await trio.sleep(0.001)
        found = await trio.to_thread.run_sync(lambda: [*published(folder)])
        nursery.cancel_scope.cancel()
    return found


async def test_tools_get_what_a_daemon_counts_until_it_ends(folder: Path) -> None:
    ((process, report),) = await read_while_published(folder, registry())
    assert process == os.getpid() and report.about == ABOUT and report.infos == {"plans": [1]}
    assert report.total(HITS) == 3
    assert report.total(catalogue.PROCESS_CPU_S) > 0
    assert [*folder.iterdir()] == [] and [*published(folder)] == []


async def test_tools_get_the_history_of_a_daemon_that_keeps_one(folder: Path) -> None:
    metrics = Registry()
    metrics.counter("page_cache.hits", "Hits.").value = 5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, PublishedMetrics(metrics, ABOUT, History(metrics)), folder)
        while not (folder / f"{os.getpid()}.sock").exists():
            await trio.sleep(0.001)
        ((process, recorded),) = await trio.to_thread.run_sync(lambda: [*histories(folder)])
        reports = await trio.to_thread.run_sync(lambda: [*published(folder)])
        nursery.cancel_scope.cancel()
    assert process == os.getpid() and recorded.about == ABOUT and len(reports) == 1
    assert set(recorded.series("dieselfs_page_cache_hits_total")) == {5}


async def test_a_daemon_passes_on_what_the_other_nodes_of_its_job_say(folder: Path) -> None:
    here, there = (
        PublishedMetrics(registry(), ABOUT),
        PublishedMetrics(registry(), {"job": "j"}, History(registry())),
    )

    async def others(window: Window | None) -> dict[str, bytes]:
        content = there.report() if window is None else await there.recorded(window)
        return {"a": b"nonsense", "b": content, "c": b"[" * 100_000, "d": b"{}"}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, here, folder)
        while not (folder / f"{os.getpid()}.sock").exists():
            await trio.sleep(0.001)
        process = os.getpid()
        assert await trio.to_thread.run_sync(of_nodes, process, folder) == {}  # without a job
        here.others = others
        reports = await trio.to_thread.run_sync(of_nodes, process, folder)
        recorded = await trio.to_thread.run_sync(histories_of_nodes, process, (0.0, 1e10), folder)
        nursery.cancel_scope.cancel()
    assert reports.keys() == recorded.keys() == {"b"}
    assert reports["b"].about == recorded["b"].about == {"job": "j"}
    assert reports["b"].total(HITS) == 3
    assert of_nodes(process, folder) == {}  # it has ended


async def test_a_daemon_without_history_is_left_out(folder: Path) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, PublishedMetrics(registry(), ABOUT), folder)
        while not (folder / f"{os.getpid()}.sock").exists():
            await trio.sleep(0.001)
        assert await trio.to_thread.run_sync(lambda: [*histories(folder)]) == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "request_", [b"", b"nonsense" * 1000, HISTORY], ids=["nothing", "nonsense", "an open end"]
)
async def test_a_tool_that_does_not_end_its_request_is_answered(folder: Path, request_: bytes) -> None:
    def ask() -> bytes:
        with socket.socket(socket.AF_UNIX) as slow:
            slow.connect(str(folder / f"{os.getpid()}.sock"))
            slow.sendall(request_)
            return slow.recv(10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, PublishedMetrics(registry(), ABOUT), folder)
        while not (folder / f"{os.getpid()}.sock").exists():
            await trio.sleep(0.001)
        assert await trio.to_thread.run_sync(ask) == b'{"about": '
        nursery.cancel_scope.cancel()


async def test_a_metric_that_cannot_be_read_ends_no_daemon(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = registry()
    metrics.gauge("broken", "It fails.", lambda: 1 // 0)
    assert await read_while_published(folder, metrics) == []
    assert "metrics cannot be read" in caplog.text


async def test_a_tool_that_leaves_early_does_no_harm(folder: Path) -> None:
    metrics = registry()
    metrics.info("large", "More than a socket takes at once.", lambda: "x" * 1_000_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, PublishedMetrics(metrics, ABOUT), folder)
        while not (path := folder / f"{os.getpid()}.sock").exists():
            await trio.sleep(0.001)
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as hasty:
                hasty.connect(str(path))
        found = await trio.to_thread.run_sync(lambda: [*published(folder)])
        nursery.cancel_scope.cancel()
    assert len(found) == 1


async def test_a_socket_of_an_earlier_process_is_replaced(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / f"{os.getpid()}.sock"))
    (path,) = folder.iterdir()
    assert [*published(folder)] == [] and not path.exists()  # nobody listens
    path.touch()
    assert len(await read_while_published(folder, registry())) in (
        0,
        1,
    )  # the file may be read before it is replaced


async def test_a_daemon_without_a_private_folder_serves_all_the_same(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.chmod(0o755)
    await publish(PublishedMetrics(registry(), ABOUT), folder)
    assert "metrics are not published" in caplog.text
    with pytest.raises(AccessDenied):
        next(published(folder))


@pytest.mark.parametrize("answer", [b"", b"[]", b"{", b'{"about": 1, "x": 2}', b"x" * 100])
def test_a_daemon_that_answers_nonsense_is_left_out(
    folder: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_socket, "METRICS_BYTES_MAX", 50)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "7.sock"))
        listener.listen()

        async def both() -> list[tuple[int, Report]]:
            async def serve() -> None:
                connection, _ = await trio.to_thread.run_sync(listener.accept)
                with connection:
                    connection.sendall(answer)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                return await trio.to_thread.run_sync(lambda: [*published(folder)])
            raise AssertionError

        assert trio.run(both) == []


def test_a_daemon_that_hangs_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_socket, "METRICS_TIMEOUT_S", 0.01)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "7.sock"))
        listener.listen()
        assert [*published(folder)] == []


def test_texts_of_other_users_cannot_control_a_terminal() -> None:
    content = json.dumps(
        {"about": {"mountpoint": "/data\x1b[2J\x9b1A"}, "times_s": [1.5, None], "n": [["a\r"]]}
    )
    assert json.loads(harmless(content.encode())) == {
        "about": {"mountpoint": "/data\\x1b[2J\\x9b1A"},
        "times_s": [1.5, None],
        "n": [["a\\r"]],
    }
    for damaged in (b"", b"{", b"[" * 100_000):
        with pytest.raises(ValueError):
            harmless(damaged)


def test_no_daemon_has_run_yet(tmp_path: Path) -> None:
    assert [*published(tmp_path / "none")] == []


JOBS, TEMPORARY = "/jobs/*/dieselfs", "/tmp/dieselfs-*"
HANG_S = 10.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")


@pytest.fixture
def listening() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def metrics_folder(root: Path, place: str) -> Path:
    folder = root / place / "metrics"
    folder.mkdir(mode=0o700, parents=True)
    return folder


def listen(listening: ExitStack, path: Path) -> None:
    listener = listening.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(path))
    listener.listen()


def found(root: Path, *patterns: str) -> list[int]:
    return [each.process for each in node_sockets(patterns or (JOBS, TEMPORARY), root)]


def test_sockets_of_all_folders_are_found_and_can_be_reached(tmp_path: Path, listening: ExitStack) -> None:
    assert found(tmp_path) == []
    for number, place in enumerate(("jobs/1/dieselfs", "jobs/2/dieselfs", f"tmp/dieselfs-{os.getuid()}")):
        listen(listening, metrics_folder(tmp_path, place) / f"{number + 7}.sock")
    for name in ("x.sock", "07.sock", "7.txt"):
        listen(listening, tmp_path / "jobs/1/dieselfs/metrics" / name)
    (tmp_path / "jobs/1/dieselfs/metrics/5.sock").touch()  # no socket
    assert found(tmp_path) == [7, 8, 9]
    before = os.listdir("/proc/self/fd")
    for each in node_sockets((JOBS, TEMPORARY), tmp_path):
        with socket.socket(socket.AF_UNIX) as tool:
            tool.connect(each.path)
        assert each.user == os.getuid()
    assert os.listdir("/proc/self/fd") == before


def test_links_are_not_followed(tmp_path: Path, listening: ExitStack) -> None:
    elsewhere = metrics_folder(tmp_path, "elsewhere/dieselfs")
    listen(listening, elsewhere / "7.sock")
    (metrics_folder(tmp_path, "jobs/1/dieselfs") / "8.sock").symlink_to(elsewhere / "7.sock")
    for place in ("jobs/2/dieselfs", "jobs/3"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "jobs/2/dieselfs/metrics").symlink_to(elsewhere)
    (tmp_path / "jobs/3/dieselfs").symlink_to(elsewhere.parent)
    (tmp_path / "jobs/4").symlink_to(elsewhere.parent.parent)
    assert found(tmp_path) == []
    assert found(tmp_path, "/elsewhere/dieselfs") == [7]


def test_folders_that_others_can_enter_or_have_made_are_left_out(
    tmp_path: Path, listening: ExitStack
) -> None:
    folder = metrics_folder(tmp_path, "jobs/1/dieselfs")
    listen(listening, folder / "7.sock")
    folder.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    other = metrics_folder(tmp_path, f"tmp/dieselfs-{os.getuid() + 1}")  # in the name of another user
    listen(listening, other / "8.sock")
    assert found(tmp_path) == []


@needs_root
def test_folders_of_two_owners_are_left_out(tmp_path: Path, listening: ExitStack) -> None:
    folder = metrics_folder(tmp_path, "jobs/1/dieselfs")
    listen(listening, folder / "7.sock")
    for path in (tmp_path / "jobs/1", folder.parent, folder, folder / "7.sock"):
        assert found(tmp_path) == ([7] if path == tmp_path / "jobs/1" else [])
        os.chown(path, 1234, 1234)
    assert [each.user for each in node_sockets((JOBS,), tmp_path)] == [1234]
    os.chown(folder.parent, 1235, 1235)
    assert found(tmp_path) == []


def test_a_folder_with_too_many_sockets_takes_no_longer(tmp_path: Path) -> None:
    folder = metrics_folder(tmp_path, "jobs/1/dieselfs")
    for number in range(SOCKETS_MAX + 10):
        os.mknod(folder / f"{number + 1}.sock", 0o140600)
    assert len(found(tmp_path)) == SOCKETS_MAX


@contextmanager
def hanging_mount(place: Path) -> Iterator[None]:
    """A file system of FUSE that answers nothing, until the end of the block or HANG_S."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40700,user_id=0,group_id=0,allow_other"
    command = ["mount", "--internal-only", "-t", "fuse", "-o", options, "hanging", str(place)]
    mounted = subprocess.run(command, pass_fds=[device], capture_output=True, check=False)
    if mounted.returncode != 0:
        os.close(device)
        pytest.skip(f"cannot mount here: {mounted.stderr.decode()}")
    release = threading.Timer(HANG_S, os.close, [device])
    release.start()
    try:
        yield
        assert release.is_alive(), "it was blocked by a file system that does not answer"
    finally:
        if release.is_alive():
            release.cancel()
            os.close(device)
        subprocess.run(["umount", "--internal-only", "--lazy", str(place)], check=True)


@needs_root
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs /dev/fuse")
@pytest.mark.parametrize("place", ["jobs/1", "jobs/1/dieselfs", "jobs/1/dieselfs/metrics"])
def test_a_file_system_of_a_user_blocks_nobody(tmp_path: Path, place: str) -> None:
    metrics_folder(tmp_path, "jobs/1/dieselfs")
    with hanging_mount(tmp_path / place):
        assert found(tmp_path) == []


def test_an_own_folder_of_sockets_keeps_daemons_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for user, runtime, is_for_all in (
        (0, None, True),
        (0, "/run/user/0", True),
        (0, "/run", True),
        (0, "/scratch", False),
        (7, "/run/user/7", False),
    ):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        monkeypatch.setattr(os, "getuid", lambda user=user: user)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        if runtime is not None:
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert is_for_all_users() == is_for_all


SERVE = """
import json, os, sys, socket
listener = socket.socket(socket.AF_UNIX)
path = sys.argv[1] + "/" + (sys.argv[2] or str(os.getpid())) + ".sock"
listener.bind(path)
listener.listen()
print(flush=True)
while True:
    connection, _ = listener.accept()
    with connection:
        while connection.recv(100):
            pass
        connection.sendall(json.dumps({"about": {"component": "mount"}, "families": []}).encode())
"""


@contextmanager
def daemon_of(user: int, folder: Path, name: str = "") -> Iterator[int]:
    command = ["python3", "-c", SERVE, str(folder), name]
    with subprocess.Popen(command, user=user, stdout=subprocess.PIPE) as daemon:
        try:
            assert daemon.stdout is not None and daemon.stdout.readline() == b"\n"
            yield daemon.pid
        finally:
            daemon.kill()


@needs_root
def test_root_hears_daemons_of_others_that_say_who_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`1`: in the name of another process."""
    folder = metrics_folder(tmp_path, "jobs/1/dieselfs")
    for path in (tmp_path / "jobs/1", folder.parent, folder):
        os.chown(path, 1234, 1234)

    def sockets() -> Iterator[DaemonSocket]:
        yield from node_sockets((JOBS,), tmp_path)

    monkeypatch.setattr(metrics_socket, "node_sockets", sockets)
    monkeypatch.setattr(metrics_socket, "is_for_all_users", lambda: True)
    # The daemons are processes: beside others, one may have no processor for longer than a tool waits.
    monkeypatch.setattr(metrics_socket, "METRICS_TIMEOUT_S", HANG_S)
    monkeypatch.chdir(folder)  # the daemons may not enter the folders above
    with daemon_of(1234, Path()) as process, daemon_of(1234, Path(), "1"):
        assert [each for each, _ in published()] == [process]
