"""A client of etcd: values under a prefix, and values with a lease. This module opens sockets and files.

Each operation opens a session of its own, which takes a few milliseconds every few seconds at most. So no expired token
and no channel to a dead member is reused. A process must not use gRPC after its parent did, because it may hang;
`dieselfs.etcd.helper` is for such processes.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dieselfs.errors import AccessDenied, InvalidInput, Unavailable, os_errors_as
from dieselfs.limits import ETCD_TIMEOUT_S
from dieselfs.net.address import EtcdAddress, TcpAddress
from dieselfs.net.private_file import read_private_file

PASSWORD_FILE_BYTES_MAX = 1024

_T = TypeVar("_T")

_process_id = 0
"""The process that used gRPC: this one or an ancestor by fork; 0 for none."""


def is_usable() -> bool:
    """Whether this process may use gRPC: False in a fork of a process that used it."""
    return _process_id in (0, os.getpid())


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Credentials for etcd: file names, and a user. TLS is used if there is any certificate."""

    user: str | None = None
    password_file: str | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "EtcdAccess":
        """From the settings `etcd_user`, `etcd_password_file` and so on; paths become absolute. Raises InvalidInput."""
        values = {name: settings.get(f"etcd_{name}") for name in cls.__slots__}
        for name, value in values.items():
            if value and name != "user":
                values[name] = os.path.abspath(os.path.expanduser(value))
        access = cls(**values)
        if bool(access.user) != bool(access.password_file):
            raise InvalidInput("a user of etcd needs both etcd_user and etcd_password_file")
        if bool(access.tls_certificate) != bool(access.tls_key):
            raise InvalidInput("a certificate for etcd needs both etcd_tls_certificate and etcd_tls_key")
        return access


class Etcd:
    """Thread-safe. Every method blocks for at most ETCD_TIMEOUT_S per member.

    All raise Unavailable if no member of the cluster answers, and AccessDenied if it refuses the credentials.
    """

    def __init__(self, address: EtcdAddress, access: EtcdAccess) -> None:
        """Raises InvalidInput if the etcd client package is not installed."""
        self.address = address
        self.access = access
        self._members = list(address.members)  # the last one that answered comes first
        self._pyetcd, self._grpc = _import_client()

    def values(self, prefix: str) -> dict[str, bytes]:
        """All values under `prefix`, by key."""
        return self._run(
            lambda client: {
                item.key.decode("utf-8", "replace"): value for value, item in client.get_prefix(prefix)
            }
        )

    def put(self, key: str | bytes, value: bytes | str, lease: int = 0) -> None:
        """Set a value; with a lease, until the lease ends."""
        self._run(lambda client: client.put(key, value, lease or None))

    def grant_lease(self, duration_s: int) -> int:
        return self._run(lambda client: int(client.lease(duration_s).id))

    def keep_alive(self, lease: int) -> bool:
        """Renew a lease. False if it has expired, and all its values with it."""
        return self._run(lambda client: any(reply.TTL > 0 for reply in client.refresh_lease(lease)))

    def revoke(self, lease: int) -> None:
        """End a lease, unless it has expired."""

        def revoke(client: Any) -> None:
            try:
                client.revoke_lease(lease)
            except self._grpc.RpcError as error:
                if error.code() is not self._grpc.StatusCode.NOT_FOUND:
                    raise

        self._run(revoke)

    def _run(self, work: Callable[[Any], _T]) -> _T:
        """Do `work` with the first member that answers."""
        global _process_id
        assert is_usable(), "gRPC hangs after a fork; see dieselfs.etcd.helper"
        _process_id = os.getpid()
        reasons = []
        members = self._members
        for member in members:
            try:
                with self._session(member) as client:
                    result = work(client)
            except (self._pyetcd.Etcd3Exception, self._grpc.RpcError) as error:
                self._raise_refusal(error)
                reasons.append(f"{member.host}:{member.port}: {_reason(error)}")
                continue
            self._members = [member, *(other for other in members if other != member)]
            return result
        raise Unavailable(f"cannot reach etcd at {self.address} ({'; '.join(reasons)})")

    def _session(self, member: TcpAddress) -> contextlib.closing[Any]:
        credentials = self._tls_credentials()
        password, file = None, self.access.password_file
        if file is not None:
            password = _read_file(file, is_secret=True).decode("utf-8", "replace").strip()
        endpoint = self._pyetcd.Endpoint(
            f"[{member.host}]" if ":" in member.host else member.host,
            member.port,
            secure=credentials is not None,
            creds=credentials,
            time_retry=0,  # `_run` chooses the member
            opts=[("grpc.enable_http_proxy", 0)],  # a proxy is outside of the cluster
        )
        try:
            session = self._pyetcd.MultiEndpointEtcd3Client(
                [endpoint], ETCD_TIMEOUT_S, self.access.user, password
            )
        except BaseException:
            endpoint.close()
            raise
        session.call_credentials = None  # the token is in the metadata; gRPC allows this one over TLS only
        return contextlib.closing(session)

    def _tls_credentials(self) -> Any:
        files = [self.access.tls_ca, self.access.tls_key, self.access.tls_certificate]
        if not any(files):
            return None
        contents = [_read_file(name) if name else None for name in files]
        return self._grpc.ssl_channel_credentials(*contents)

    def _raise_refusal(self, error: Exception) -> None:
        """Raise AccessDenied if a member refused the credentials."""
        if not isinstance(error, self._grpc.RpcError) or not isinstance(error, self._grpc.Call):
            return
        codes = self._grpc.StatusCode
        if error.code() in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED, codes.INVALID_ARGUMENT):
            raise AccessDenied(
                f"etcd at {self.address} refuses user {self.access.user or '(none)'}: {error.details()}"
            ) from None


def _reason(error: Any) -> str:
    """The cause in a few words; texts of gRPC errors have many lines."""
    name = error.code().name if hasattr(error, "code") else type(error).__name__
    if name in ("UNAVAILABLE", "ConnectionFailedError"):
        return "no connection"
    if name in ("DEADLINE_EXCEEDED", "ConnectionTimeoutError"):
        return "no answer in time"
    return str(error.details()) if hasattr(error, "details") else str(name)


def _import_client() -> tuple[Any, Any]:
    # gRPC's fork handlers fail while another thread has a request, and then sometimes crash the child. Forks of this
    # process never use gRPC (`is_usable`), so the handlers are not needed.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        import grpc
        import pyetcd
    except ImportError as error:
        raise InvalidInput(
            f"etcd needs a package that is not installed ({error.name}): in a checkout: pip install '.[etcd]'"
        ) from None
    return pyetcd, grpc


def _read_file(name: str, is_secret: bool = False) -> bytes:
    """Raises AccessDenied if the file cannot be read, or if it is a secret that other users can read."""
    if is_secret:
        return read_private_file(name, PASSWORD_FILE_BYTES_MAX, "password file")
    with os_errors_as(AccessDenied, f"cannot read {name} for etcd"):
        return Path(name).read_bytes()
