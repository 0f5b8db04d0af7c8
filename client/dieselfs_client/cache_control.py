"""Starts and ends the daemons that share chunks on this node, as `dlcmd cache` does. This module starts processes.

cache_control.start("imagenet", memory_bytes=8 << 30)
cache_control.stop("imagenet")
"""

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import dieselfs.errors
from dieselfs.cache.node_socket import NodeClient, peer_process, runtime_folder, socket_path
from dieselfs.errors import MountError, NotFound, Unavailable
from dieselfs.limits import CACHE_STOP_TIMEOUT_S, MOUNT_START_TIMEOUT_S, NODE_HELLO_TIMEOUT_S
from dieselfs.meta.snapshot import Snapshot
from dieselfs.names import SCHEME
from dieselfs.rpc.connection import reachable_path
from dieselfs_client.cache_daemon import READY
from dieselfs_client.job.part import lock_of, path_of
from dieselfs_client.job.pool import PoolTerms
from dieselfs_client.job_options import NO_JOB, JobOptions
from dieselfs_client.options import POLICIES

_DAEMON = "dieselfs_client.cache_daemon"
_GENERATION = "--generation"
_REPORT_BYTES_MAX = 64 << 10


def log_path(dataset: str, job: str | None = None) -> Path:
    """Where the daemon of a dataset writes its log, or that of a job which reads it."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    name = dataset[-100:] if job is None else f"{dataset[-100:]}-{job[-100:]}"
    return state / "dieselfs" / f"cache-{name}.log"


def start(
    dataset: str,
    memory_bytes: int = 0,
    policy: str = POLICIES[0],
    server: str | None = None,
    key_file: str | None = None,
    home: str | None = None,
    job: JobOptions = NO_JOB,
    warm_rate_bytes: int = 0,
    timeout_s: float = MOUNT_START_TIMEOUT_S,
    generation: int = 0,
) -> int:
    """Have a daemon share the chunks of a dataset (`name` or `name@tag`) on this node; returns its process ID.

    `memory_bytes` 0: 1 GiB, or less where the system allows less; `warm_rate_bytes`, `generation`: see `MountOptions`,
    and with a generation it is found again by `generations`. With a job, the daemon takes part in that, and the other
    nodes are waited for. Raises AlreadyExists if one does so already, what `dieselfs.connect` raises or the job refuses
    the node with, and Unavailable if it takes too long.
    """
    job.check()
    command = [sys.executable, "-P", "-m", _DAEMON, dataset]
    command += ["--memory", str(memory_bytes), "--policy", policy]
    command += ["--warm-rate", str(warm_rate_bytes), _GENERATION, str(generation)]
    for option, value in (("--server", server), ("--key-file", key_file), ("--home", home)):
        if value is not None:
            command += [option, value if option == "--server" else os.path.abspath(value)]
    command += job.absolute().arguments()
    log_file = log_path(dataset, job.job)
    log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    ready, report = os.pipe()
    try:
        with open(log_file, "ab", opener=_private_opener) as log:
            process = subprocess.Popen(
                [*command, "--report-fd", str(report)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[report],
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        os.close(report)
        report = -1
        is_answer, _, _ = select.select([ready], [], [], timeout_s)
        answer = (
            os.read(ready, _REPORT_BYTES_MAX).decode("utf-8", "surrogateescape").strip() if is_answer else ""
        )
    finally:
        os.close(ready)
        if report >= 0:
            os.close(report)
    if answer == READY:
        process.returncode = 0  # it lives on when we end: nobody is to wait for it, and nobody to be warned
        return process.pid
    process.terminate()
    try:
        process.wait(CACHE_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if not is_answer:
        raise Unavailable("the daemon was not there in time; the server may be slow, or gone")
    kind, _, message = answer.partition(" ")
    error = getattr(dieselfs.errors, kind, MountError)
    raise error(message or f"the daemon ended; see {log_file}")


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def find(snapshot: Snapshot, terms: PoolTerms | None = None) -> int | None:
    """The process that shares the chunks of a snapshot on this node, or takes part in a job without a mount; None if
    there is none that this process can see, or none that lets anybody in.
    """
    if terms is not None:
        lock = lock_of(snapshot, terms)
        try:
            return lock.cache_process()
        finally:
            lock.clear()
    path = socket_path(runtime_folder(), snapshot.dataset, snapshot.digest)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(NODE_HELLO_TIMEOUT_S)
        try:
            with reachable_path(str(path)) as name:
                probe.connect(name)
        except OSError:
            return None
        return peer_process(probe) or None


def generations(dataset: str) -> list[int]:
    """With which generations of a dataset daemons of this user were started on this node, of whatever job; sorted."""
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        place = Path("/proc", process)
        with suppress(OSError):  # it has just ended, or is not ours to look at
            if place.stat().st_uid == os.getuid():
                found.add(_started_with(os.fsdecode((place / "cmdline").read_bytes()).split("\0"), dataset))
    return sorted(found - {0})


def _started_with(words: list[str], dataset: str) -> int:
    """The generation that a daemon of the dataset was started with by this command line; 0 if it is none."""
    with suppress(ValueError, IndexError):
        location = words[words.index(_DAEMON) + 1].removeprefix(SCHEME)
        if location.partition("@")[0] == dataset:
            return int(words[words.index(_GENERATION) + 1])
    return 0


def members(snapshot: Snapshot, terms: PoolTerms) -> list[str] | None:
    """The nodes of a job as the master of this node knows them; None if there is none that answers."""
    with closing(NodeClient(path_of(snapshot, terms), snapshot.digest)) as node:
        told = node.members()
    return None if told is None or told.members is None else sorted(member.node for member in told.members)


def stop(snapshot: Snapshot, terms: PoolTerms | None = None, timeout_s: float = CACHE_STOP_TIMEOUT_S) -> int:
    """End the daemon that `find` finds; returns what its process ID was.

    Raises NotFound if there is none, Unavailable if it does not end in time.
    """
    process = find(snapshot, terms)
    if process is None:
        what = f"shares {snapshot.dataset}" if terms is None else f"is in job {terms.job.name}"
        raise NotFound(f"no daemon {what}, generation {snapshot.generation}, on this node")
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return process
    try:
        if find(snapshot, terms) != process:  # it has just ended, and the number may be another's by now
            return process
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if not select.select([descriptor], [], [], timeout_s)[0]:
            raise Unavailable(f"process {process} does not end")
    finally:
        os.close(descriptor)
    return process
