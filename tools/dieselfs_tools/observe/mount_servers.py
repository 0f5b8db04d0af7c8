"""The metrics of the servers of a mount, which may be on other machines. This module reads sockets and opens
connections.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from dieselfs.errors import AccessDenied, DieselfsError
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import EMBEDDED, Settings
from dieselfs.telemetry.registry import Report
from dieselfs.telemetry.socket import published

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
                content = client.status().report
            if content is not None:  # a server of an earlier version
                report = Report.parse(content)
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
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
    ):  # a dataset may have a folder of its own under that name
        return None
    return None if server is None or server == EMBEDDED else str(server)
