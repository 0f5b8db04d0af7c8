"""Two jobs on the same hosts have nothing to do with each other: neither data, nor sockets, nor what goes wrong."""

import stat
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from dieselfs.limits import PEER_CALL_TIMEOUT_S
from lab.cluster import Cluster
from lab.job import Job, JobNode, store
from lab.load import load
from lab.namespace import wait_for
from lab.reader import read_once

FILES = 384
FILE_BYTES = 16_384
FILES_PER_CHUNK = 8
NODES = 3
FILES_PER_S = 50
"""Of each reader: it leaves the machine time for all the rest."""
READS = 50


def files_of(folder: Path) -> dict[str, int]:
    """The modes of the files and sockets in a folder, by name."""
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.iterdir() if not path.is_dir()}


def has_lost(node: JobNode, lost: JobNode) -> bool:
    """Whether it has been found out, or is off the roll by now."""
    stats = node.stats()
    return lost.name in stats["job"]["suspected"] or lost.name not in stats["job"]["members"]


def test_what_happens_to_one_job_is_nothing_to_the_other(cluster: Cluster) -> None:
    hosts = [cluster.net.host(f"node-{number}") for number in range(NODES)]
    stored = store(cluster, hosts[0], "photos", FILES, FILE_BYTES, FILES_PER_CHUNK)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(Job(name, cluster, stored.name, hosts, memory="12MiB"))
            for name in ("first", "second")
        )
        for job in (first, second):
            job.mount()
        for job in (first, second):  # each has to fetch for itself, once
            for number in range(FILES):
                read_once(str(job.nodes[0].place), f"{number}")
            assert sum(node.loads() for node in job.nodes) >= stored.chunks
        for host in hosts:
            private = host.folder / "run" / "dieselfs"
            assert stat.S_IMODE(private.stat().st_mode) == 0o700
            assert set(files_of(private).values()) <= {0o600}
        *others, lost = first.nodes
        with (
            load(second.nodes, files_per_s=FILES_PER_S) as readers,
            load(others, files_per_s=FILES_PER_S) as others_readers,
        ):
            lost.kill_mount()
            for node in others:
                wait_for(partial(has_lost, node, lost), f"{node.name} knows that {lost.name} is gone")
            readers.wait_for_reads(second.nodes, READS)
        verdict = readers.verdict(second.nodes)
        assert verdict.failures == () and verdict.worst_s < PEER_CALL_TIMEOUT_S
        assert others_readers.verdict(others).failures == ()
        for node in second.nodes:
            stats = node.stats()
            assert (stats["job"]["suspected"], stats["peers"]["failures"]) == ([], 0)
            assert stats["job"]["members"] == [node.name for node in second.nodes]
