"""When the page is served: always, at the address of a setting; or by an embedded server, while somebody asks for it.

Starlette and Hypercorn are imported only then.
"""

import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from dieselfs.errors import AccessDenied, InvalidInput, Unavailable
from dieselfs.net.address import TcpAddress
from dieselfs.net.tls import ServerTls
from dieselfs.rpc.records import PageLink
from dieselfs_server.access.accounts import Caller
from dieselfs_server.call import Reply
from dieselfs_server.service import Service
from dieselfs_server.settings import RegistrySettings
from dieselfs_server.web.guard import Guard
from dieselfs_server.web.live import Live
from dieselfs_server.web.logins import LINK_S, Logins
from dieselfs_server.web.others import Others

if TYPE_CHECKING:  # few servers need its HTTP
    from dieselfs_server.access.provider import ProviderLogins

LEASE_S_MAX = 60
START_S = 20.0
WILDCARDS = ("0.0.0.0", "::")

_LOOPBACK = TcpAddress("127.0.0.1", 0)

log = logging.getLogger(__name__)


def check_address(address: TcpAddress, has_tls: bool) -> None:
    """Raises InvalidInput for a page that others could read on the way."""
    if not has_tls and not address.is_loopback:
        raise InvalidInput(
            f"web: {address} can be reached from other machines, so the page needs TLS there; "
            "leave out tls = off, or use 127.0.0.1"
        )


class Page:
    """For the trio thread. `address` None: of an embedded server."""

    def __init__(
        self,
        service: Service,
        address: TcpAddress | None,
        tls: Callable[[], ServerTls] | None,
        names: frozenset[str],
        logins: Logins | None = None,
        registry: RegistrySettings | None = None,
    ) -> None:
        self.ask: Callable[..., AbstractAsyncContextManager[Reply]] | None = None
        """`Dispatcher.reply_here`, set before the page is served, as is `provider`."""
        self.provider: ProviderLogins | None = None
        self._service = service
        self._address = address
        self._tls = tls
        self._names = names
        self._logins = logins or Logins(trio.current_time)
        self._live = Live(lambda: service.metrics.report({"component": "server"}))
        self._others = Others(registry, tls is not None) if registry is not None else None
        self._url: str | None = None
        self._fault = ""
        self._until_s = 0.0
        self._holders = 0
        """How many have opened the page and not given it up; some may have died, so the lease counts too."""
        self._changed = trio.Event()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve until the end of the block; yields the URL. Raises Unavailable."""
        try:
            from dieselfs_server.web.app import App
            from dieselfs_server.web.entrance import Entrance
            from dieselfs_server.web.serving import serving
        except ModuleNotFoundError as error:
            raise Unavailable(
                f"the page needs packages ({error.name}); in a checkout: pip install '.[web]'"
            ) from None
        address = self._address or _LOOPBACK
        scheme = "https" if self._tls else "http"

        def make_app(port: int) -> Guard:
            assert self.ask is not None
            known = self._service, self._logins, self.ask, self.provider
            entrance = Entrance(*known, self._tls is not None, port)
            return App(self._service, entrance, self._live, self.ask, self._others).guarded(self._names)

        async with serving(make_app, address, self._tls) as port, trio.open_nursery() as nursery:
            nursery.start_soon(self._live.run)
            if self._others is not None:
                nursery.start_soon(self._others.run)
            host = socket.gethostname() if address.host in WILDCARDS else address.host
            self._url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"
            log.info("serving the page at %s", self._url)
            try:
                yield self._url
            finally:
                self._url = None
                self._logins.close_all()
                nursery.cancel_scope.cancel()

    async def serve_on_request(self) -> None:
        """Serve whenever `open` asks for it, until its lease ends. An error ends the page, not the server."""
        while True:
            while trio.current_time() >= self._until_s:
                self._holders = 0
                await self._changed.wait()
            try:
                async with self.served():
                    self._note_change()
                    while (left_s := self._until_s - trio.current_time()) > 0:
                        with trio.move_on_after(left_s):
                            await self._changed.wait()
            except Exception as error:  # a page that cannot be served must not end the server
                log.error("the page is not served: %s", error)
                self._fault = str(error)
                self._until_s = 0.0
                self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def open(self, caller: Caller, lease_s: int) -> PageLink:
        """A link with which a browser becomes `caller`. An embedded server serves the page for `lease_s` from now.

        Raises Unavailable if it cannot be served.
        """
        if self._address is None:
            self._fault = ""
            self._extend(caller, lease_s)
            self._holders += lease_s > 0
            with trio.move_on_after(START_S):
                while self._url is None and self._until_s:
                    await self._changed.wait()
        if self._url is None:
            raise Unavailable(self._fault or "the page has ended: try again")
        url, fingerprint = self.where()
        return PageLink(url, self._logins.make_link(caller), fingerprint, LINK_S)

    def where(self) -> tuple[str, bytes]:
        """The URL of the page, which is served, and the fingerprint of its certificate, empty without TLS."""
        assert self._url is not None
        return self._url, self._tls().channel if self._tls else b""

    def keep(self, caller: Caller, lease_s: int) -> None:
        """Serve the page for `lease_s` from now, or give it up (0): without others that opened it, it ends.

        Of no effect on one that is always served. Raises Unavailable if it has ended.
        """
        if self._address is None and lease_s > 0 and trio.current_time() >= self._until_s:
            raise Unavailable("the page has ended: run dlcmd dashboard again")
        self._extend(caller, lease_s)
        if self._address is None and lease_s == 0:
            self._holders = max(self._holders - 1, 0)
            if not self._holders:
                self._until_s = 0.0
                self._note_change()

    def _extend(self, caller: Caller, lease_s: int) -> None:
        """Raises InvalidInput, AccessDenied. Others may have a longer lease."""
        if not 0 <= lease_s <= LEASE_S_MAX:
            raise InvalidInput(f"lease of {lease_s} s is out of range (0 to {LEASE_S_MAX})")
        if self._address is not None:
            return
        if not caller.is_trusted:
            raise AccessDenied("only the user of the server can open its page")
        if lease_s:
            self._until_s = max(self._until_s, trio.current_time() + lease_s)
            self._note_change()
