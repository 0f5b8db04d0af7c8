"""Settings of a client: options, then environment, then configuration file. This module opens files.

    # ~/.config/dieselfs/config.toml, or /etc/dieselfs/config.toml
    server = "tcp://storage-1:7070"      # or several with commas between, or etcd://etcd-1:2379,etcd-2:2379
    key_file = "~/.config/dieselfs/key"
    tls_ca = "/etc/dieselfs/ca.pem"      # switches TLS on
    etcd_user = "dieselfs"               # for etcd://; also etcd_tls_ca, etcd_tls_certificate, etcd_tls_key
    etcd_password_file = "/etc/dieselfs/etcd.password"
    job = "auto"                         # programs that read pool their memory (docs/training.md)
    job_secret = "~/.config/dieselfs/job"  # also job_memory, job_nodes, job_node, job_host

Environment: the same names in capitals behind DIESELFS_ (DIESELFS_SERVER), DIESELFS_CONFIG (another file),
DIESELFS_HOME (where embedded data lives). Without a server anywhere, everything is embedded in that home.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dieselfs.cache.job import JOB_SETTINGS, JobSettings, found_again
from dieselfs.errors import InvalidInput
from dieselfs.etcd import ETCD_SETTINGS, EtcdAccess

EMBEDDED = "embedded"
"""As a server: the private one in the home, even if the configuration names another."""

SYSTEM_CONFIG = Path("/etc/dieselfs/config.toml")


@dataclass(frozen=True, slots=True)
class Settings:
    """`server` None means embedded."""

    home: Path
    cache: Path
    server: str | None = None
    key_file: str | None = None
    tls_ca: str | None = None
    etcd: EtcdAccess = field(default_factory=EtcdAccess)
    job: JobSettings = field(default_factory=JobSettings)

    @classmethod
    def load(
        cls,
        server: str | None = None,
        key_file: str | None = None,
        tls_ca: str | None = None,
        home: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> "Settings":
        """The settings in force; arguments that are not None win. Raises InvalidInput for a broken file."""
        user_home = Path(environment.get("HOME") or Path.home())
        data = Path(environment.get("XDG_DATA_HOME") or user_home / ".local/share")
        cache = Path(environment.get("XDG_CACHE_HOME") or user_home / ".cache")
        config = Path(environment.get("XDG_CONFIG_HOME") or user_home / ".config")
        own_home = home or environment.get("DIESELFS_HOME")
        named = environment.get("DIESELFS_CONFIG")
        values = read_config(Path(named)) if named else {}
        if not named:
            for candidate in (config / "dieselfs/config.toml", SYSTEM_CONFIG):
                if candidate.exists():
                    values = read_config(candidate)
                    break
        values |= {
            name: environment[f"DIESELFS_{name.upper()}"]
            for name in _KEYS
            if environment.get(f"DIESELFS_{name.upper()}")
        }
        settings = cls(
            home=Path(own_home or data / "dieselfs").expanduser().absolute(),
            cache=Path(own_home).expanduser().absolute() / "cache" if own_home else cache / "dieselfs",
            server=server or values.get("server"),
            key_file=key_file or values.get("key_file"),
            tls_ca=tls_ca or values.get("tls_ca"),
            etcd=EtcdAccess.of(values),
            job=JobSettings.of(values),
        )
        return replace(settings, server=None) if settings.server == EMBEDDED else settings

    def in_job(
        self, name: str | None, secret: str | os.PathLike[str] | None, memory_bytes: int | None
    ) -> "Settings":
        """The same with what is not None instead of what was configured of the job."""
        told = {
            "name": name,
            "secret": None if secret is None else found_again(os.fspath(secret)),
            "memory_bytes": memory_bytes,
        }
        changes: dict[str, Any] = {field: value for field, value in told.items() if value is not None}
        return replace(self, job=replace(self.job, **changes))


_KEYS = frozenset({"server", "key_file", "tls_ca"}) | ETCD_SETTINGS | JOB_SETTINGS


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a TOML file. Raises InvalidInput, naming the file and the line."""
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(f"configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"configuration file {path}: {error}") from None
    for name, value in values.items():
        if name not in _KEYS:
            raise InvalidInput(
                f"configuration file {path}: unknown setting {name!r} (known: {', '.join(sorted(_KEYS))})"
            )
        if not isinstance(value, str):
            raise InvalidInput(f"configuration file {path}: {name} must be text in quotes")
    return values
