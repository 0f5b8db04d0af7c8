"""A program's way into its job: what settings, launchers and files say of it, put together. This module opens files."""

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dieselfs.cache.job import AUTO, Job, find_job
from dieselfs.cache.node_socket import NodeClient, job_socket_path, runtime_folder
from dieselfs.cache.secret import JobSecret, find_secret
from dieselfs.config import EMBEDDED, Settings
from dieselfs.errors import InvalidInput
from dieselfs.job_daemon import JobDaemon
from dieselfs.meta.snapshot import Snapshot
from dieselfs.meta.snapshot_format import PREAMBLE_BYTES
from dieselfs.peers.attachment import Attachment
from dieselfs.reader import ChunkReader

STANDARD_INPUT = "/proc/self/fd/0"


@dataclass(frozen=True, slots=True)
class JobAccess:
    """The place of this process in a job, and what it needs to take it. `location`: the dataset, as daemons open it."""

    settings: Settings
    location: str
    job: Job
    secret: JobSecret

    @classmethod
    def find(
        cls,
        settings: Settings,
        dataset: str,
        tag: str = "",
        is_asked_for: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> "JobAccess | None":
        """None if the settings name no job, or `auto` where no launcher does.

        Raises InvalidInput if the job `is_asked_for` all the same, or what is said of it cannot be; AccessDenied if its
        secret cannot be read.
        """
        told = settings.job
        if not told.name:
            return None
        job = find_job(
            environment, socket.gethostname(), None if told.name == AUTO else told.name, node=told.node
        )
        if job is None:
            if not is_asked_for:
                return None
            raise InvalidInput(
                "job=auto: neither Slurm, torchrun nor Open MPI speaks of a job here; give it a name"
            )
        secret = find_secret(told.secret, settings.key_file, dataset, job.name)
        return cls(settings, f"{dataset}@{tag}" if tag else dataset, job, secret)

    def attach(self, snapshot: Snapshot, reader: ChunkReader) -> Attachment:
        """This process's part in the job's memory; nothing is started or asked before it is used."""
        fingerprint = self.secret.fingerprint()
        path = job_socket_path(runtime_folder(), snapshot.dataset, snapshot.digest, self.job, fingerprint)
        daemon = JobDaemon(
            path,
            snapshot.digest,
            self.job.rank,
            self.daemon_command(snapshot),
            self._log_path(),
            supply=partial(open_snapshot, snapshot),
        )
        node = NodeClient(path, snapshot.digest)
        return Attachment(snapshot, reader, node, self.job.node, self.secret.peer_key(), daemon)

    def daemon_command(self, snapshot: Snapshot) -> list[str]:
        """The program that becomes the master of this node. It is given our snapshot (`open_snapshot`): the servers may
        have put newer ones in its place by then.
        """
        settings, told = self.settings, self.settings.job
        command = [sys.executable, "-P", "-m", "dieselfs_client.cache_daemon", self.location, "--until-idle"]
        options = {
            "--generation": snapshot.generation,
            "--snapshot": STANDARD_INPUT,
            "--memory": told.memory_bytes,
            "--server": settings.server or EMBEDDED,
            "--key-file": settings.key_file and os.path.abspath(settings.key_file),
            "--home": None if settings.server else settings.home,
            "--job": self.job.name,
            "--job-rank": self.job.rank,
            "--job-node": self.job.node,
            "--job-nodes": told.nodes or None,
            "--job-host": told.host,
            "--job-secret": told.secret,
        }
        for option, value in options.items():
            if value is not None:
                command += [option, str(value)]
        return command

    def _log_path(self) -> Path:
        """Where that writes its log."""
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
        return state / "dieselfs" / f"job-{self.job.name}-{self.job.node}.log"


def open_snapshot(snapshot: Snapshot) -> int:
    """A descriptor of the file of a snapshot, or of a copy in memory if that was cleared away, or another was saved in
    its place. Raises OSError.
    """
    with suppress(OSError):
        descriptor = os.open(snapshot.source, os.O_RDONLY | os.O_CLOEXEC)
        preamble = snapshot.content[:PREAMBLE_BYTES]  # it has the digest of the rest
        if os.pread(descriptor, PREAMBLE_BYTES, 0) == preamble:
            return descriptor
        os.close(descriptor)
    copy = os.memfd_create("dieselfs-snapshot", os.MFD_CLOEXEC)
    with open(copy, "wb", closefd=False) as file:
        file.write(snapshot.content)
    return copy
