"""A real etcd of one member for tests, on loopback and in its own folder; always stopped at the end."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dieselfs.errors import Unavailable
from dieselfs.etcd.client import Etcd, EtcdAccess
from dieselfs.net.address import EtcdAddress, TcpAddress
from tests.support.server import free_port

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.05


@dataclass
class RunningEtcd:
    """`start` and `kill` may be called in turn; the content stays. With a certificate and its key it uses TLS, and
    accepts only clients with the same certificate.
    """

    folder: Path
    certificate: tuple[Path, Path] | None = None
    port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> EtcdAddress:
        return EtcdAddress((TcpAddress("127.0.0.1", self.port),))

    @property
    def access(self) -> EtcdAccess:
        if self.certificate is None:
            return EtcdAccess()
        certificate, key = map(str, self.certificate)
        return EtcdAccess(tls_ca=certificate, tls_certificate=certificate, tls_key=key)

    def client(self, access: EtcdAccess | None = None) -> Etcd:
        return Etcd(self.address, access or self.access)

    def _tls_options(self) -> list[str]:
        if self.certificate is None:
            return []
        certificate, key = map(str, self.certificate)
        return [
            *("--cert-file", certificate, "--key-file", key),
            *("--client-cert-auth", "--trusted-ca-file", certificate),
        ]

    def start(self) -> None:
        """Start it, and wait until it answers."""
        scheme = "https" if self.certificate else "http"
        client, peer = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer_port}"
        command = [
            *("etcd", "--name", "test", "--data-dir", str(self.folder / "etcd")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"test={peer}"),
            *("--heartbeat-interval", "50"),
            *("--election-timeout", "500"),  # leases may be as short as a second
            *self._tls_options(),
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self.process.poll() is None and time.monotonic() < deadline_s, "etcd did not start"
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        try:
            self.client().values("/")
        except Unavailable:
            return False
        return True

    def kill(self) -> None:
        """Kill it, as in a power cut."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)
            self.process = None

    def require_users(self, *others: tuple[str, str, dict[str, str]]) -> None:
        """Enable authentication: `root` has the password `word`; each of `others` is a user with a password and a
        permission (`READ`, `READWRITE`) for each prefix.
        """
        import pyetcd
        from pyetcd import etcdrpc
        from pyetcd.utils import prefix_range_end

        with pyetcd.MultiEndpointEtcd3Client(
            [pyetcd.Endpoint("127.0.0.1", self.port, secure=False)], STOP_TIMEOUT_S
        ) as session:
            auth = session.authstub
            for name, password, prefixes in (("root", "word", {}), *others):
                auth.UserAdd(etcdrpc.AuthUserAddRequest(name=name, password=password))
                auth.RoleAdd(etcdrpc.AuthRoleAddRequest(name=name))
                auth.UserGrantRole(etcdrpc.AuthUserGrantRoleRequest(user=name, role=name))
                for prefix, kind in prefixes.items():
                    key = prefix.encode()
                    permission = {"permType": kind, "key": key, "range_end": prefix_range_end(key)}
                    auth.RoleGrantPermission(
                        etcdrpc.AuthRoleGrantPermissionRequest(name=name, perm=permission)
                    )
            auth.AuthEnable(etcdrpc.AuthEnableRequest())


@contextmanager
def running_etcd(folder: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[RunningEtcd]:
    """etcd with its data in `folder`, always stopped at the end. Skips the test if etcd is not installed."""
    if shutil.which("etcd") is None:
        pytest.skip("needs etcd: apt-get install etcd-server")
    pytest.importorskip("pyetcd", reason="needs the extra 'etcd'")
    etcd = RunningEtcd(folder, certificate)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.kill()
