"""The checks of `dlcmd doctor` on servers and peers: what is found, and what to change. This module opens
connections.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

from dieselfs import __version__
from dieselfs.errors import AccessDenied, DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import CHUNK_AHEAD_S_MAX
from dieselfs.net.address import Address, TcpAddress
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import FAILURE, OK, WARNING, CheckRecord
from dieselfs.settings.table import OFF
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Report
from dieselfs.telemetry.socket import published
from dieselfs.units import count, format_duration
from dieselfs_tools.cli.session import Session

CLOCK_OFF_S = 5.0
"""A larger difference makes times in logs, and the ends of keys, hard to compare."""


def clock(server_s: float, asked_s: float, answered_s: float) -> CheckRecord:
    """The clock of this machine when it asked and when it had the answer, and that of the server between."""
    if asked_s <= server_s <= answered_s:
        off_s = 0.0
    elif asked_s > server_s:
        off_s = asked_s - server_s
    else:
        off_s = answered_s - server_s
    text = f"this clock is {format_duration(abs(off_s))} {'ahead of' if off_s > 0 else 'behind'} that of the server"
    fix = "synchronise the clocks, for example with chrony or systemd-timesyncd"
    if off_s > CHUNK_AHEAD_S_MAX:
        return CheckRecord("clock", FAILURE, f"{text}: it refuses what is written here", fix)
    if abs(off_s) > CLOCK_OFF_S:
        return CheckRecord("clock", WARNING, text, fix)
    return CheckRecord("clock", OK, "agrees with that of the server")


def transport(server: Address, setting: str) -> CheckRecord:
    """How requests travel to a server. `setting`: `tls` of this client."""
    if not isinstance(server, TcpAddress):
        return CheckRecord("transport", OK, "a Unix socket")
    if setting != OFF:
        return CheckRecord("transport", OK, f"TLS 1.3 to {server}")
    if server.is_loopback:
        return CheckRecord("transport", OK, f"{server} without TLS, which stays on this machine")
    text = f"{server} without TLS: anyone on the network path can read and change everything"
    return CheckRecord("transport", WARNING, text, "set tls = on here and for the server")


def versions(by_server: Mapping[str, str]) -> CheckRecord:
    """The versions of servers, and of this program."""
    others = {server: version for server, version in by_server.items() if version != __version__}
    if not others:
        return CheckRecord("versions", OK, f"{__version__} here and on {count(len(by_server), 'server')}")
    listed = ", ".join(f"{server} has {version}" for server, version in others.items())
    return CheckRecord("versions", WARNING, f"this is {__version__}, {listed}", "upgrade the older ones")


def peers(reports: Iterable[Report]) -> Iterator[CheckRecord]:
    """The other nodes of each job that a daemon of this machine is in, as its failure detector sees them."""
    for report in reports:
        members, suspected = report.info(catalogue.JOB_MEMBERS), report.info(catalogue.JOB_SUSPECTED)
        if not members:
            continue
        name = f"job {report.info(catalogue.JOB_NAME)}"
        if out := report.info(catalogue.MEMBERSHIP_OUT):
            yield CheckRecord("peers", FAILURE, f"{name}: this node is out: {out}", "mount it again")
        elif suspected:
            text = f"{name}: {len(suspected)} of {count(len(members), 'node')} do not answer: {', '.join(suspected)}"
            fix = "look at the network and at firewalls between the nodes, and whether they run"
            yield CheckRecord("peers", WARNING, text, fix)
        else:
            yield CheckRecord("peers", OK, f"{name}: {count(len(members), 'node')}, none is suspected")


def server_checks(session: Session, now: Callable[[], float] = time.time) -> Iterator[CheckRecord]:
    """The checks of each server that this client may use, for administrators also those that servers make; and of the
    nodes of the jobs of this machine. `now`: the clock of this machine, in seconds since 1970.
    """
    settings = session.settings()
    addresses = session.client.servers()
    by_server: dict[str, str] = {}
    for address in addresses:
        prefix = f"{address}: " if len(addresses) > 1 else ""
        try:
            if len(addresses) == 1:
                checks = [*_checks_of(session.client, now, by_server)]
            else:
                with closing(ServerClient(replace(settings, server=str(address)))) as client:
                    checks = [*_checks_of(client, now, by_server)]
        except DieselfsError as error:
            text = f"{address}: {error}"
            yield CheckRecord("server", FAILURE, text, "start it, or remove it from the list of servers")
            continue
        for check in checks:
            yield check._replace(text=f"{prefix}{check.text}")
        yield transport(address, settings.tls)
    if by_server:
        yield versions(by_server)
    yield from peers(report for _, report in published())


def _checks_of(
    client: ServerClient, now: Callable[[], float], by_server: dict[str, str]
) -> Iterator[CheckRecord]:
    client.datasets()  # connects, which may take longer than the request below
    asked_s = now()
    try:
        server_s = client.check_server(is_whole=False).time_ns / 1e9
    except (Unavailable, ProtocolError):  # how a server answers a method that it does not know
        yield CheckRecord("clock", WARNING, "the server answers no checks", "upgrade it, or look at its log")
        return
    yield clock(server_s, asked_s, now())
    try:
        by_server[str(client.address)] = client.status().version
        yield from client.check_server(is_whole=True).checks
    except AccessDenied:  # only administrators may ask
        return
