"""`dlcmd metrics`: the metrics of this node's daemons, for Prometheus."""

import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.errors import InvalidInput
from dieselfs.net.address import METRICS_PORT, parse_metrics_address
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import replace_file
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.net.address import TcpAddress
    from dieselfs.telemetry.registry import Report


@options.verb(
    "metrics",
    "dlcmd metrics",
    f"dlcmd metrics --listen 127.0.0.1:{METRICS_PORT}",
    "dlcmd metrics --textfile /var/lib/prometheus/node-exporter/dieselfs.prom",
)
@click.option(
    "--listen",
    type=options.Parsed("HOST:PORT", parse_metrics_address),
    help="Serve them at http://HOST:PORT/metrics until interrupted.",
)
@click.option(
    "--textfile",
    metavar="FILE",
    help="Write them to a file, for the textfile collector of node_exporter; atomic.",
)
def metrics(session: Session, listen: "TcpAddress | None", textfile: str | None) -> int:
    """Print the metrics of your mounts, cache daemons and servers on this machine.

    For root, those of all users. The node's daemons are read at each request, so one endpoint serves all of them.
    Prometheus may ask --listen for OpenMetrics; else it is the older format, which files need. Labels say which daemon
    a value is of: component, dataset, mountpoint or job.
    """
    if listen is not None and textfile is not None:
        raise InvalidInput("--listen and --textfile exclude each other")
    if listen is not None:
        return _serve(session, listen)
    from dieselfs.telemetry.http import prometheus_text

    found = _reports()
    if textfile is None and not session.output.is_json:
        print(prometheus_text(found), end="")
    elif textfile is not None:
        replace_file(Path(textfile), prometheus_text(found))
    for report in found if session.output.is_json else []:
        session.output.record("process", "", {"about": report.about, "families": report.families})
    text = f"{textfile}: metrics of {len(found)} processes" if textfile is not None else ""
    return session.output.summary(text, {"processes": len(found)})


def _reports() -> "list[Report]":
    """Processes with the same labels get one more: Prometheus and node_exporter refuse all of them otherwise."""
    from dieselfs.telemetry.socket import published

    found = [*published()]
    counts = Counter(tuple(sorted(report.about.items())) for _, report in found)
    return [
        report
        if counts[tuple(sorted(report.about.items()))] == 1
        else replace(report, about={**report.about, "process": str(process)})
        for process, report in found
    ]


def _serve(session: Session, address: "TcpAddress") -> int:
    from dieselfs.telemetry.http import serving

    def reports() -> "Iterable[Report]":
        return _reports()

    with serving(address, reports) as url:
        session.output.aside(f"serving {url}")
        with suppress(KeyboardInterrupt):  # how it ends, also at SIGTERM
            threading.Event().wait()
    return session.output.summary("", {"address": str(address)})
