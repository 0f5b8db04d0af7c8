"""Addresses: `tcp://host:port` or `unix:PATH` of one server, a list of these, or `etcd://` for several; and the
parts of the URLs of object stores, metadata stores and objects. No I/O.
"""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from dieselfs.errors import InvalidInput

DEFAULT_PORT = 7070
ETCD_PORT = 2379
METRICS_PORT = 9568
WEB_PORT = 7071

SCHEME_CHARACTERS_SHOWN = 20

_ETCD = "etcd://"
_TCP = re.compile(
    r"(?:tcp://|dl://)?(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>\d{1,5}))?/?"
)


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = TcpAddress | UnixAddress


@dataclass(frozen=True, slots=True)
class ServerList:
    """Several servers over the same stores."""

    servers: tuple[Address, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.servers))


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The members of an etcd cluster, in which servers are registered."""

    members: tuple[TcpAddress, ...]

    def __str__(self) -> str:
        return "etcd://" + ",".join(str(member).removeprefix("tcp://") for member in self.members)


Servers = TcpAddress | UnixAddress | ServerList | EtcdAddress
"""The servers that a client may use."""


def parse_address(text: str) -> Address:
    """Parse `tcp://host:port` (scheme and port are optional) or `unix:PATH`. Raises InvalidInput."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path[2:] if path.startswith("//") else path  # unix:///run/x as well as unix:/run/x
        if not path or "\0" in path:
            raise InvalidInput(f"server address {text!r} has no path: write unix:/run/dieselfs/server.sock")
        return UnixAddress(path)
    address = _parse_tcp(text, DEFAULT_PORT)
    if address is None:
        raise InvalidInput(f"server address {text!r} is neither tcp://HOST:PORT nor unix:PATH")
    return address


def parse_metrics_address(text: str) -> TcpAddress:
    """Parse `host:port`, at which metrics are served; the port is optional. Raises InvalidInput."""
    return _parse_listener(text, "metrics", METRICS_PORT, "127.0.0.1")


def parse_web_address(text: str) -> TcpAddress:
    """Parse `host:port`, at which the web page is served; the port is optional. Raises InvalidInput."""
    return _parse_listener(text, "web", WEB_PORT, "10.0.0.5")


def _parse_listener(text: str, what: str, default_port: int, example: str) -> TcpAddress:
    address = _parse_tcp(text, default_port)
    if address is None or "://" in text:
        raise InvalidInput(f"{what} address {text!r} is not HOST:PORT, for example {example}:{default_port}")
    return address


def parse_servers(text: str) -> Servers:
    """Parse one address, several with commas between, or `etcd://host:port[,host:port]`. Raises InvalidInput."""
    if text.startswith(_ETCD):
        return parse_etcd(text)
    servers = tuple(dict.fromkeys(parse_address(part) for part in text.split(",")))
    return servers[0] if len(servers) == 1 else ServerList(servers)


def parse_etcd(text: str) -> EtcdAddress:
    """Parse `[etcd://]host:port[,host:port]`, members of an etcd cluster. Raises InvalidInput."""
    members = [
        _parse_tcp(part, ETCD_PORT) if "://" not in part else None
        for part in text.removeprefix(_ETCD).split(",")
    ]
    if None in members:
        raise InvalidInput(f"etcd address {text!r} is not etcd://HOST:PORT[,HOST:PORT]")
    return EtcdAddress(tuple(filter(None, dict.fromkeys(members))))


def _parse_tcp(text: str, default_port: int) -> TcpAddress | None:
    match = _TCP.fullmatch(text)
    port = int(match["port"] or default_port) if match else 0
    return TcpAddress(match["v6"] or match["host"], port) if match and port <= 65535 else None


def split(url: str) -> SplitResult:
    """As `urlsplit`. Raises InvalidInput for what is no URL; the message never repeats what may be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:  # its message may have the password
        parts = None
    if parts is None or "\0" in unquote(url):
        begin = url.partition(":")[0][:SCHEME_CHARACTERS_SHOWN]
        raise InvalidInput(
            f"{begin!r} begins something that is no URL: a bracket, or a character is not allowed"
        )
    return parts


def path_of(url: str) -> str:
    """The path of `posix:///path`, the pool of `rados://pool`; empty without one. Raises InvalidInput as `split`."""
    parts = split(url)
    return unquote(parts.netloc + parts.path)
