"""GlusterFS: one brick, a folder of the storage host, and its FUSE client. This module starts processes."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import Popen

from bench.harness.figures import RunFailed
from bench.harness.forms import lack
from bench.rivals.rival import START_TIMEOUT_S, Files
from lab.cluster import listens
from lab.namespace import wait_for
from lab.network import Host

_PORT = 24007
_VOLUME = "files"
_DAEMON = """\
volume management
    type mgmt/glusterd
    option working-directory {folder}/state
    option run-directory {folder}/run
    option glusterd-sockfile {folder}/glusterd.socket
    option transport-type socket
    option transport.socket.listen-port {port}
    option transport.socket.bind-address {address}
    option ping-timeout 0
    option max-port 60999
end-volume
"""
_PLACES = {"/var/lib/glusterd": "state", "/run/gluster": "run", "/var/log/glusterfs": "log"}
"""What it has in fixed places, by the folder of ours that it sees there."""


class GlusterFs(Files):
    name = "GlusterFS"

    def __init__(self, address: str, daemon: "Popen[bytes]", bricks: Sequence[int]) -> None:
        self._address, self._processes = address, [daemon.pid, *bricks]

    def servers(self) -> Sequence[int]:
        return self._processes

    def command(self, host: Host, mountpoint: Path) -> Sequence[str | Path]:
        server = [f"--volfile-server={self._address}", f"--volfile-id={_VOLUME}"]
        return ["glusterfs", "--no-daemon", *server, f"--log-file={host.folder}/gluster.log", mountpoint]


@contextmanager
def running_glusterfs(folder: Path, storage: Host) -> Iterator[GlusterFs]:
    """Until the end of the block. `folder`: new. Raises RunFailed."""
    missing = lack("glusterd", "glusterfs-server")
    if missing is not None:
        raise RunFailed(missing)
    for name in ("brick", *_PLACES.values()):
        (folder / name).mkdir(parents=True)
    settings = folder / "glusterd.vol"
    settings.write_text(_DAEMON.format(folder=folder, port=_PORT, address=storage.address))
    binds = [f"mount --bind {shlex.quote(f'{folder}/{name}')} {place}" for place, name in _PLACES.items()]
    script = " && ".join([*binds, 'exec "$@"'])
    words = ["unshare", "--mount", "sh", "-c", script, "sh", "glusterd", "--no-daemon", "-f", str(settings)]
    before = set(storage.processes())
    daemon = storage.start(words)
    wait_for(partial(listens, storage, _PORT), "glusterd listens", START_TIMEOUT_S)
    command = ["gluster", "--mode=script", f"--glusterd-sock={folder}/glusterd.socket"]
    command.append(f"--log-file={folder}/command.log")
    storage.run([*command, "volume", "create", _VOLUME, f"{storage.address}:{folder}/brick", "force"])
    storage.run([*command, "volume", "start", _VOLUME])
    bricks = sorted(set(storage.processes()) - before - {daemon.pid})
    try:
        yield GlusterFs(storage.address, daemon, bricks)
    finally:
        storage.kill(daemon)  # the network ends the bricks
