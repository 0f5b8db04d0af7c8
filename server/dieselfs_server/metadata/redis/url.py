"""The location of a Redis metadata store, parsed from its URL. This module opens the password file.

    redis://[USER@]HOST[:PORT][/DATABASE][?password_file=FILE&prefix=TEXT]
    redis+unix:///PATH/OF/SOCKET[?...]
    redis+cluster://[USER@]HOST:PORT,HOST:PORT,...[?...]

A password is never in the URL, because every user of a machine can see command lines.
"""

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from dieselfs.errors import InvalidInput
from dieselfs_server.metadata.redis.keys import DEFAULT_PREFIX

SCHEMES = ("redis", "redis+cluster", "redis+unix")
DEFAULT_PORT = 6379
PASSWORD_BYTES_MAX = 4096

_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True, slots=True)
class RedisLocation:
    """`nodes` are (host, port) of the server, or of some nodes of the cluster; empty with a `socket_path`."""

    nodes: Sequence[tuple[str, int]]
    is_cluster: bool = False
    database: int = 0
    user: str | None = None
    password: str | None = None
    prefix: bytes = DEFAULT_PREFIX
    socket_path: str | None = None

    def __repr__(self) -> str:
        return f"RedisLocation({self})"

    def __str__(self) -> str:
        """Without the password."""
        return self.socket_path or ",".join(f"{host}:{port}" for host, port in self.nodes)

    @property
    def is_open(self) -> bool:
        """Whether it has no password and an address that is not on this machine."""
        return self.password is None and not all(_is_loopback(host) for host, _ in self.nodes)


def parse_redis_url(url: str) -> RedisLocation:
    """Raises InvalidInput, also if the password file cannot be read or is readable by other users."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if ":" in user:
        raise InvalidInput("metadata: a password in the URL is visible to all users; use ?password_file=FILE")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    password_file = query.pop("password_file", None)
    prefix = query.pop("prefix", DEFAULT_PREFIX.decode())
    if query:
        raise InvalidInput(f"metadata {url!r}: unknown option {min(query)!r}; use password_file or prefix")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidInput(
            f"metadata {url!r}: invalid prefix; use up to 64 of the characters A-Z a-z 0-9 . _ : -"
        )
    is_socket = parts.scheme == "redis+unix"
    return RedisLocation(
        nodes=[] if is_socket else [_node(host, url) for host in hosts.split(",")],
        is_cluster=parts.scheme == "redis+cluster",
        database=0 if is_socket else _database(parts.path, parts.scheme, url),
        user=unquote(user) if at and user else None,
        password=_read_password(Path(password_file)) if password_file else None,
        prefix=prefix.encode(),
        socket_path=unquote(parts.path) if is_socket else None,
    )


def _node(text: str, url: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]/]+))(?::(\d{1,5}))?", text)
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise InvalidInput(f"metadata {url!r}: {text!r} is not HOST:PORT")
    return match[1] or match[2], port


def _database(path: str, scheme: str, url: str) -> int:
    number = path.strip("/")
    if number and scheme == "redis+cluster":
        raise InvalidInput(f"metadata {url!r}: a cluster has no databases; use ?prefix=TEXT")
    if number and not re.fullmatch(r"\d{1,5}", number):
        raise InvalidInput(f"metadata {url!r}: {number!r} is not a database number")
    return int(number or 0)


def _read_password(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise InvalidInput(f"password file {path}: readable by other users; run chmod 600")
            password = file.read(PASSWORD_BYTES_MAX + 1).decode("utf-8").strip()
    except OSError as error:
        raise InvalidInput(f"password file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"password file {path}: not text") from None
    if not password or len(password) > PASSWORD_BYTES_MAX:
        raise InvalidInput(f"password file {path}: empty, or longer than {PASSWORD_BYTES_MAX} bytes")
    return password


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
