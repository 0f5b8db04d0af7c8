"""How a client proves itself to servers and checks them: its key and its terms of TLS. This module opens files.

A key file or a file of authorities that changes is read again, so a key can be replaced while programs run.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

from dieselfs.errors import AccessDenied, os_errors_as
from dieselfs.net.address import Servers, UnixAddress
from dieselfs.net.auth import Key, read_key_file
from dieselfs.net.private_file import file_version
from dieselfs.settings.table import OFF, Settings

if TYPE_CHECKING:  # imported for TCP alone
    from dieselfs.net.tls import ClientTls

CHANGES_LOOK_S = 1.0
"""How often the files are compared with what was read."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Access:
    """`key` None: over a Unix socket, as the user of the server. `tls` None: TCP without TLS, or no TCP."""

    key: Key | None
    tls: "ClientTls | None"


def read_access(settings: Settings) -> Access:
    """Raises AccessDenied."""
    key = read_key_file(settings.key_file) if settings.server and settings.key_file else None
    if settings.tls == OFF or not settings.server:
        return Access(key, None)
    import ssl

    from dieselfs.net.tls import ClientTls, new_context

    tls = ClientTls(new_context(ssl.PROTOCOL_TLS_CLIENT))
    if settings.tls_ca:
        with os_errors_as(AccessDenied, f"TLS certificates {settings.tls_ca}"):
            tls.context.load_verify_locations(os.path.expanduser(settings.tls_ca))
        tls.context.verify_mode = ssl.CERT_REQUIRED
        tls.context.check_hostname = True
    elif key is not None:
        tls = replace(tls, pins=key.pins)
    return Access(key, tls)


class AccessFiles:
    """The access in force. Thread-safe, also after a fork if no other thread of the parent was inside."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises AccessDenied."""
        self._settings = settings
        self._clock = clock
        self._files = [name for name in (settings.key_file, settings.tls_ca) if name and settings.server]
        self._lock = Lock()  # guards the three below
        self._versions = self._now()
        self._looked_s = clock()
        self._access = read_access(settings)

    def _now(self) -> list[tuple[int, ...]]:
        return [file_version(name) for name in self._files]

    def current(self, is_urgent: bool = False) -> Access:
        """The access; files that changed are read again, after CHANGES_LOOK_S or if it `is_urgent`. While they cannot
        be read, the last access stays.
        """
        if not self._files:
            return self._access
        with self._lock:
            if is_urgent or self._clock() - self._looked_s >= CHANGES_LOOK_S:
                self._looked_s = self._clock()
                versions = self._now()
                if versions != self._versions:
                    self._read_again(versions)
            return self._access

    def _read_again(self, versions: list[tuple[int, ...]]) -> None:
        try:
            self._access = read_access(self._settings)
        except AccessDenied as error:
            _log.warning("%s; the key that was read before stays in use", error)
        else:
            _log.info("key or certificates were read again: %s", ", ".join(self._files))
        self._versions = versions

    def forked(self) -> "AccessFiles":
        """For a forked child, with a lock that no thread of the parent holds."""
        copy = object.__new__(AccessFiles)
        copy.__dict__ = {**self.__dict__, "_lock": Lock()}
        return copy


_warned: set[str] = set()


def warn_of_plain_tcp(servers: Servers) -> None:
    """Warn once per process and address."""
    if not isinstance(servers, UnixAddress) and str(servers) not in _warned:
        _warned.add(str(servers))
        _log.warning(
            "tls is off for %s: somebody on the network between can read and change everything, and act as you",
            servers,
        )
