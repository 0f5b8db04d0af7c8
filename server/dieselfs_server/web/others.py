"""The other servers of a cluster, as etcd lists them, and whether they answer. This module reads etcd and opens
connections.

It looks in the background, so a server that hangs delays no page. A server that dies or hangs leaves etcd's list with
its lease, so those that were seen are remembered.
"""

import logging
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn, TypeVar

import trio

from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.etcd.client import Etcd
from dieselfs.etcd.keys import SERVERS_PREFIX, decode_server, decode_version, server_id, server_key
from dieselfs.limits import SERVER_ANSWER_S, SERVERS_LOOK_S
from dieselfs.net.address import TcpAddress
from dieselfs.net.tls import ClientTls, new_context
from dieselfs.rpc.connection import check_answer
from dieselfs.rpc.records import OK, WARNING, CheckRecord
from dieselfs.rpc.server_checks import unreachable, versions
from dieselfs_server.settings import RegistrySettings

SERVERS_MAX = 64
"""Others are not looked at."""
ASKED_MAX = 8
"""Servers that are asked at a time."""
REMEMBERED_S = 3600.0
"""A server that is not on the list and has not answered for this time is forgotten."""

Value = TypeVar("Value")

log = logging.getLogger(__name__)


@dataclass
class Other:
    """`seen_s`: when it was last on the list or answered; `answered_s`: its last answer, None before the first
    one; both in seconds since 1970. `fault`: why it does not answer; empty if it does, None before the first look.
    """

    addresses: Sequence[TcpAddress]
    version: str
    seen_s: float
    is_listed: bool = True
    answered_s: float | None = None
    fault: str | None = None


def known(
    before: Mapping[str, Other], values: Mapping[str, bytes], own: str, now_s: float
) -> dict[str, Other]:
    """The servers by their keys after etcd has listed `values`, without the one with the key `own`."""
    after = {}
    for key, value in sorted(values.items()):
        try:
            addresses, version = decode_server(value), decode_version(value)
        except DieselfsError:
            continue
        if key != own and addresses:
            was = before.get(key)
            answered_s, fault = (was.answered_s, was.fault) if was else (None, None)
            after[key] = Other(addresses, version, now_s, True, answered_s, fault)
    for key, other in before.items():
        if key not in after and key not in values and now_s - other.seen_s < REMEMBERED_S:
            other.is_listed = False
            after[key] = other
    return dict([*after.items()][:SERVERS_MAX])


def checks(others: Iterable[Other]) -> Iterator[CheckRecord]:
    """A record of each server that was asked, and one of the versions of those on the list."""
    asked = [other for other in others if other.fault is not None]
    for other in asked:
        name = f"{other.addresses[0]}, version {other.version or 'not known'}"
        if not other.fault:
            yield CheckRecord("server", OK, f"{name}, answers")
            continue
        since = f" since {_shown(other.answered_s)}" if other.answered_s is not None else ""
        found = unreachable(f"{name}, not answering{since}: {other.fault}")
        if not other.is_listed:
            fix = "start it, unless it was stopped on purpose"
            found = CheckRecord("server", WARNING, f"{found.text}; it has left the list of etcd", fix)
        yield found
    listed = [other for other in asked if other.is_listed and other.version]
    if listed:
        yield versions({str(other.addresses[0]): other.version for other in listed})


def _shown(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


class Others:
    """For the trio thread."""

    def __init__(
        self,
        registry: RegistrySettings,
        has_tls: bool,
        clock: Callable[[], float] = time.time,
        answer_s: float = SERVER_ANSWER_S,
    ) -> None:
        """Raises InvalidInput without the package for etcd."""
        self._etcd = Etcd(registry.etcd, registry.access)
        self._own = server_key(server_id(registry.addresses))
        self._tls = ClientTls(new_context(ssl.PROTOCOL_TLS_CLIENT)) if has_tls else None  # it gets no secret
        self._clock, self._answer_s = clock, answer_s
        self._known: dict[str, Other] = {}
        self._denied = ""
        self._threads = trio.CapacityLimiter(ASKED_MAX)

    def checks(self) -> list[CheckRecord]:
        """As of the last look. No I/O."""
        found = [*checks(self._known.values())]
        if self._denied:
            fix = "let the user of the servers read /dieselfs/servers/ in etcd"
            found.append(CheckRecord("servers", WARNING, self._denied, fix))
        return found

    async def run(self) -> NoReturn:
        """Look each SERVERS_LOOK_S, until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # a page that cannot show the others must not end the server
                log.exception("the other servers are not looked at: an internal error")
            await trio.sleep(SERVERS_LOOK_S)

    async def look(self) -> None:
        """Read the list, and ask each server. While etcd is away, the last list stays."""
        try:
            values = await self._blocking(self._etcd.values, SERVERS_PREFIX)
            self._known, self._denied = known(self._known, values, self._own, self._clock()), ""
        except Unavailable:  # which is a check of its own
            pass
        except DieselfsError as error:
            self._denied = str(error)
        async with trio.open_nursery() as nursery:
            for other in self._known.values():
                nursery.start_soon(self._ask, other)

    async def _ask(self, other: Other) -> None:
        """The first of its addresses that answers is enough."""
        for address in other.addresses:
            try:
                await self._blocking(check_answer, address, self._tls, self._answer_s)
            except DieselfsError as error:
                fault = str(error)
            else:
                other.answered_s = other.seen_s = self._clock()
                fault = ""
                break
        other.fault = fault

    async def _blocking(self, work: Callable[..., Value], *arguments: object) -> Value:
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._threads, abandon_on_cancel=True)
