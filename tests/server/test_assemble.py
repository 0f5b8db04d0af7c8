"""Work in the background: repeated, rarely if it is slow, also after an error, and once more at the end."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from dieselfs.errors import AccessDenied, Unavailable
from dieselfs.etcd.client import Etcd, EtcdAccess
from dieselfs.etcd.keys import CONFIG_PREFIX, SERVERS_PREFIX, decode_servers, server_key
from dieselfs.limits import SERVER_LEASE_S
from dieselfs.net.address import TcpAddress
from dieselfs_server.assemble import INTERVAL_S, SHARE_MAX, at_end, pause_s, repeat
from dieselfs_server.registration import stay_registered
from tests.support.etcd import RunningEtcd, running_etcd
from tests.support.server import RunningServer, start_server


def test_work_is_repeated_also_after_errors(caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []

    def work() -> None:
        events.append("work")
        raise Unavailable("away") if len(events) == 2 else RuntimeError("a fault")

    async def sleep(seconds: float) -> None:
        assert seconds >= INTERVAL_S
        events.append("pause")
        if len(events) == 5:
            scope.cancel()
        await trio.lowlevel.checkpoint()

    async def run() -> None:
        with scope:
            await repeat(work, "the figures are late", sleep)

    scope = trio.CancelScope()
    trio.run(run)
    assert events == ["pause", "work", "pause", "work", "pause"]
    assert "the figures are late: away" in caplog.text and "a fault" in caplog.text


def test_slow_work_takes_a_bounded_share_of_the_time() -> None:
    assert pause_s(0.1) == INTERVAL_S
    assert 30 / (30 + pause_s(30)) < SHARE_MAX


def test_the_end_waits_for_work_also_if_cancelled_but_not_for_ever() -> None:
    done: list[str] = []
    clock = trio.testing.MockClock()

    async def run() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await at_end(lambda: done.append("quick"), "quick")
            clock.autojump_threshold = 0  # not before: it does not wait for threads
            await at_end(lambda: trio.from_thread.run(trio.sleep_forever), "endless")
            done.append("ended")

    trio.run(run, clock=clock)
    assert done == ["quick", "ended"]


LEASE_S = 2
WAIT_S = SERVER_LEASE_S + 10.0
A = TcpAddress("10.0.0.5", 7070)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[RunningEtcd]:
    with running_etcd(tmp_path / "etcd") as running:
        yield running


def registered(etcd: RunningEtcd) -> list[str]:
    return [str(address) for address in decode_servers(etcd.client().values(SERVERS_PREFIX))]


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(WAIT_S):
        while not await trio.to_thread.run_sync(is_so):
            await trio.sleep(0.05)


class NotingEtcd(Etcd):
    """Writes down the leases that it is granted."""

    def __init__(self, etcd: RunningEtcd) -> None:
        super().__init__(etcd.address, EtcdAccess())
        self.leases: list[int] = []

    def grant_lease(self, duration_s: int) -> int:
        self.leases.append(super().grant_lease(duration_s))
        return self.leases[-1]


async def leases_of_an_entry(etcd: RunningEtcd, lease_s: int) -> int:
    """How many it took to keep an entry for longer than one lasts that nobody keeps alive."""
    noting = NotingEtcd(etcd)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stay_registered, noting, [A], lease_s)
        await until(lambda: registered(etcd) == [str(A)])
        await trio.sleep(2 * lease_s)
        await until(lambda: registered(etcd) == [str(A)])
        nursery.cancel_scope.cancel()
    assert registered(etcd) == []  # taken back at once, not by the lease
    return len(noting.leases)


async def test_an_entry_lives_as_long_as_its_server(etcd: RunningEtcd) -> None:
    for lease_s in (LEASE_S, 4 * LEASE_S, 16 * LEASE_S):  # a machine that stalls gets a longer one
        leases = await leases_of_an_entry(etcd, lease_s)
        if leases == 1:
            break
    assert leases == 1


async def test_it_comes_back_after_etcd_was_away(etcd: RunningEtcd, caplog: pytest.LogCaptureFixture) -> None:
    etcd.kill()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stay_registered, etcd.client(), [A], LEASE_S)
        await until(lambda: "not registered" in caplog.text)
        await trio.to_thread.run_sync(etcd.start)
        await until(lambda: registered(etcd) == [str(A)])
        nursery.cancel_scope.cancel()
    assert caplog.text.count("not registered") == 1


async def test_it_comes_back_when_its_lease_was_lost(etcd: RunningEtcd) -> None:
    noting = NotingEtcd(etcd)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stay_registered, noting, [A], LEASE_S)
        await until(lambda: registered(etcd) == [str(A)])
        etcd.client().revoke(noting.leases[0])  # and the entry with it
        await until(lambda: len(noting.leases) > 1 and registered(etcd) == [str(A)])
        nursery.cancel_scope.cancel()


def start_registered(folder: Path, etcd: RunningEtcd, options: Sequence[str] = ()) -> RunningServer:
    return start_server(folder, ["--etcd", str(etcd.address), *options])


def wait_until(is_so: Callable[[], bool]) -> float:
    started_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - started_s < WAIT_S
        time.sleep(0.05)
    return time.monotonic() - started_s


def test_servers_that_stop_and_servers_that_die(etcd: RunningEtcd, tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [start_registered(tmp_path / name, etcd) for name in "abc"]
        for server in servers:
            stack.callback(server.kill)
        wait_until(lambda: set(registered(etcd)) == {server.tcp for server in servers})
        stopped, killed, alive = servers
        assert stopped.stop() == 0
        assert stopped.tcp not in registered(etcd)
        killed.kill()
        gone_s = wait_until(lambda: registered(etcd) == [alive.tcp])
        assert gone_s < SERVER_LEASE_S + 8  # etcd looks every half second, and this machine may be busy
        etcd.kill()
        client = alive.client()
        assert client.datasets() == []  # goes on without etcd
        client.close()
        assert alive.stop() == 0


def test_users_with_no_more_rights_than_they_need(tmp_path: Path) -> None:
    """Those that docs/guide/several-servers.md advises."""
    password = tmp_path / "password"
    password.write_text("word")
    password.chmod(0o600)
    with running_etcd(tmp_path / "etcd") as etcd, ExitStack() as stack:
        etcd.client().put(f"{CONFIG_PREFIX}state", str(tmp_path / "state"))
        etcd.require_users(
            ("server", "word", {CONFIG_PREFIX: "READ", SERVERS_PREFIX: "READWRITE"}),
            ("client", "word", {SERVERS_PREFIX: "READ"}),
        )
        access = ("--etcd-user", "server", "--etcd-password-file", str(password))
        server = start_registered(tmp_path / "server", etcd, access)
        stack.callback(server.kill)
        client = etcd.client(EtcdAccess("client", str(password)))
        wait_until(lambda: decode_servers(client.values(SERVERS_PREFIX)) != ())
        with pytest.raises(AccessDenied):
            client.put(server_key("10.0.0.6:7070"), "x")
        assert server.stop() == 0
        assert client.values(SERVERS_PREFIX) == {}
