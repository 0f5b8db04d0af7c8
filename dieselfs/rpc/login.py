"""The login of a user on this machine: a key that servers have given for a token of a provider, and what renews it.
This module opens sockets, writes files, and starts threads.

    ~/.local/state/dieselfs/logins/ID.key    an ordinary key file, whose key expires
    ~/.local/state/dieselfs/logins/ID.json   the application, its refresh token, and the times of the key

Both have mode 0600.
"""

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

from dieselfs.errors import (
    AccessDenied,
    DieselfsError,
    InvalidInput,
    ProtocolError,
    Unavailable,
    os_errors_as,
)
from dieselfs.limits import KIB
from dieselfs.net.address import UnixAddress, parse_servers
from dieselfs.net.auth import PIN_BYTES, Key
from dieselfs.net.private_file import read_private_file, read_private_text, write_private_file
from dieselfs.process.state_dirs import locked, make_private
from dieselfs.rpc.access import read_access
from dieselfs.rpc.connection import Connection, connected
from dieselfs.rpc.endpoints import open_endpoints
from dieselfs.rpc.records import FAILURE, OK, CheckRecord
from dieselfs.settings.table import OFF, Settings
from dieselfs.units import count, format_duration

if TYPE_CHECKING:  # its HTTP takes longer to import than many verbs of dlcmd
    from dieselfs.oidc.grants import Application, Tokens

KEPT_BYTES_MAX = 64 * KIB
SECRET_BYTES_MAX = 4 * KIB
LOCK_S = 30.0
"""How long a process waits for another one that renews the same login."""
RETRY_S = 60.0
"""After a renewal that failed, while the key is valid."""
EXPIRED_RETRY_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Login:
    """Times in seconds since 1970, of the key. `secret_file`: of the application; `is_service`: the login is that of
    the application itself.
    """

    issuer: str
    client_id: str
    authority: str | None = None
    secret_file: str | None = None
    is_service: bool = False
    refresh: str = field(default="", repr=False)
    user: str = ""
    made_s: float = 0.0
    expires_s: float = 0.0

    @property
    def can_renew(self) -> bool:
        return self.is_service or bool(self.refresh)

    @property
    def due_s(self) -> float:
        """When it is renewed: after half of its life."""
        return (self.made_s + self.expires_s) / 2

    def application(self) -> "Application":
        """Raises InvalidInput for a file with its secret."""
        from dieselfs.oidc.grants import Application

        secret = ""
        if self.secret_file:
            secret = read_private_text(self.secret_file, SECRET_BYTES_MAX, "secret of the application")
        return Application(self.issuer, self.client_id, self.authority, secret)

    def tokens(self) -> "Tokens":
        """New ones. Raises AccessDenied, Unavailable, InvalidInput."""
        if self.is_service:
            return self.application().by_secret()
        if not self.refresh:
            raise AccessDenied("the provider gave no refresh token")
        return self.application().by_refresh(self.refresh)


def kept_beside(key_file: str | os.PathLike[str]) -> Path:
    """The file with the login of a key file."""
    return Path(key_file).expanduser().with_suffix(".json")


def read_login(key_file: str | os.PathLike[str]) -> Login | None:
    """The login behind a key file; None for a key of another kind. Raises AccessDenied."""
    kept = kept_beside(key_file)
    if not kept.exists():
        return None
    try:
        return Login(**json.loads(read_private_file(kept, KEPT_BYTES_MAX, "login")))
    except (ValueError, TypeError, RecursionError):
        raise AccessDenied(f"login {kept} is damaged: dlcmd login") from None


def _write(key_file: Path, login: Login) -> None:
    write_private_file(kept_beside(key_file), json.dumps(asdict(login)).encode())


def check_server(settings: Settings, pin: bytes) -> None:
    """Raise InvalidInput unless a token can be sent: over TLS, to a server that is known."""
    if not settings.server or isinstance(parse_servers(settings.server), UnixAddress):
        raise InvalidInput("a login is at a server: name it with --server tcp://HOST:PORT")
    if settings.tls == OFF:
        raise InvalidInput("a login sends a token, which needs TLS, and tls is off")
    if not (settings.tls_ca or settings.key_file or pin):
        raise InvalidInput(
            "a login sends a token, so the server must be known: set tls_ca to its authority, or give --pin, the "
            "last word of any key file of this server"
        )


def log_in(settings: Settings, key_file: Path, login: Login, tokens: "Tokens", pin: bytes = b"") -> Login:
    """Exchange a token for a key, and write both files. `pin`: of the server, for the first login without tls_ca.
    Raises AccessDenied, Unavailable, InvalidInput.
    """
    check_server(settings, pin)
    access = read_access(settings)
    assert access.tls is not None
    tls = replace(access.tls, pins=(pin,)) if pin else access.tls
    tries = open_endpoints(
        parse_servers(settings.server or ""), settings.etcd, None, settings.patience_s
    ).tries()
    key, made_s = Key.generate("login"), time.time()
    while True:
        server = tries.next()
        try:
            with closing(Connection(connected(server, tls), server, key, token=tokens.token)) as connection:
                given = connection.welcome
                pins = bytes(connection.call("server_pin", {"with_next": True})[0])
            break
        except Unavailable as error:
            tries.failed(server, error)
    known = (pin,) if pin else access.key.pins if access.key and not settings.tls_ca else ()
    if known and pins[:PIN_BYTES] not in known:
        raise ProtocolError("the server names another identity than the one that is known")
    key = replace(key, user=given.user, pin=pins[:PIN_BYTES], next_pin=pins[PIN_BYTES:])
    done = replace(
        login, refresh=tokens.refresh, user=given.user, made_s=made_s, expires_s=float(given.expires_s)
    )
    make_private(key_file.parent)
    write_private_file(key_file, key.text().encode())
    _write(key_file, done)
    return done


def renew(settings: Settings, key_file: Path) -> Login:
    """The login with a new key, which another process may have got meanwhile. Raises AccessDenied, Unavailable,
    InvalidInput.
    """
    with (
        os_errors_as(Unavailable, f"login {key_file}"),
        locked(key_file.with_suffix(".lock"), LOCK_S) as lock,
    ):
        try:
            return _renewed(settings, key_file)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor too


def _renewed(settings: Settings, key_file: Path) -> Login:
    login = read_login(key_file)
    if login is None:
        raise AccessDenied("it was logged out")
    if time.time() < login.due_s:
        return login
    tokens = login.tokens()
    if tokens.refresh != login.refresh:  # the one before may be worthless
        login = replace(login, refresh=tokens.refresh)
        _write(key_file, login)
    return log_in(settings, key_file, login, tokens)


class Renewal:
    """Renews the login behind the key file of a process in time; does nothing for other key files. Thread-safe."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        """Raises AccessDenied."""
        self._settings, self._clock = settings, clock
        self._lock = Lock()  # guards the two below
        self._next_s = self._end_s = float("inf")
        if settings.server and settings.key_file and (login := read_login(settings.key_file)) is not None:
            self._take(login)

    def after_fork(self) -> None:
        """A thread of the parent may have held the lock."""
        self._lock = Lock()

    def _take(self, login: Login) -> None:
        self._end_s = login.expires_s
        self._next_s = login.due_s if login.can_renew else login.expires_s

    def keep(self) -> bool:
        """Renew what is due, in a thread while the key is valid; True if a new key is there when this returns. Raises
        AccessDenied if the key has expired and cannot be renewed.
        """
        now_s = self._clock()
        if now_s < self._next_s:
            return False
        with self._lock:
            if now_s < self._next_s:
                return now_s >= self._end_s
            if now_s >= self._end_s:
                self._next_s = now_s + EXPIRED_RETRY_S
                self._take(self._renewed())
                return True
            self._next_s = min(now_s + RETRY_S, self._end_s)
        # Not a daemon: the end of the process waits until a new refresh token is on the disk.
        with suppress(RuntimeError):  # no thread can be started
            Thread(target=self._renew_ahead, name="login").start()
        return False

    def _renewed(self) -> Login:
        assert self._settings.key_file is not None
        try:
            return renew(self._settings, Path(self._settings.key_file).expanduser())
        except DieselfsError as error:
            raise AccessDenied(f"your login has ended ({error}): dlcmd login") from None

    def _renew_ahead(self) -> None:
        try:
            login = self._renewed()
        except AccessDenied as error:
            _log.warning("%s, before it ends; the key is still valid", error)
            return
        with self._lock:
            self._take(login)


def log_out(key_file: Path) -> None:
    """Remove the files of a login, and end its refresh token if the provider is there. Raises AccessDenied."""
    login = read_login(key_file)
    for path in (key_file, kept_beside(key_file)):
        path.unlink(missing_ok=True)
    if login is not None and login.refresh:
        with suppress(DieselfsError):
            login.application().revoke(login.refresh)


def check_provider(issuer: str, authority: str | None) -> CheckRecord:
    """Whether this machine reaches a provider, which has keys, and the time of this machine."""
    from dieselfs.oidc.provider import SKEW_S, clock_ahead_s, discover, fetch_keys

    try:
        keys = fetch_keys(discover(issuer, authority), authority)
        ahead_s = clock_ahead_s(issuer, authority)
    except DieselfsError as error:
        fix = "nobody can log in: look at the provider, the network to it, oidc_issuer and oidc_ca"
        return CheckRecord("provider", FAILURE, str(error), fix)
    text = f"{issuer} answers, with {count(len(keys), 'key')}"
    if not keys:
        return CheckRecord("provider", FAILURE, text, "give the provider a key that signs")
    if abs(ahead_s) > SKEW_S:
        text += f"; its clock is {format_duration(abs(ahead_s))} {'ahead' if ahead_s > 0 else 'behind'}"
        return CheckRecord("provider", FAILURE, text, "its tokens are refused: synchronise the clocks")
    return CheckRecord("provider", OK, text)
