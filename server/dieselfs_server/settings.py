"""What a server is told: options and a TOML file with the same names. This module opens files.

listen = ["tcp://10.0.0.5:7070", "unix:/run/dieselfs/server.sock"]
store = "posix:///lustre/dieselfs"
metadata = "sqlite:///var/lib/dieselfs/metadata.db"
state = "/var/lib/dieselfs"              # snapshots and the like; can be lost
tls_certificate = "/etc/dieselfs/server.pem"
tls_key = "/etc/dieselfs/server.key"
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dieselfs.errors import InvalidInput
from dieselfs.rpc.address import Address, UnixAddress, parse_address

DEFAULT_LISTEN = "tcp://127.0.0.1:7070"

_TEXTS = {"store", "metadata", "state", "tls_certificate", "tls_key", "admin_key"}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`lock` and `idle_exit_s` are for the embedded server: one per home, gone when nobody has called for so
    long.
    """

    listen: Sequence[Address]
    store: str
    metadata: str
    state: Path
    tls_certificate: str | None = None
    tls_key: str | None = None
    admin_key: str | None = None
    lock: Path | None = None
    idle_exit_s: float | None = None

    @classmethod
    def embedded(cls, home: Path, idle_exit_s: float) -> "ServerSettings":
        return cls(
            listen=[UnixAddress(str(home / "run" / "server.sock"))],
            store=f"posix://{home}/chunks",
            metadata=f"sqlite://{home}/metadata.db",
            state=home / "state",
            lock=home / "run" / "server.lock",
            idle_exit_s=idle_exit_s,
        )

    @classmethod
    def load(cls, config: Path | None, options: dict[str, Any]) -> "ServerSettings":
        """Settings from a TOML file and options; options that are not None (or empty) win. Raises
        InvalidInput.
        """
        values = _read(config) if config else {}
        values |= {name: value for name, value in options.items() if value}
        for name in ("store", "metadata"):
            if name not in values:
                raise InvalidInput(f"--{name} is missing: say where, for example {_EXAMPLES[name]}")
        if bool(values.get("tls_certificate")) != bool(values.get("tls_key")):
            raise InvalidInput("TLS needs both --tls-certificate and --tls-key")
        state = values.get("state")
        return cls(
            listen=[parse_address(text) for text in values.get("listen") or [DEFAULT_LISTEN]],
            store=values["store"],
            metadata=values["metadata"],
            state=Path(state) if state else _default_state(values["metadata"]),
            tls_certificate=values.get("tls_certificate"),
            tls_key=values.get("tls_key"),
            admin_key=values.get("admin_key"),
        )


_EXAMPLES = {"store": "posix:///data/dieselfs/chunks", "metadata": "sqlite:///data/dieselfs/metadata.db"}


def _default_state(metadata: str) -> Path:
    """Beside the SQLite file."""
    scheme, path = split_url(metadata)
    if scheme != "sqlite" or path == ":memory:":
        raise InvalidInput("--state is missing: say in which folder the server may keep snapshots")
    return Path(path).parent / "state"


def split_url(url: str) -> tuple[str, str]:
    """`(scheme, path)` of `posix:///path`, `sqlite:///path`, `memory:`. Raises InvalidInput."""
    parts = urlsplit(url)
    path = unquote(parts.netloc + parts.path)
    if not parts.scheme:
        raise InvalidInput(f"{url!r} is no URL: write for example {_EXAMPLES['store']}")
    return parts.scheme, path


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(f"configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"configuration file {path}: {error}") from None
    for name, value in values.items():
        if name == "listen":
            is_right = isinstance(value, list) and all(isinstance(text, str) for text in value)
        elif name in _TEXTS:
            is_right = isinstance(value, str)
        else:
            raise InvalidInput(f"configuration file {path}: unknown setting {name!r}")
        if not is_right:
            raise InvalidInput(f"configuration file {path}: {name} has the wrong type")
    return values
