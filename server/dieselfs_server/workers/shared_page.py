"""The web page of a server with several workers: the first worker serves it; links to it, and sessions, are in memory
that all share. So each worker makes links, and browsers stay logged in when the first worker was replaced.
"""

import json
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import astuple
from functools import partial
from typing import Any, NoReturn

import trio

from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.rpc.records import PageLink
from dieselfs_server.access.accounts import Caller
from dieselfs_server.shared_table import PLACE_BYTES, PLACES, SharedTable, key_of, least
from dieselfs_server.web.logins import (
    LINK_S,
    LINKS_MAX,
    SESSION_IDLE_S,
    SESSION_S,
    SESSIONS_MAX,
    TOKEN_BYTES,
)

VALUE_BYTES = 512
TELL_S = 5.0
"""The first worker tells the others this often where the page is, and its certificate, which may be renewed."""

_TIMES = struct.Struct("<dd")
_TEXT_BYTES = VALUE_BYTES - _TIMES.size


class SharedTokens:
    """As `web/logins.Tokens`, with callers as values. A token begins with characters of its owner, so all tokens of one
    owner share PLACES places of the table. Few owners have tokens there: the oldest of the owner with most gives way.
    """

    def __init__(
        self,
        table: SharedTable,
        life_s: float,
        idle_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table, self._life_s, self._idle_s, self._clock = table, life_s, idle_s or life_s, clock

    def add(self, value: Caller, owner: str, now_s: float) -> str:
        """`now_s` means nothing: trio's clock differs between processes. Raises InvalidInput for an overlong name."""
        now_s, place = self._clock(), key_of(owner)[:PLACE_BYTES].hex()
        token = place + secrets.token_urlsafe(TOKEN_BYTES)
        packed = _packed(now_s + self._life_s, now_s, [*astuple(value)])
        self._table.change(_key(token), lambda _: packed, partial(self._gives_way, packed, now_s))
        return token

    def find(self, token: str, now_s: float) -> Caller | None:
        return self._found(token, is_kept=True)

    def take(self, token: str, now_s: float) -> Caller | None:
        return self._found(token, is_kept=False)

    def clear(self) -> None:
        """They end by themselves: another worker may serve the page soon."""

    def _found(self, token: str, is_kept: bool) -> Caller | None:
        caller, now_s = None, self._clock()

        def used(found: bytes | None) -> bytes | None:
            nonlocal caller
            if found is None:
                return None
            if self._has_ended(found, now_s):
                return None
            ends_s, _, value = _unpacked(found)
            caller = Caller(*value)
            return _packed(ends_s, now_s, value) if is_kept else None

        self._table.change(_key(token), used, least(_ends_s))
        return caller

    def _has_ended(self, record: bytes, now_s: float) -> bool:
        ends_s, used_s = _TIMES.unpack_from(record)
        return bool(now_s >= ends_s or now_s - used_s >= self._idle_s)

    def _gives_way(self, new: bytes, now_s: float, records: Sequence[bytes]) -> int:
        """One that has ended; otherwise the oldest of the owner with most, counted with the new one."""
        owners = [_name(record) for record in records]
        counts = Counter([*owners, _name(new)])

        def worth(number: int) -> tuple[bool, int, float]:
            record = records[number]
            return not self._has_ended(record, now_s), -counts[owners[number]], _ends_s(record)

        return min(range(len(records)), key=worth)


def _key(token: str) -> bytes:
    return key_of(token[: 2 * PLACE_BYTES])[:PLACE_BYTES] + key_of(token)[PLACE_BYTES:]


def _packed(ends_s: float, used_s: float, value: list[Any]) -> bytes:
    text = json.dumps(value).encode()
    if len(text) > _TEXT_BYTES:
        raise InvalidInput(f"a name of {len(text)} bytes is too long for the page")
    return _TIMES.pack(ends_s, used_s) + text.ljust(_TEXT_BYTES)


def _unpacked(record: bytes) -> tuple[float, float, list[Any]]:
    ends_s, used_s = _TIMES.unpack_from(record)
    return ends_s, used_s, json.loads(record[_TIMES.size :])


def _name(record: bytes) -> str:
    return str(_unpacked(record)[2][0])


def _ends_s(record: bytes) -> float:
    ends_s: float = _TIMES.unpack_from(record)[0]
    return ends_s


def _record_of(url: str, fingerprint: bytes, _: bytes | None) -> bytes:
    return _packed(0.0, 0.0, [url, fingerprint.hex()])


class SharedPage:
    """Made by the parent."""

    def __init__(self) -> None:
        self._links, self._sessions = (
            SharedTable(LINKS_MAX, VALUE_BYTES),
            SharedTable(SESSIONS_MAX, VALUE_BYTES),
        )
        self._where = SharedTable(PLACES, VALUE_BYTES)

    @property
    def links(self) -> SharedTokens:
        return SharedTokens(self._links, LINK_S)

    @property
    def sessions(self) -> SharedTokens:
        return SharedTokens(self._sessions, SESSION_S, SESSION_IDLE_S)

    async def tell(self, where: Callable[[], tuple[str, bytes]]) -> NoReturn:
        """Tell the others the URL and the fingerprint of the certificate, until cancelled."""
        while True:
            url, fingerprint = where()
            self._where.change(key_of("where"), partial(_record_of, url, fingerprint), least(_ends_s))
            await trio.sleep(TELL_S)

    def where(self) -> tuple[str, bytes]:
        """Raises Unavailable if the page was never served."""
        found = self._where.get(key_of("where"))
        if found is None:
            raise Unavailable("the page is not served yet: try again")
        url, fingerprint = _unpacked(found)[2]
        return url, bytes.fromhex(fingerprint)


class PageElsewhere:
    """The page, for a worker that does not serve it. See `handlers/administration.WebPage`."""

    def __init__(self, page: SharedPage) -> None:
        self._page = page

    def served(self) -> AbstractAsyncContextManager[str]:
        return nullcontext("")

    async def serve_on_request(self) -> None:
        """Of embedded servers."""

    async def open(self, caller: Caller, lease_s: int) -> PageLink:
        url, fingerprint = self._page.where()
        return PageLink(url, self._page.links.add(caller, caller.name, 0.0), fingerprint, LINK_S)

    def keep(self, caller: Caller, lease_s: int) -> None:
        """The page is always served."""
