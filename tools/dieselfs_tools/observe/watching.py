"""Watches the daemons of this node, and asks the servers of a mount, again and again. This module reads sockets, opens
connections, and waits.
"""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from dieselfs.errors import AccessDenied, DieselfsError, NotFound
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import EMBEDDED, Settings
from dieselfs.telemetry.activity import Activity, ServerActivity, activity
from dieselfs.telemetry.registry import Report
from dieselfs.telemetry.socket import of_nodes, published

Seen = list[Activity | ServerActivity]


def not_found(place: str, command: str) -> NotFound:
    """The error that no daemon tells what it does for a mount, or a job, which `command` asked for."""
    from dieselfs_client.mount.points.mount_table import mount_at

    mount = mount_at(place)
    if mount is not None and mount.is_dieselfs and os.geteuid() != 0:
        return NotFound(
            f"{place}: the daemon of this mount is another user's, or does not answer; run as that user, or as root: "
            f"sudo dlcmd {command} {shlex.quote(place)}"
        )
    return NotFound(
        f"{place}: no daemon on this machine that you may ask has a mount there or a job of that name, or it does not "
        "answer; see 'dlcmd mounts'"
    )


def with_nodes(
    read: Callable[[], Iterator[tuple[int, Report]]] = published,
    ask: Callable[[int], Mapping[str, Report]] = of_nodes,
) -> Iterator[tuple[int, Report]]:
    """The reports of this machine, and of the other nodes of its jobs; those have the process here that asked them."""
    here = [*read()]
    yield from here
    known = {(report.about.get("job"), report.about.get("node")) for _, report in here}
    asked: set[str] = set()
    for process, report in here:
        job = report.about.get("job")
        if job is not None and job not in asked:
            asked.add(job)
            for node, other in ask(process).items():
                if (job, node) not in known:
                    yield process, replace(other, about={**other.about, "node": node})


def watched(
    interval_s: float,
    read: Callable[[], Iterator[tuple[int, Report]]] = published,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[Seen]:
    """What the daemons do: first since their start, then in each interval."""
    before: dict[tuple[int, str, str], tuple[float, Report]] = {}
    while True:
        seen: Seen = []
        now: dict[tuple[int, str, str], tuple[float, Report]] = {}
        for process, report in read():
            key = process, report.about.get("node", ""), report.about.get("address", "")
            now[key] = (clock(), report)
            since_s, earlier = before.get(key, (0.0, None))
            seen.append(activity(process, earlier, report, now[key][0] - since_s))
        before = now
        yield seen
        wait(interval_s)


ELSEWHERE = 0
"""In place of the process of a server, which may be on another machine."""


class MountServers:
    """Asks the servers at some addresses with the key of `settings`, as only administrators may. An embedded server
    (None) is not asked, as it is on this machine. `unknown`: why a server gave no answer; then none is asked again.
    """

    def __init__(self, server: str | None, settings: Settings) -> None:
        self._settings = replace(settings, server=server)
        self.unknown = ""

    def with_published(
        self, read: Callable[[], Iterator[tuple[int, Report]]] = published
    ) -> Iterator[tuple[int, Report]]:
        """The daemons of this machine, and the servers, which have an `address`."""
        yield from read()
        if self._settings.server is not None and not self.unknown:
            try:
                yield from self._asked()
            except AccessDenied:
                self.unknown = "only administrators see how long the server and its store take"
            except DieselfsError as error:
                self.unknown = f"no status of the server: {error}"

    def _asked(self) -> Iterator[tuple[int, Report]]:
        with closing(ServerClient(self._settings)) as client:
            addresses = client.servers()
        found = []
        for address in addresses:
            with closing(ServerClient(replace(self._settings, server=str(address)))) as client:
                report = Report.parse(client.status().report)
            found.append((ELSEWHERE, replace(report, about={**report.about, "address": str(address)})))
        yield from found


def server_of(place: str) -> str | None:
    """The addresses in `.dieselfs/info` of a mount of this user: another user could name any server. None for an
    embedded server, or if they cannot be read.
    """
    from dieselfs_client.daemon import control

    try:
        if os.stat(f"/proc/{control.daemon_at(place)}").st_uid != os.geteuid():
            return None
        server = json.loads(Path(place, ".dieselfs/info").read_bytes())["server"]
    except (OSError, ValueError, LookupError, TypeError):
        # A dataset may have a folder of its own under that name.
        return None
    return None if server is None or server == EMBEDDED else str(server)
