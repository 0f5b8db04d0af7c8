"""A program's job, from its settings, its launcher and the secret's file. This module opens files."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dieselfs.cluster.job import Job, find_job, required_job
from dieselfs.cluster.node_client import NodeClient, job_socket_path
from dieselfs.cluster.secret import JobSecret, find_secret
from dieselfs.process.state_dirs import log_path, runtime_folder
from dieselfs.settings.table import EMBEDDED, JOB_FIELDS, OFF, CacheOptions, Settings
from dieselfs.snapshot.format import PREAMBLE_BYTES
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.server import ServerSource

if TYPE_CHECKING:  # imported in a job alone
    from dieselfs.cluster.attachment import Attachment


@dataclass(frozen=True, slots=True)
class JobAccess:
    """The identity and the secret with which this process takes part in its job. `location`: as daemons open it."""

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
        is_required: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> "JobAccess | None":
        """None if the settings name no job, or `auto` where no launcher does.

        Raises InvalidInput if the job `is_required` and missing, or its settings are invalid; AccessDenied if its
        secret cannot be read.
        """
        chosen = settings.job
        if not chosen.job:
            return None
        job = find_job(chosen, environment, socket.gethostname())
        if job is None and not is_required:
            return None
        job = required_job(job)
        secret = find_secret(chosen.job_secret, settings.key_file, dataset, job.name)
        return cls(settings, f"{dataset}@{tag}" if tag else dataset, job, secret)

    def attach(self, snapshot: Snapshot, reader: ServerSource) -> "Attachment":
        """The connection to the job's memory; nothing is started or requested before its first use."""
        from dieselfs.cluster.attachment import Attachment
        from dieselfs.cluster.credential import JobCredential
        from dieselfs.cluster.daemon import JobDaemon

        fingerprint = self.secret.fingerprint()
        path = job_socket_path(runtime_folder(), snapshot.dataset, snapshot.digest, self.job, fingerprint)
        daemon = JobDaemon(
            path,
            snapshot.digest,
            self.job.rank,
            partial(self.daemon_command, snapshot),
            log_path("job", self.job.name, self.job.node),
            partial(open_snapshot, snapshot),
        )
        node = NodeClient(path, snapshot.digest)
        credential = JobCredential(self.secret, self.settings.tls != OFF)
        return Attachment(snapshot, reader, node, self.job.node, credential, daemon, metrics=reader.metrics)

    def daemon_command(self, snapshot: Snapshot, descriptor: int) -> list[str]:
        """The program that becomes the node master. It gets our snapshot (`open_snapshot`), as the servers may
        have a newer one.
        """
        from dieselfs.process.launch import python_command

        settings = self.settings
        options = CacheOptions(
            **{name: getattr(settings.job, name) for name in JOB_FIELDS},
            server=settings.server or EMBEDDED,
            key_file=settings.key_file,
            home=None if settings.server else str(settings.home),
            generation=snapshot.generation,
            memory_bytes=settings.job_memory_bytes,
            disk=settings.disk,
            disk_size_bytes=settings.disk_size_bytes,
        )
        job = replace(options, job=self.job.name, job_rank=self.job.rank, job_node=self.job.node).absolute()
        given = ["--until-idle", "--snapshot", f"/proc/self/fd/{descriptor}"]
        return python_command("dieselfs_client.cache_daemon", self.location, *given, *job.arguments())


def open_snapshot(snapshot: Snapshot) -> int:
    """A descriptor of a snapshot's file, or of a copy in memory if the file was removed or replaced. Raises OSError."""
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
