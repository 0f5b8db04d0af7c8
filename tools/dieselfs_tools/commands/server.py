"""`dlcmd server`: the state of the servers."""

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from dieselfs.errors import EXIT_OK, DieselfsError
from dieselfs.telemetry import catalogue
from dieselfs.units import format_duration, format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.rpc.client import ServerClient

server = options.verb_group(
    "server",
    "Show the state of the servers (administrators).",
    "dlcmd server status",
    "dlcmd --server tcp://storage-1:7070 server status --json",
)


@options.verb(
    "status",
    "dlcmd server status",
    "dlcmd server status --json --server unix:/run/dieselfs/server.sock",
    group=server,
)
def status(session: Session) -> int:
    """Show version, stores, uptime and traffic of each server."""
    from dieselfs.rpc.client import ServerClient

    settings, failure = session.settings(), None
    servers = session.client.servers() if settings.server else []
    for address in servers if len(servers) > 1 else []:
        try:
            with closing(ServerClient(replace(settings, server=str(address)))) as client:
                _show(session.output, client)
        except DieselfsError as error:
            session.output.failure(str(address), str(error))
            failure = error
    if len(servers) <= 1:
        _show(session.output, session.client)
    exit_code = failure.exit_code if failure else EXIT_OK
    return session.output.summary("", {"servers": max(len(servers), 1)}, exit_code)


def _show(output: Output, client: "ServerClient") -> None:
    found, address = client.status(), str(client.address)
    metrics = found.metrics
    running_s = max(time.time() - found.started_s, 0)
    lines = [
        address,
        f"  version      {found.version}",
        f"  running for  {format_duration(running_s)}, since {format_time(found.started_s)}",
        f"  store        {found.store}",
        f"  metadata     {found.metadata}",
        f"  connections  {metrics[catalogue.RPC_CONNECTIONS.name]:,}",
        f"  requests     {metrics[catalogue.RPC_REQUESTS.name]:,}",
        f"  received     {output.size(metrics[catalogue.RPC_RECEIVED_BYTES.name])}",
        f"  sent         {output.size(metrics[catalogue.RPC_SENT_BYTES.name])}",
        f"  of chunks    {output.size(metrics[catalogue.PAYLOADS_SENT_BYTES.name])}",
    ]
    fields = {name: value for name, value in found._asdict().items() if name != "report"}
    output.record("server", "\n".join(lines), {"address": address, **fields})
