"""The network that the tests of the cluster run on: it carries, slows, loses, cuts, heals, and leaves nothing."""

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from lab import namespace as namespaces
from lab.network import Host, Network, sweep
from lab.server import running_server
from tests.support.dlcmd import COMMAND

ARRIVAL_TIMEOUT_S = 60.0
SILENCE_S = 0.3
SLEEP = ["sleep", "1000"]


@contextmanager
def connection(source: Host, target: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a TCP connection, of `source` and of `target`."""
    with target.inside():
        listening = socket.create_server((target.address, 0))
    with listening, source.inside():
        near = socket.create_connection(listening.getsockname(), ARRIVAL_TIMEOUT_S)
        with near, closing(listening.accept()[0]) as far:
            far.settimeout(ARRIVAL_TIMEOUT_S)
            yield near, far


def is_refused(listening: socket.socket) -> bool:
    """Whether there is nobody at its address, from where we are."""
    with socket.socket() as stranger:
        return stranger.connect_ex(listening.getsockname()) == errno.ECONNREFUSED


def is_silent(receiving: socket.socket) -> bool:
    receiving.settimeout(SILENCE_S)
    try:
        receiving.recv(1)
        return False
    except TimeoutError:
        return True
    finally:
        receiving.settimeout(ARRIVAL_TIMEOUT_S)


def test_hosts_reach_each_other_under_their_names_and_nobody_else(net: Network) -> None:
    one, two = net.host("one"), net.host("two")
    with connection(one, two) as (near, far):
        near.sendall(b"hello")
        assert far.recv(5) == b"hello"
        assert far.getpeername()[0] == one.address != two.address == far.getsockname()[0]
    assert [one.run(["hostname"]), two.run(["hostname"])] == ["one\n", "two\n"]
    outside = socket.gethostname()
    with one.inside(), two.inside():
        assert socket.gethostname() == "two"
    assert socket.gethostname() == outside != "one"
    with socket.create_server(("127.0.0.1", 0)) as listening, one.inside():
        assert is_refused(listening)


def test_a_delayed_link_adds_to_each_round_trip_and_carries_all_bytes(net: Network) -> None:
    one, two = net.host("one", round_trip_s=0.05), net.host("two")
    with connection(one, two) as (near, far):
        started_s = time.monotonic()
        near.sendall(b"?")
        far.sendall(far.recv(1))
        assert near.recv(1) == b"?"
        assert time.monotonic() - started_s >= 0.05
        content, received = os.urandom(4 << 20), bytearray()
        sender = Thread(target=near.sendall, args=[content])
        sender.start()
        while len(received) < len(content):
            received += far.recv(1 << 20)
        sender.join()
        assert received == content


def test_two_networks_do_not_meet(net: Network) -> None:
    with Network() as other:
        one, same_address = net.host("one"), other.host("one")
        assert one.address == same_address.address
        with one.inside(), socket.create_server((one.address, 0)) as listening:
            assert not is_refused(listening)
            with same_address.inside():
                assert is_refused(listening)


def test_programs_of_a_host_have_a_home_of_their_own(net: Network) -> None:
    one, two = net.host("one"), net.host("two")
    script = ["sh", "-c", "echo $HOME $XDG_RUNTIME_DIR $XDG_CACHE_HOME; touch $HOME/a; ls $HOME"]
    said = [host.run(script) for host in (one, two)]
    assert said[0] != said[1] and all(text.endswith("\na\n") for text in said)
    assert all(str(host.folder) in text for host, text in zip((one, two), said, strict=True))
    with pytest.raises(AssertionError, match="nonsense"):
        one.run(["sh", "-c", "echo nonsense >&2; exit 3"])
    one.run(["sh", "-c", "exit 3"], exit_code=3)


def test_a_cut_is_silent_and_heals(net: Network) -> None:
    one, two, three = (net.host(name) for name in ("one", "two", "three"))
    with connection(one, two) as (near, far), connection(one, three) as (other_near, other_far):
        net.cut(one, two)
        near.sendall(b"x")
        far.sendall(b"y")
        assert is_silent(far) and is_silent(near)
        other_near.sendall(b"z")
        assert other_far.recv(1) == b"z"
        net.heal(two)
        assert far.recv(1) == b"x" and near.recv(1) == b"y"


def test_a_host_that_is_cut_off_reaches_nobody_until_it_is_back(net: Network) -> None:
    one, two, three = (net.host(name) for name in ("one", "two", "three"))
    with connection(one, two) as (to_two, two_end), connection(one, three) as (to_three, three_end):
        net.cut_off(one)
        to_two.sendall(b"2")
        to_three.sendall(b"3")
        assert is_silent(two_end) and is_silent(three_end)
        net.heal(one, two)
        assert two_end.recv(1) == b"2"
        assert is_silent(three_end)
        net.heal()
        assert three_end.recv(1) == b"3"


def test_a_cut_may_be_one_way(net: Network) -> None:
    one, two = net.host("one"), net.host("two")
    with connection(one, two) as (near, far):
        net.lose(one, two, 1.0)
        near.sendall(b"x")
        far.sendall(b"y")
        assert near.recv(1) == b"y"
        assert is_silent(far)


def test_a_share_of_the_packets_is_lost(net: Network) -> None:
    one, two = net.host("one"), net.host("two")
    with two.inside():
        receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiving.bind((two.address, 0))
        receiving.settimeout(ARRIVAL_TIMEOUT_S)
    with receiving, one.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.connect(receiving.getsockname())
        sending.send(b"first")  # both know now where the other is
        assert receiving.recv(8) == b"first"
        net.lose(one, two, 0.5)
        for number in range(100):
            sending.send(b"%d" % number)
        net.heal()
        sending.send(b"last")
        arrived = iter(lambda: receiving.recv(8), b"last")
        assert 15 < len(list(arrived)) < 85


@pytest.mark.parametrize("is_slow_host_receiving", [False, True])
def test_a_rate_holds_both_ways(net: Network, is_slow_host_receiving: bool) -> None:
    slow, quick = net.host("slow"), net.host("quick")
    rate_bytes_per_s, length_bytes = 4_000_000, 2_000_000
    net.rate(slow, rate_bytes_per_s)
    with connection(slow, quick) as (near, far):
        source, target = (far, near) if is_slow_host_receiving else (near, far)
        began_s = time.monotonic()
        received = carried(source, target, length_bytes)
        took_s = time.monotonic() - began_s
        assert received == length_bytes
        assert took_s > 0.7 * length_bytes / rate_bytes_per_s
        net.rate(slow, None)
        assert carried(source, target, length_bytes) == length_bytes


def carried(source: socket.socket, target: socket.socket, length_bytes: int) -> int:
    """Send so many bytes, and count those that come."""
    sender = Thread(target=source.sendall, args=[bytes(length_bytes)])
    sender.start()
    received = 0
    while received < length_bytes:
        received += len(target.recv(1 << 16))
    sender.join()
    return received


def test_a_host_is_stopped_and_goes_on(net: Network) -> None:
    host = net.host("one")
    process = host.start(["cat"], stdin=subprocess.PIPE)
    assert host.processes() == [process.pid]
    host.stop()
    namespaces.wait_for(lambda: state_of(process.pid) == "T", "it is stopped")
    host.resume()
    process.communicate(b"word", ARRIVAL_TIMEOUT_S)
    assert host.log() == "word"


def state_of(process: int) -> str:
    """As proc(5) has it; empty if there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""


def test_a_host_is_killed_with_all_that_runs_there(net: Network) -> None:
    one, two = net.host("one"), net.host("two")
    alone = one.start(SLEEP)
    one.kill(alone)
    assert alone.returncode == -signal.SIGKILL
    one.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"])  # nobody's child
    one.start(SLEEP)
    kept = two.start(SLEEP)
    assert len(one.processes()) == 2
    one.kill()
    assert one.processes() == []
    assert two.processes() == [kept.pid]


def test_the_servers_of_other_tests_run_on_a_host(net: Network) -> None:
    storage, node = net.host("storage"), net.host("node")
    address = f"tcp://{storage.address}:7070"
    with ExitStack() as stack:
        with storage.inside():
            running = running_server(storage.folder / "server", ["--listen", address])
            server = stack.enter_context(running)
        key = server.user("ada", all_datasets="admin")
        assert "there are no datasets yet" in node.run(
            [*COMMAND, "--server", address, "--key-file", key, "ls"]
        )


def traces(name: str) -> list[str]:
    """What a network has left on this machine."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    folders = [path.name for path in Path(tempfile.gettempdir()).iterdir() if path.name == name]
    return [
        *namespaces.names(f"{name}-"),
        *folders,
        *(line for line in links.splitlines() if "switch" in line),
    ]


def test_nothing_is_left(net: Network) -> None:
    with pytest.raises(ZeroDivisionError), Network() as other:
        one = other.host("one")
        other.host("two")
        other.rate(one, 1_000_000)
        other.cut_off(one)
        process = one.start(SLEEP)
        one.stop()
        assert traces(other.name)
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGKILL
    assert traces(other.name) == []


LEFT_BEHIND = """
import os, signal
from lab.network import Network
network = Network()
network.__enter__()
print(network.name, network.host("one").start(["sleep", "1000"]).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_test_left_is_swept(net: Network) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND], env=environment, capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    name, process = killed.stdout.split()
    assert len(traces(name)) == 3  # a host, the switch, a folder
    namespaces.wait_for(lambda: state_of(int(process)) == "S", "it sleeps")
    sweep()
    assert traces(name) == []
    assert state_of(int(process)) in "Z"  # until its new parent has waited for it
    assert traces(net.name)  # whose owner lives
