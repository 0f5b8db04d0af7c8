"""Where a server is: `tcp://host:port` or `unix:PATH`. No I/O."""

import re
from dataclasses import dataclass

from dieselfs.errors import InvalidInput

DEFAULT_PORT = 7070

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


def parse_address(text: str) -> Address:
    """Parse `tcp://host:port` (the scheme and the port may be left out) or `unix:PATH`.

    Raises InvalidInput.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path[2:] if path.startswith("//") else path  # unix:///run/x as well as unix:/run/x
        if not path or "\0" in path:
            raise InvalidInput(f"server address {text!r} has no path: write unix:/run/dieselfs/server.sock")
        return UnixAddress(path)
    match = _TCP.fullmatch(text)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or port > 65535:
        raise InvalidInput(f"server address {text!r} is neither tcp://HOST:PORT nor unix:PATH")
    return TcpAddress(match["v6"] or match["host"], port)
