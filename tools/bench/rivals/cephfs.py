"""CephFS: a monitor, a metadata server, an OSD in memory, and ceph-fuse on the clients.

The kernel's client would be faster, but needs a kernel with Ceph. This module starts processes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from bench.harness.figures import RunFailed
from bench.harness.forms import lack
from bench.rivals.rival import Files
from lab.ceph import RunningCeph, running_files
from lab.network import Host


class CephFs(Files):
    name = "CephFS"

    def __init__(self, ceph: RunningCeph, metadata: "Popen[bytes]") -> None:
        self._ceph = ceph
        self._processes = [each.pid for each in (ceph.mon, ceph.osd, metadata)]

    def servers(self) -> Sequence[int]:
        return self._processes

    def command(self, host: Host, mountpoint: Path) -> Sequence[str | Path]:
        return ["ceph-fuse", "-c", self._ceph.conf, "-n", "client.admin", "-f", mountpoint]


@contextmanager
def running_cephfs(ceph: RunningCeph, storage: Host) -> Iterator[CephFs]:
    """Of a running cluster, until the end of the block. Raises RunFailed."""
    missing = lack("ceph-mds", "ceph-mds") or lack("ceph-fuse", "ceph-fuse")
    if missing is not None:
        raise RunFailed(missing)
    with storage.inside(), running_files(ceph) as metadata:
        yield CephFs(ceph, metadata)
