"""`dlcmd server`: about the server itself."""

import time

import click

from dieselfs.errors import EXIT_OK
from dieselfs_tools import options
from dieselfs_tools.session import Session
from dieselfs_tools.units import format_duration, format_time


@click.group(
    cls=options.VerbGroup,
    epilog=options.examples(
        "dlcmd server status",
        "dlcmd --server tcp://storage-1:7070 server status --json",
    ),
)
def server() -> None:
    """The server itself (for administrators)."""


@options.verb(
    "status",
    "dlcmd server status",
    "dlcmd server status --json --server unix:/run/dieselfs/server.sock",
)
def status(session: Session) -> int:
    """Show what runs, since when, over which stores, and how much it has done."""
    found, output = session.client.status(), session.output
    running_s = max(time.time() - found.started_s, 0)
    lines = [
        str(session.client.address),
        f"  version      {found.version}",
        f"  running for  {format_duration(running_s)}, since {format_time(found.started_s)}",
        f"  store        {found.store}",
        f"  metadata     {found.metadata}",
        f"  connections  {found.connections:,}",
        f"  requests     {found.requests:,}",
        f"  received     {output.size(found.bulk_bytes_received)}",
        f"  sent         {output.size(found.bulk_bytes_sent)}",
        f"  of chunks    {output.size(found.payload_bytes_given)}",
    ]
    fields = {
        "address": str(session.client.address),
        "version": found.version,
        "started_s": found.started_s,
        "store": found.store,
        "metadata": found.metadata,
        "connections": found.connections,
        "requests": found.requests,
        "received_bytes": found.bulk_bytes_received,
        "sent_bytes": found.bulk_bytes_sent,
        "payload_bytes": found.payload_bytes_given,
    }
    output.record("server", "\n".join(lines), fields)
    return output.summary("", {"servers": 1}, EXIT_OK)


server.add_command(status)
