"""What servers and daemons say of themselves, for `dlcmd doctor`. This module opens connections."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

from dieselfs.errors import AccessDenied, DieselfsError, ProtocolError, Unavailable
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import FAILURE, WARNING, CheckRecord
from dieselfs.telemetry.socket import published
from dieselfs_tools.cli.session import Session
from dieselfs_tools.observe import server_checkup


def server_findings(session: Session, clock: Callable[[], float] = time.time) -> Iterator[CheckRecord]:
    """The checks of each server that this client may use, for administrators also those that servers make; and of the
    nodes of the jobs of this machine. `clock`: of this machine, in seconds since 1970.
    """
    settings = session.settings()
    addresses = session.client.servers()
    versions: dict[str, str] = {}
    for address in addresses:
        prefix = f"{address}: " if len(addresses) > 1 else ""
        try:
            if len(addresses) == 1:
                checks = [*_of_server(session.client, clock, versions)]
            else:
                with closing(ServerClient(replace(settings, server=str(address)))) as client:
                    checks = [*_of_server(client, clock, versions)]
        except DieselfsError as error:
            text = f"{address}: {error}"
            yield CheckRecord("server", FAILURE, text, "start it, or remove it from the list of servers")
            continue
        for check in checks:
            yield check._replace(text=f"{prefix}{check.text}")
        yield server_checkup.transport(address, settings.tls)
    if versions:
        yield server_checkup.versions(versions)
    yield from server_checkup.peers(report for _, report in published())


def _of_server(
    client: ServerClient, clock: Callable[[], float], versions: dict[str, str]
) -> Iterator[CheckRecord]:
    client.datasets()  # connects, which may take longer than the request below
    asked_s = clock()
    try:
        server_s = client.check_server(is_whole=False).time_ns / 1e9
    except (Unavailable, ProtocolError):  # how a server answers a method that it does not know
        yield CheckRecord("clock", WARNING, "the server answers no checks", "upgrade it, or look at its log")
        return
    yield server_checkup.clock(server_s, asked_s, clock())
    try:
        versions[str(client.address)] = client.status().version
        yield from client.check_server(is_whole=True).checks
    except AccessDenied:  # only administrators may ask
        return
