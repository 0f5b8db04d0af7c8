"""The location of a Redis metadata store, parsed from its URL. This module opens the password file.

    redis://[USER@]HOST[:PORT][/DATABASE][?password_file=FILE&prefix=TEXT]
    redis+unix:///PATH/OF/SOCKET[?...]
    redis+cluster://[USER@]HOST:PORT,HOST:PORT,...[?...]
    rediss://...[?ca_file=FILE&certificate_file=FILE&key_file=FILE&...], rediss+cluster://...     TLS

The certificate of Redis must name the host. Its authority is in `ca_file`, or one that the system trusts. Redis gets
`certificate_file`, with `key_file`, if it wants a certificate. A password is never in the URL, because every user of a
machine can see command lines.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.net.address import split
from dieselfs.net.private_file import read_private_file
from dieselfs_server.metadata.redis.keys import DEFAULT_PREFIX

SCHEMES = ("redis", "redis+cluster", "redis+unix", "rediss", "rediss+cluster")
DEFAULT_PORT = 6379
PASSWORD_BYTES_MAX = 4096

_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True, slots=True)
class RedisTls:
    """Files of PEM certificates and their key; None: the authorities of the system, and no own certificate."""

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None


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
    tls: RedisTls | None = None

    def __repr__(self) -> str:
        return f"RedisLocation({self})"

    def __str__(self) -> str:
        """Without the password."""
        return self.socket_path or ",".join(f"{host}:{port}" for host, port in self.nodes)

    def danger(self) -> str:
        """What others can do, on the network or on this machine; empty if nothing. Modes protect a Unix socket."""
        if not self.nodes:
            return ""
        is_local = all(_is_loopback(host) for host, _ in self.nodes)
        if self.password is None:
            who = "user of this machine" if is_local else "host that can connect"
            return f"has no password: every {who} can read, change and delete all metadata"
        if self.tls is None and not is_local:
            return "is used without TLS: hosts on the way can read the password, and read and change all metadata"
        return ""


def parse_redis_url(url: str) -> RedisLocation:
    """Raises InvalidInput, also if the password file cannot be read or is readable by other users."""
    parts = split(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if ":" in user:
        raise InvalidInput("metadata: a password in the URL is visible to all users; use ?password_file=FILE")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    password_file = query.pop("password_file", None)
    prefix = query.pop("prefix", DEFAULT_PREFIX.decode())
    has_tls = parts.scheme.startswith("rediss")
    files = {name: query.pop(name, None) for name in RedisTls.__slots__} if has_tls else {}
    if query:
        known = ", ".join(["password_file", "prefix", *files])
        raise InvalidInput(f"metadata {url!r}: unknown option {min(query)!r}; use one of {known}")
    if bool(files.get("certificate_file")) != bool(files.get("key_file")):
        raise InvalidInput(f"metadata {url!r}: a certificate needs both certificate_file and key_file")
    for file in filter(None, files.values()):
        if not os.access(file, os.R_OK):
            raise InvalidInput(f"metadata {url!r}: cannot read {file}")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidInput(
            f"metadata {url!r}: invalid prefix; use up to 64 of the characters A-Z a-z 0-9 . _ : -"
        )
    is_socket = parts.scheme == "redis+unix"
    return RedisLocation(
        nodes=[] if is_socket else [_node(host, url) for host in hosts.split(",")],
        is_cluster=parts.scheme.endswith("+cluster"),
        database=0 if is_socket else _database(parts.path, parts.scheme, url),
        user=unquote(user) if at and user else None,
        password=_read_password(Path(password_file)) if password_file else None,
        prefix=prefix.encode(),
        socket_path=unquote(parts.path) if is_socket else None,
        tls=RedisTls(**files) if has_tls else None,
    )


def _node(text: str, url: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]/]+))(?::(\d{1,5}))?", text)
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise InvalidInput(f"metadata {url!r}: {text!r} is not HOST:PORT")
    return match[1] or match[2], port


def _database(path: str, scheme: str, url: str) -> int:
    number = path.strip("/")
    if number and scheme.endswith("+cluster"):
        raise InvalidInput(f"metadata {url!r}: a cluster has no databases; use ?prefix=TEXT")
    if number and not re.fullmatch(r"\d{1,5}", number):
        raise InvalidInput(f"metadata {url!r}: {number!r} is not a database number")
    return int(number or 0)


def _read_password(path: Path) -> str:
    try:
        password = read_private_file(path, PASSWORD_BYTES_MAX + 1, "password file").decode("utf-8").strip()
    except AccessDenied as error:
        raise InvalidInput(str(error)) from None
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
