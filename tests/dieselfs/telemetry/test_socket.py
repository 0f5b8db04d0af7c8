"""Daemons publish over real sockets, and tools find those that live."""

import json
import os
import socket
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
    Publication,
    harmless,
    histories,
    histories_of_nodes,
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
        nursery.start_soon(publish, Publication(metrics, ABOUT), folder)
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
        nursery.start_soon(publish, Publication(metrics, ABOUT, History(metrics)), folder)
        while not (folder / f"{os.getpid()}.sock").exists():
            await trio.sleep(0.001)
        ((process, recorded),) = await trio.to_thread.run_sync(lambda: [*histories(folder)])
        reports = await trio.to_thread.run_sync(lambda: [*published(folder)])
        nursery.cancel_scope.cancel()
    assert process == os.getpid() and recorded.about == ABOUT and len(reports) == 1
    assert set(recorded.series("dieselfs_page_cache_hits_total")) == {5}


async def test_a_daemon_passes_on_what_the_other_nodes_of_its_job_say(folder: Path) -> None:
    here, there = Publication(registry(), ABOUT), Publication(registry(), {"job": "j"}, History(registry()))

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
        nursery.start_soon(publish, Publication(registry(), ABOUT), folder)
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
        nursery.start_soon(publish, Publication(registry(), ABOUT), folder)
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
        nursery.start_soon(publish, Publication(metrics, ABOUT), folder)
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
    await publish(Publication(registry(), ABOUT), folder)
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
