"""The settings of a server, from options, a TOML file and etcd. This module opens files and sockets.

All three use the same names; `docs/reference/settings.md` lists them, with the places where each can be set.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dieselfs.errors import InvalidInput
from dieselfs.etcd.client import Etcd, EtcdAccess
from dieselfs.etcd.helper import read_values_apart
from dieselfs.etcd.keys import CONFIG_PREFIX, decode_settings
from dieselfs.net.address import (
    Address,
    EtcdAddress,
    TcpAddress,
    UnixAddress,
    parse_address,
    parse_etcd,
    parse_metrics_address,
    parse_web_address,
    path_of,
    split,
)
from dieselfs.net.auth import check_local_name
from dieselfs.process.system_limits import usable_processors
from dieselfs.rpc.serving.slots import part_of
from dieselfs.settings.table import BY_NAME, DEFAULT_LISTEN, INFO, OFF, ON, Place, check_known, read_config
from dieselfs_server.store.wrapper import Bounds


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The registry of a server, and the addresses at which clients reach it."""

    etcd: EtcdAddress
    access: EtcdAccess
    addresses: Sequence[TcpAddress]

    def danger(self) -> str:
        """What others can do at etcd, on the network or on this machine; empty if nothing."""
        is_local = all(member.is_loopback for member in self.etcd.members)
        if not self.access.user and not self.access.tls_certificate:
            who = "user of this machine" if is_local else "host that can connect"
            return f"has no users: every {who} can send clients to other servers, and stop new ones"
        if not is_local and not (self.access.tls_ca or self.access.tls_certificate):
            return "is used without TLS: hosts on the way can read the password, and act as this server there"
        return ""


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """`audiences`: the applications whose tokens count. `groups`: the group here by that of the provider; others do not
    count. `authority`: a file of certificates that are trusted as well. `lifetime_s`: of the keys. `client_id` and
    `secret_file`: of the web page.
    """

    issuer: str
    audiences: Sequence[str]
    user_claim: str = "preferred_username"
    groups_claim: str = "groups"
    groups: Mapping[str, str] = field(default_factory=dict)
    lifetime_s: float = 8 * 3600.0
    authority: str | None = None
    client_id: str = "dieselfs"
    secret_file: str | None = None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`lock` and `idle_exit_s` are for the embedded server: one per home, which exits when idle for `idle_exit_s`.

    `is_new`: the store may be without a marker, which is then created. `attach_roots` None: each source that the
    server's user may read.
    """

    listen: Sequence[Address]
    store: str
    metadata: str
    state: Path
    tls: str = ON
    tls_certificate: str | None = None
    tls_key: str | None = None
    server_identity: str | None = None
    admin_key: str | None = None
    registry: RegistrySettings | None = None
    lock: Path | None = None
    idle_exit_s: float | None = None
    is_new: bool = False
    log_level: str = INFO
    audit_log: Path | None = None
    audit_to: str | None = None
    metrics: TcpAddress | None = None
    metrics_token: str | None = None
    metrics_users: str = OFF
    web: TcpAddress | None = None
    web_names: Sequence[str] = ()
    shared_memory_bytes: int | None = None
    provider: ProviderSettings | None = None
    attach_roots: Sequence[str] | None = ()
    large_reads: int | None = None
    workers: int = 1

    @property
    def has_identity_file(self) -> bool:
        return bool(self.server_identity) and not str(self.server_identity).startswith("pkcs11:")

    @property
    def bounds(self) -> Bounds:
        """The limits of the store, of which each worker has an equal part."""
        usual = Bounds()
        return replace(
            usual,
            reads_max=part_of(usual.reads_max, self.workers),
            large_reads_max=part_of(self.large_reads_max, self.workers),
        )

    @property
    def large_reads_max(self) -> int:
        """The limit of all workers, or of all servers over one disk."""
        return Bounds().large_reads_max if self.large_reads is None else self.large_reads

    @classmethod
    def embedded(
        cls, home: Path, idle_exit_s: float, environment: Mapping[str, str] = os.environ
    ) -> "ServerSettings":
        """Of a home, which is new if it has neither metadata nor chunks. Raises InvalidInput for the environment."""
        shared = BY_NAME["shared_memory"]
        text = environment.get(shared.variable)
        chunks = home / "chunks"
        is_new = not (home / "metadata.db").exists() and not (chunks.is_dir() and any(chunks.iterdir()))
        return cls(
            listen=[UnixAddress(str(home / "run" / "server.sock"))],
            store=f"posix://{home}/chunks",
            metadata=f"sqlite://{home}/metadata.db",
            state=home / "state",
            lock=home / "run" / "server.lock",
            idle_exit_s=idle_exit_s,
            is_new=is_new,
            shared_memory_bytes=shared.read(text, shared.variable) if text else None,
            attach_roots=None,  # only the user whose files these are can connect
        )

    @classmethod
    def load(cls, config: Path | None, options: dict[str, Any]) -> "ServerSettings":
        """Settings from options, then the TOML file, then etcd, if options or file name one.

        Options that are None or empty count as not given. Raises InvalidInput; Unavailable and AccessDenied for etcd.
        """
        values = read_config(config, Place.SERVER) if config else {}
        values |= {name: value for name, value in options.items() if value not in (None, "", (), [])}
        etcd = parse_etcd(values["etcd"]) if "etcd" in values else None
        access = EtcdAccess.of(values)
        if etcd is not None:
            values = _read_etcd(etcd, access) | values
        for name in ("store", "metadata"):
            if name not in values:
                raise InvalidInput(f"--{name} is missing: give a URL, for example {_EXAMPLES[name]}")
        if bool(values.get("tls_certificate")) != bool(values.get("tls_key")):
            raise InvalidInput("a certificate needs both --tls-certificate and --tls-key")
        state = values.get("state")
        listen = [parse_address(text) for text in values.get("listen") or [DEFAULT_LISTEN]]
        advertise = [parse_address(text) for text in values.get("advertise") or []]
        web = parse_web_address(values["web"]) if "web" in values else None
        made = {
            "listen": listen,
            "state": Path(state) if state else _default_state(values["metadata"]),
            "audit_log": Path(values["audit_log"]) if "audit_log" in values else None,
            "metrics": parse_metrics_address(values["metrics"]) if "metrics" in values else None,
            "web": web,
            "web_names": _web_names(
                [*listen, *advertise, *([web] if web else [])], values.get("web_names", ())
            ),
            "provider": _provider(values),
            "large_reads": _large_reads(values),
            "workers": _workers(values, listen),
            "registry": RegistrySettings(etcd, access, advertised(listen, advertise)) if etcd else None,
        }
        as_given = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        return cls(**(as_given | made))


def _web_names(addresses: Sequence[Address], names: Sequence[str]) -> tuple[str, ...]:
    """The names and addresses of the web page in browsers, in small letters."""
    hosts = [address.host for address in addresses if isinstance(address, TcpAddress)]
    hosts = [host for host in hosts if host not in _WILDCARDS]
    own = socket.gethostname()
    return tuple(dict.fromkeys(name.lower() for name in (*names, own, own.partition(".")[0], *hosts)))


def _large_reads(values: Mapping[str, Any]) -> int | None:
    """Raises InvalidInput."""
    found: int | None = values.get("large_reads")
    reads_max = Bounds().reads_max
    if found is not None and not 1 <= found <= reads_max:
        raise InvalidInput(f"large_reads is {found}: give a number from 1 to {reads_max}")
    return found


PROVIDER_LIFETIME_S = 60.0, 7 * 86_400.0
"""Least and most of `oidc_lifetime`."""


def _provider(values: Mapping[str, Any]) -> ProviderSettings | None:
    """Raises InvalidInput."""
    found = {name.removeprefix("oidc_"): value for name, value in values.items() if name.startswith("oidc_")}
    if "issuer" not in found:
        if found:
            raise InvalidInput(f"oidc_{min(found)} belongs to a provider: set oidc_issuer as well")
        return None
    if not found["issuer"].startswith("https://"):
        raise InvalidInput(f"oidc_issuer {found['issuer']}: it begins with https://")
    least_s, most_s = PROVIDER_LIFETIME_S
    settings = ProviderSettings(
        found.pop("issuer"), found.pop("audience", ("dieselfs",)), authority=found.pop("ca", None), **found
    )
    for group in settings.groups.values():
        check_local_name(group)
    if not least_s <= settings.lifetime_s <= most_s:
        raise InvalidInput("oidc_lifetime is 1min to 7d")
    return settings


WORKERS_MAX = 64
DEFAULT_WORKERS_MAX = 8
PROCESSORS_PER_WORKER = 2
"""By default. A worker keeps 1.2 to 1.5 of them busy, and the stores, or clients on the machine, need some too."""


def default_workers(processors: int) -> int:
    return max(1, min(processors // PROCESSORS_PER_WORKER, DEFAULT_WORKERS_MAX))


def _workers(values: Mapping[str, Any], listen: Sequence[Address]) -> int:
    """How many processes serve. Raises InvalidInput."""
    found: int | None = values.get("workers")
    if found is not None and not 1 <= found <= WORKERS_MAX:
        raise InvalidInput(f"workers is {found}: give a number from 1 to {WORKERS_MAX}")
    if found is not None and found > 1 and (reason := _alone(values, listen)):
        raise InvalidInput(f"workers is {found}: {reason}; leave it out, or set it to 1")
    if found is not None:
        return found
    return 1 if _alone(values, listen) else default_workers(usable_processors())


def _alone(values: Mapping[str, Any], listen: Sequence[Address]) -> str:
    """Why a server with these settings has one process; empty if it may have several."""
    for name in ("store", "metadata"):
        if split_url(values[name])[0] == "memory":
            return f"{name} {values[name]} is in the memory of one process"
    if split(values["store"]).scheme == "tiered":
        return "one process has the list of what is in the fast tier"
    if not any(isinstance(address, TcpAddress) for address in listen):
        return "Unix sockets are served by one process, whose memory their clients share"
    return ""


_EXAMPLES = {"store": "posix:///data/dieselfs/chunks", "metadata": "sqlite:///data/dieselfs/metadata.db"}


def _default_state(metadata: str) -> Path:
    """Beside the SQLite file."""
    scheme, path = split_url(metadata)
    if scheme != "sqlite" or path == ":memory:":
        raise InvalidInput("--state is missing: name a folder in which the server keeps snapshots")
    return Path(path).parent / "state"


def split_url(url: str) -> tuple[str, str]:
    """`(scheme, path)` of `posix:///path`, `sqlite:///path`, `memory:`. Raises InvalidInput."""
    scheme = split(url).scheme
    if not scheme:
        raise InvalidInput(f"{url!r} is not a URL: give one, for example {_EXAMPLES['store']}")
    return scheme, path_of(url)


def advertised(listen: Sequence[Address], advertise: Sequence[Address]) -> list[TcpAddress]:
    """The addresses at which clients reach a server. Raises InvalidInput if there are none, or one is a wildcard."""
    addresses = [address for address in advertise or listen if isinstance(address, TcpAddress)]
    if not addresses:
        raise InvalidInput("--etcd is for servers that are reached by TCP: add --listen tcp://HOST:PORT")
    for address in addresses:
        if address.host in _WILDCARDS:
            raise InvalidInput(
                f"clients cannot connect to {address}: give the server's address with --advertise tcp://HOST:PORT"
            )
    return addresses


_WILDCARDS = ("0.0.0.0", "::")


def _read_etcd(address: EtcdAddress, access: EtcdAccess) -> dict[str, Any]:
    settings = decode_settings(read_values_apart(Etcd(address, access), CONFIG_PREFIX))  # workers are forks
    check_known(settings, Place.ETCD, f"etcd keys below {CONFIG_PREFIX}")
    return dict(settings)
