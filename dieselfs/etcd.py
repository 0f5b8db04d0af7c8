"""etcd, as far as dieselfs uses it: values under a prefix, and a value that lasts as long as its lease. This module
opens sockets and files.

Every operation has a session of its own, which takes a few milliseconds and happens every few seconds at most. So
nothing stale is kept: no token that has expired, no channel to a member that is gone. What a process cannot do is to
use gRPC after its parent did: it may hang (`etcd_helper` is the way around).
"""

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dieselfs.errors import AccessDenied, InvalidInput, Unavailable
from dieselfs.limits import ETCD_TIMEOUT_S
from dieselfs.rpc.address import EtcdAddress, TcpAddress

PASSWORD_FILE_BYTES_MAX = 1024

_T = TypeVar("_T")

_process_id = 0
"""Of the process that has used gRPC: this one, or the one that it is a fork of; 0 for neither."""


def is_usable() -> bool:
    """Whether this process may talk to etcd itself: False in a fork of one that has."""
    return _process_id in (0, os.getpid())


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """How to be let in: names of files, and a user whose password is in one. TLS if there is any certificate."""

    user: str | None = None
    password_file: str | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "EtcdAccess":
        """From settings called `etcd_user`, `etcd_password_file` and so on. Raises InvalidInput.

        Files are found again after a change of folder.
        """
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


ETCD_SETTINGS = frozenset(f"etcd_{name}" for name in EtcdAccess.__slots__)


class Etcd:
    """Safe between threads. Every method blocks, for ETCD_TIMEOUT_S a member at most.

    All raise Unavailable if no member of the cluster answers, and AccessDenied if it does not let us in.
    """

    def __init__(self, address: EtcdAddress, access: EtcdAccess) -> None:
        """Raises InvalidInput without the package that speaks to etcd."""
        self.address = address
        self.access = access
        self._members = list(address.members)  # who answered last stands first
        self._pyetcd, self._grpc = _import_client()

    def values(self, prefix: str) -> dict[str, bytes]:
        """All values under `prefix`, by key."""
        return self._run(
            lambda client: {
                item.key.decode("utf-8", "replace"): value for value, item in client.get_prefix(prefix)
            }
        )

    def put(self, key: str | bytes, value: bytes | str, lease: int = 0) -> None:
        """Set a value. With a lease, it is gone when the lease is."""
        self._run(lambda client: client.put(key, value, lease or None))

    def grant_lease(self, duration_s: int) -> int:
        return self._run(lambda client: int(client.lease(duration_s).id))

    def keep_alive(self, lease: int) -> bool:
        """Make the lease last anew. False if it has run out, and with it all values that had it."""
        return self._run(lambda client: any(reply.TTL > 0 for reply in client.refresh_lease(lease)))

    def revoke(self, lease: int) -> None:
        """End a lease now, if there is still one."""

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
        assert is_usable(), "gRPC hangs after a fork; see etcd_helper"
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
        endpoint = self._pyetcd.Endpoint(
            f"[{member.host}]" if ":" in member.host else member.host,
            member.port,
            secure=credentials is not None,
            creds=credentials,
            time_retry=0,  # which member to ask is decided here
            opts=[("grpc.enable_http_proxy", 0)],  # proxies of the environment lead out of the cluster
        )
        try:
            session = self._pyetcd.MultiEndpointEtcd3Client(
                [endpoint], ETCD_TIMEOUT_S, self.access.user, self._password()
            )
        except BaseException:
            endpoint.close()
            raise
        session.call_credentials = None  # the token goes as metadata too; gRPC allows this one over TLS only
        return contextlib.closing(session)

    def _tls_credentials(self) -> Any:
        files = [self.access.tls_ca, self.access.tls_key, self.access.tls_certificate]
        if not any(files):
            return None
        contents = [_read_file(name) if name else None for name in files]
        return self._grpc.ssl_channel_credentials(*contents)

    def _password(self) -> str | None:
        if self.access.password_file is None:
            return None
        return _read_file(self.access.password_file, is_secret=True).decode("utf-8", "replace").strip()

    def _raise_refusal(self, error: Exception) -> None:
        """Raise AccessDenied if a member answered, and the answer was that we may not."""
        if not isinstance(error, self._grpc.RpcError) or not isinstance(error, self._grpc.Call):
            return
        codes = self._grpc.StatusCode
        if error.code() in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED, codes.INVALID_ARGUMENT):
            raise AccessDenied(
                f"etcd at {self.address} refuses user {self.access.user or '(none)'}: {error.details()}"
            ) from None


def _reason(error: Any) -> str:
    """What went wrong, in a few words; errors of gRPC itself carry many lines."""
    name = error.code().name if hasattr(error, "code") else type(error).__name__
    if name in ("UNAVAILABLE", "ConnectionFailedError"):
        return "no connection"
    if name in ("DEADLINE_EXCEEDED", "ConnectionTimeoutError"):
        return "no answer in time"
    return str(error.details()) if hasattr(error, "details") else str(name)


def _import_client() -> tuple[Any, Any]:
    # gRPC's own handling of forks gives up while another thread asks, and what it leaves half done ends the child now
    # and then. Forks of this process never use gRPC (`is_usable`), so it is not needed.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        import grpc
        import pyetcd
    except ImportError as error:
        raise InvalidInput(
            f"etcd needs a package that is not installed ({error.name}): pip install 'dieselfs[etcd]'"
        ) from None
    return pyetcd, grpc


def _read_file(name: str, is_secret: bool = False) -> bytes:
    """Raises AccessDenied if it cannot be read, or if it is a secret that others can read too."""
    path = Path(name)
    try:
        with path.open("rb") as file:
            if is_secret and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise AccessDenied(f"password file {path} can be read by others: chmod 600 {path}")
            return file.read(PASSWORD_FILE_BYTES_MAX if is_secret else -1)
    except OSError as error:
        raise AccessDenied(f"file for etcd {path}: {error.strerror}") from None
