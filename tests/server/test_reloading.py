"""Settings that a server takes again on SIGHUP: with one process and with workers."""

import logging
import signal
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.process.launch import ProcessHandle
from dieselfs.rpc.client import ServerClient
from dieselfs_server.reloading import LIVE_BYTES_MAX, load_again
from dieselfs_server.settings import ServerSettings
from tests.server.test_attach_rights import attach
from tests.server.workers.test_parent import WAIT_S, until, workers_of
from tests.support.server import RunningServer, running_server

SETTINGS = ServerSettings([], "posix:///chunks", "sqlite:///metadata.db", Path("/state"), is_new=True)


def test_what_can_change_is_taken_and_what_cannot_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    found = replace(SETTINGS, is_new=False, log_level="debug", attach_roots=["/data"], store="posix:///other")
    taken = load_again(lambda: found, SETTINGS)
    assert taken == replace(SETTINGS, log_level="debug", attach_roots=["/data"])
    told, warned = caplog.messages
    assert told.endswith("changed: attach_roots, log_level")
    assert warned.endswith("need a restart: store")


def refused() -> ServerSettings:
    raise InvalidInput("configuration file server.toml: wrong")


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (refused, "server.toml: wrong"),
        (lambda: replace(SETTINGS, tls_certificate="/none.pem", tls_key="/none.key"), "/none.pem"),
        (lambda: replace(SETTINGS, attach_roots=["/" + "a" * LIVE_BYTES_MAX]), "attach_roots"),
    ],
)
def test_settings_that_cannot_be_used_change_nothing(
    load: Callable[[], ServerSettings], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_again(load, SETTINGS) is None
    (line,) = caplog.messages
    assert "stay as they were" in line and reason in line


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_takes_settings_on_a_signal_and_keeps_its_clients(tmp_path: Path, workers: str) -> None:
    config = tmp_path / "server.toml"
    config.write_text("")
    with running_server(tmp_path / "server", ("--config", str(config), "--workers", workers)) as server:
        key = server.user("alice", all_datasets="admin")
        clients = [server.client(key) for _ in range(int(workers))]
        for client in clients:
            client.datasets()
        assert "list_datasets" not in server.log()

        config.write_text('log_level = "debug"\nlarge_reads = "4"\n')
        reload(server, "changed: log_level")
        assert "need a restart: large_reads" in server.log()
        for client in clients:  # each over its connection, to a worker of its own
            logged = server.log().count("method=list_datasets")
            until(partial(is_logged, client, server, logged))

        config.write_text("log_level = 3\n")
        reload(server, "stay as they were: configuration file")
        errors = [line for line in server.log().splitlines() if " ERROR " in line]
        assert len(errors) == 1 and str(config) in errors[0]
        for client in clients:
            client.datasets()
            client.close()
        assert server.stop() == 0


def is_logged(client: ServerClient, server: RunningServer, before: int) -> bool:
    client.datasets()
    return server.log().count("method=list_datasets") > before


def test_all_workers_have_new_settings_and_those_that_start_later_too(tmp_path: Path) -> None:
    config, source = tmp_path / "server.toml", tmp_path / "source"
    config.write_text("")
    source.write_bytes(bytes(100))
    with running_server(tmp_path / "server", ("--config", str(config), "--workers", "2")) as server:
        key = server.user("alice", all_datasets="admin")
        with closing(server.client(key)) as client:
            client.create_dataset("pets")
            with pytest.raises(AccessDenied):
                attach(client, "pets", source)
        config.write_text(f'attach_roots = "{tmp_path}"\n')
        reload(server, "changed: attach_roots")
        assert attach_over_each(server, key, source) == 2
        for worker in workers_of(server):
            killed = ProcessHandle(worker)
            killed.send(signal.SIGKILL)
            assert killed.wait(WAIT_S)
            until(lambda: len(workers_of(server)) == 2)
        assert attach_over_each(server, key, source) == 2


def attach_over_each(server: RunningServer, key: Path, source: Path) -> int:
    """Over a connection to each worker; how many have attached."""
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(server.client(key))) for _ in range(2)]
        for client in clients:
            client.datasets()  # connects
        for client in clients:
            until(partial(has_attached, client, source))
        return len(clients)


def has_attached(client: ServerClient, source: Path) -> bool:
    try:
        attach(client, "pets", source)
    except AccessDenied:  # the worker is about to take the settings
        return False
    return True


def reload(server: RunningServer, expected: str) -> None:
    """Send the signal, and wait for a further line with this text in the log."""
    before = server.log().count(expected)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: server.log().count(expected) > before)
