"""Which server is next: whose turn it is, who is avoided, how long a call goes on."""

import sys
from collections import Counter
from collections.abc import Mapping
from threading import Event

import pytest

from dieselfs.errors import AccessDenied, DieselfsError, InvalidInput, Unavailable
from dieselfs.etcd.client import EtcdAccess
from dieselfs.etcd.keys import encode_server
from dieselfs.limits import (
    FAILOVER_TIMEOUT_S,
    READ_PATIENCE_S,
    SERVER_AVOIDED_S,
    SERVERS_REFRESH_S,
    VERB_PATIENCE_S,
)
from dieselfs.net.address import Address, EtcdAddress, ServerList, TcpAddress
from dieselfs.rpc.endpoints import (
    SERVER_RETRY_S,
    Endpoints,
    ServerDirectory,
    Tries,
    open_endpoints,
)

A, B, C = (TcpAddress(name, 7070) for name in "abc")
SERVERS = (A, B, C)
GONE = Unavailable("gone")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Registry:
    """etcd, as far as its readers know."""

    def __init__(self, *servers: TcpAddress) -> None:
        self.servers = servers
        self.error: DieselfsError | None = None
        self.reads = 0

    def read(self) -> Mapping[str, bytes]:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return {str(server): encode_server([server]) for server in self.servers}


@pytest.mark.parametrize(
    ("turn", "tried", "avoided", "server"),
    [
        (0, [], {}, A),
        (4, [], {}, B),
        (0, [A], {}, B),
        (0, [], {A: 1.0}, B),
        (2, [], {C: 1.0, A: 2.0}, B),
        (0, [B], {A: 2.0, C: 1.0}, C),
        (0, [], {A: 3.0, B: 2.0, C: 1.0}, C),
        (1, [], {A: 0.0, B: 0.0, C: 0.0}, B),  # long over
        (0, [A, B, C], {}, None),
    ],
)
def test_whose_turn_it_is(
    turn: int, tried: list[TcpAddress], avoided: dict[Address, float], server: TcpAddress | None
) -> None:
    clock = Clock()
    endpoints = Endpoints(ServerDirectory(SERVERS), turn, clock)
    for one, until_s in avoided.items():
        clock.now_s = until_s - SERVER_AVOIDED_S
        endpoints.avoid(one)
    clock.now_s = 0.5
    assert endpoints.choose(tried) == server


def test_connections_of_one_process_and_of_many_go_to_all_servers() -> None:
    one = Endpoints(ServerDirectory(SERVERS), start=7)
    assert Counter(one.choose(()) for _ in range(30)) == {A: 10, B: 10, C: 10}
    first = Counter(Endpoints(ServerDirectory(SERVERS), start).choose(()) for start in range(30))
    assert first == {A: 10, B: 10, C: 10}


def test_where_a_process_begins_is_random_also_for_its_forks() -> None:
    many = tuple(TcpAddress("h", 1 + number) for number in range(1000))
    endpoints = Endpoints(ServerDirectory(many))
    firsts = {Endpoints(ServerDirectory(many)).choose(()) for _ in range(20)}
    forks = {endpoints.forked().choose(()) for _ in range(20)}
    assert len(firsts) > 10 and len(forks) > 10


def test_a_server_that_failed_is_avoided_for_a_while() -> None:
    clock = Clock()
    endpoints = Endpoints(ServerDirectory(SERVERS), 0, clock)
    endpoints.avoid(A)
    assert A not in [endpoints.choose(()) for _ in range(9)]
    clock.now_s += SERVER_AVOIDED_S
    assert A in [endpoints.choose(()) for _ in range(3)]


def test_a_call_tries_each_server_once() -> None:
    endpoints = Endpoints(ServerDirectory(SERVERS), 1, Clock())
    tries = endpoints.tries()
    seen = []
    for number in range(3):
        seen.append(tries.next())
        tries.failed(seen[-1], Unavailable(f"failure {number}"))
    assert seen == [B, C, A]
    with pytest.raises(Unavailable, match="none of 3 servers answers; the last one: failure 2"):
        tries.next()
    assert (endpoints.failures, endpoints.retries) == (3, 2)


def test_of_one_server_the_error_is_its_own() -> None:
    tries = Endpoints(ServerDirectory([A])).tries()
    tries.failed(tries.next(), GONE, is_final=False)
    assert tries.has_failed
    tries.failed(tries.next(), GONE)
    with pytest.raises(Unavailable) as caught:
        tries.next()
    assert caught.value is GONE


def test_the_server_of_a_connection_that_broke_is_tried_once_more() -> None:
    """Of a server with several processes, one may have died. One that refuses, or is silent, has not."""
    tries = Endpoints(ServerDirectory([A])).tries()
    for error in (broken(ConnectionResetError()), broken(BrokenPipeError())):
        assert tries.next() == A
        tries.failed(A, error)
    with pytest.raises(Unavailable):
        tries.next()
    for cause in (ConnectionRefusedError(), TimeoutError()):
        tries = Endpoints(ServerDirectory([A])).tries()
        tries.failed(tries.next(), broken(cause))
        with pytest.raises(Unavailable):
            tries.next()


def broken(cause: OSError) -> Unavailable:
    """As of a handshake without TLS: its cause is that of another error."""
    inner, outer = Unavailable("lost"), Unavailable("cannot reach it")
    inner.__cause__, outer.__cause__ = cause, inner
    return outer


def test_a_call_goes_on_for_a_bounded_time_but_tries_one_server_in_any_case() -> None:
    clock = Clock()
    tries = Endpoints(ServerDirectory(SERVERS), 0, clock).tries()
    clock.now_s += FAILOVER_TIMEOUT_S
    tries.failed(tries.next(), GONE)
    with pytest.raises(Unavailable) as caught:
        tries.next()
    assert caught.value is GONE


def test_a_server_is_given_up_early_only_for_one_that_may_do_better() -> None:
    clock = Clock()
    endpoints = Endpoints(ServerDirectory([A, B]), 0, clock)
    tries = endpoints.tries()
    assert tries.has_other(A) and tries.has_other(B)
    tries.failed(A, GONE)
    assert not tries.has_other(B)
    other_call = endpoints.tries()
    assert not other_call.has_other(B)  # A is avoided
    clock.now_s += SERVER_AVOIDED_S
    assert other_call.has_other(B) and not tries.has_other(B)
    assert not Endpoints(ServerDirectory([A])).tries().has_other(A)


def test_whether_there_are_others_is_known_without_asking_etcd() -> None:
    clock, registry = Clock(), Registry(A, B)
    endpoints = Endpoints(ServerDirectory((), registry.read, "etcd://x", clock), 0, clock)
    assert endpoints.choose(()) == A
    clock.now_s += SERVERS_REFRESH_S
    assert endpoints.tries().has_other(A)
    assert registry.reads == 1


def test_a_patient_call_begins_again_until_its_time_is_over() -> None:
    clock = Clock()
    pauses_s: list[float] = []
    tries = Tries(Endpoints(ServerDirectory([A, B]), 0, clock), is_patient=True, pause=pauses_s.append)
    for number in range(3):
        tried = [tries.next()]
        tries.failed(tried[0], GONE)
        tried.append(tries.next())
        tries.failed(tried[1], GONE)
        assert set(tried) == {A, B}
        assert pauses_s == [SERVER_RETRY_S] * number
    clock.now_s += READ_PATIENCE_S
    with pytest.raises(Unavailable, match="gone"):
        tries.next()


def test_how_long_a_patient_call_goes_on_may_be_set_also_for_forks() -> None:
    clock = Clock()
    endpoints = Endpoints(ServerDirectory([A]), 0, clock, VERB_PATIENCE_S)
    tries = [each.tries(is_patient=True) for each in (endpoints, endpoints.forked())]
    for each in tries:
        each.failed(each.next(), GONE)
    clock.now_s += VERB_PATIENCE_S
    for each in tries:
        with pytest.raises(Unavailable, match="gone"):
            each.next()


def test_etcd_is_asked_again_when_the_list_is_old() -> None:
    clock, registry = Clock(), Registry(A)
    source = ServerDirectory((), registry.read, "etcd://x", clock)
    assert (source.servers(), source.servers(), registry.reads) == ((A,), (A,), 1)
    registry.servers = (B, C)
    clock.now_s += SERVERS_REFRESH_S
    assert source.servers() == (B, C)


def test_nobody_waits_long_for_etcd_while_there_is_a_list() -> None:
    clock, registry, is_reachable = Clock(), Registry(A), Event()

    def read() -> Mapping[str, bytes]:
        found = registry.read()
        is_reachable.wait()
        return found

    source = ServerDirectory((A,), read, "etcd://x", clock, patience_s=0.01)
    registry.servers = (B,)
    clock.now_s += SERVERS_REFRESH_S
    assert (source.servers(), source.servers(), registry.reads) == ((A,), (A,), 1)
    is_reachable.set()


@pytest.mark.parametrize("error", [None, GONE, AccessDenied("not any more")])
def test_the_last_list_stays_while_etcd_is_away_or_empty(error: DieselfsError | None) -> None:
    clock, registry = Clock(), Registry(A)
    source = ServerDirectory((), registry.read, "etcd://x", clock)
    source.servers()
    registry.servers, registry.error = (), error
    clock.now_s += SERVERS_REFRESH_S
    assert (source.servers(), source.servers(), registry.reads) == ((A,), (A,), 2)
    assert source.forked().servers() == (A,)


def test_without_any_list_the_reason_is_told_and_etcd_asked_again_at_once() -> None:
    registry = Registry()
    source = ServerDirectory((), registry.read, "etcd://x", Clock())
    with pytest.raises(Unavailable, match="no server is registered at etcd://x"):
        source.servers()
    registry.error = GONE
    with pytest.raises(Unavailable, match="gone"):
        source.servers()
    registry.error, registry.servers = None, (A,)
    assert source.servers() == (A,)


def test_what_the_address_says_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_endpoints(A, EtcdAccess()).choose(()) == A
    assert open_endpoints(ServerList((A, B)), EtcdAccess()).choose([A]) == B
    monkeypatch.setitem(sys.modules, "pyetcd", None)
    assert open_endpoints(A, EtcdAccess()).choose(()) == A  # etcd's package is needed only for etcd
    with pytest.raises(InvalidInput, match="pip install"):
        open_endpoints(EtcdAddress((A,)), EtcdAccess())
