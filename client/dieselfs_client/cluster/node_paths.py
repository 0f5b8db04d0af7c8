"""The socket and the lock of the processes on this node that share a dataset. This module opens files.

Daemons without a job import this module too, so it imports little of jobs.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from dieselfs.cluster.node_client import job_socket_path, socket_path
from dieselfs.cluster.node_lock import NodeLock, lock_path
from dieselfs.process.state_dirs import runtime_folder
from dieselfs.snapshot.reader import Snapshot

if TYPE_CHECKING:
    from dieselfs_client.cluster.pool import PoolConfig


def path_of(snapshot: Snapshot, config: "PoolConfig | None") -> Path:
    """The socket of the node master; without a job, of the daemon that shares the snapshot."""
    if config is None:
        return socket_path(runtime_folder(), snapshot.dataset, snapshot.digest)
    fingerprint = config.secret.fingerprint()
    return job_socket_path(runtime_folder(), snapshot.dataset, snapshot.digest, config.job, fingerprint)


def lock_of(snapshot: Snapshot, config: "PoolConfig | None") -> NodeLock:
    """The lock of the job's processes on this node; without a job, of the daemon that shares the snapshot.

    Raises Unavailable if it cannot be used, AccessDenied if other users can access its folder.
    """
    return NodeLock(lock_path(path_of(snapshot, config)))
