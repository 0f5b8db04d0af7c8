"""The verbs for servers and machines: `server`, `dashboard`, `metrics` and `doctor`."""

import html
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, DieselfsError, InvalidInput
from dieselfs.net.address import METRICS_PORT, parse_metrics_address
from dieselfs.net.private_file import write_private_file
from dieselfs.process.state_dirs import make_private, runtime_folder
from dieselfs.telemetry import catalogue
from dieselfs.units import count, format_duration, format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output, replace_file
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.net.address import TcpAddress
    from dieselfs.rpc.client import ServerClient
    from dieselfs.telemetry.registry import Report


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
                _show_server(session.output, client)
        except DieselfsError as error:
            session.output.failure(str(address), str(error))
            failure = error
    if len(servers) <= 1:
        _show_server(session.output, session.client)
    exit_code = failure.exit_code if failure else EXIT_OK
    return session.output.summary("", {"servers": max(len(servers), 1)}, exit_code)


def _show_server(output: Output, client: "ServerClient") -> None:
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


LEASE_S = 20
RENEW_S = 5.0
"""How often the embedded server is asked to keep the page."""


@options.verb(
    "dashboard", "dlcmd dashboard", "dlcmd dashboard --open", "dlcmd dashboard --server tcp://10.0.0.5"
)
@options.flag("--open", "is_opened", text="Open the page in your browser.")
def dashboard(session: Session, is_opened: bool) -> int:
    """Print a link to the web page: datasets, jobs, rates and errors, in a browser.

    The link logs one browser in, as you, once, within 10 minutes. Without a configured server, this serves the page of
    your data on this machine until Ctrl-C.
    """
    client, is_embedded = session.client, session.settings().server is None
    link = client.open_page(LEASE_S)
    url = f"{link.address}#login={link.token}"
    output = session.output
    if link.fingerprint:
        shown = ":".join(f"{byte:02X}" for byte in link.fingerprint)
        output.note(f"certificate of the page (SHA-256): {shown}")
    fields = {"url": url, "expires_s": link.expires_s, "fingerprint": link.fingerprint.hex()}
    if not is_embedded:
        _show(output, url, fields, is_opened)
        return output.summary("", {})
    try:
        with suppress(KeyboardInterrupt):  # how it ends, also just after the link
            _show(output, url, fields, is_opened)
            output.note("serving the page; Ctrl-C ends it")
            while True:
                time.sleep(RENEW_S)
                client.keep_page(LEASE_S)
    finally:
        with suppress(DieselfsError):
            client.keep_page(0)
    return output.summary("", {})


def _show(output: Output, url: str, fields: Mapping[str, object], is_opened: bool) -> None:
    output.record("page", url, fields)
    sys.stdout.flush()
    if is_opened and click.launch(str(_redirect(url))) != 0:
        output.aside("no browser could be started: open the link yourself")


def _redirect(url: str) -> Path:
    """A private file that leads a browser to the link, which other users would see as a word of its command. The link
    is of use once, so the file stays until the next one replaces it.
    """
    make_private(runtime_folder())
    path = runtime_folder() / "dashboard.html"
    target = html.escape(url, quote=True)
    write_private_file(path, f'<meta http-equiv="refresh" content="0; url={target}">\n'.encode())
    return path


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


_MARKS = {"ok": "ok", "warning": "!", "failure": "FAIL"}
_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}


@options.verb("doctor", "dlcmd doctor", "dlcmd doctor --json --server tcp://storage-1:7070")
def doctor(session: Session) -> int:
    """Check this machine and the server: a line for each check, and what to change.

    A warning costs speed or comfort. A failure (exit code 2) must be mended: something does not work with it.
    """
    from dieselfs.rpc.records import FAILURE, OK, WARNING, CheckRecord
    from dieselfs_tools.commands.settings import steps
    from dieselfs_tools.observe.checkup import machine_checks, machine_facts, server_checks

    found = []
    try:
        settings = session.settings()
    except DieselfsError:
        folders = {}  # the first step of the settings says why
    else:
        folders = {"cache folder": settings.cache}
        if settings.server is None:
            folders["home"] = settings.home
    found += machine_checks(machine_facts(folders))
    for name, step in steps(session):
        try:
            found.append(CheckRecord(name, OK, step()))
        except DieselfsError as error:
            found.append(CheckRecord(name, FAILURE, str(error), "dlcmd config test"))
            break  # the later ones need it
    else:
        try:
            found += server_checks(session)
        except DieselfsError as error:
            found.append(CheckRecord("server", FAILURE, str(error), "dlcmd server status"))
    for each in found:
        fields = each._asdict()
        mark = session.output.coloured(f"{_MARKS[each.state]:4}", _COLOURS[each.state])
        text = f"{mark} {each.name:12} {each.text}"
        if each.fix:
            text += f"\n     {'':12} -> {each.fix}"
        session.output.record("check", text, fields)
    total = {state: sum(each.state == state for each in found) for state in (OK, WARNING, FAILURE)}
    failed = [(each.name, each.text) for each in found if each.state == FAILURE]
    if not session.output.is_json:
        session.output.failures(failed, len(failed))
    text = f"{total[OK]} ok, {count(total[WARNING], 'warning')}, {count(total[FAILURE], 'failure')}"
    fields = {"ok": total[OK], "warnings": total[WARNING], "failures": total[FAILURE]}
    return session.output.summary(text, fields, EXIT_PARTIAL if failed else EXIT_OK)
