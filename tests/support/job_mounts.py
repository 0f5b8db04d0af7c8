"""Mounts of one job on one machine, each with its own node name, or several with the same one."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dieselfs.limits import MIB
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from lab.network import clear
from tests.support.server import RunningServer

JOB = "training"


@contextmanager
def job_mounts(
    server: RunningServer,
    dataset: str,
    folder: Path,
    nodes: Sequence[str],
    disks: Sequence[Path] = (),
    **more: Any,
) -> Iterator[list[Path]]:
    """A mount for each of these nodes, in `folder`, which is empty; mounts wait for each other. `disks`: that
    of each mount. `more`: options; with a `key_file`, over TCP.
    """
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    places = [folder / f"mount-{number}" for number in range(len(nodes))]

    def mount(number: int) -> None:
        places[number].mkdir()
        options = MountOptions(
            server=server.tcp if "key_file" in more else server.unix,
            log_file=f"{places[number]}.log",
            job=JOB,
            job_nodes=len(set(nodes)),
            job_node=nodes[number],
            job_rank=number,
            job_host="127.0.0.1",
            job_secret=str(secret),
            disk=str(disks[number]) if disks else None,
            **{"memory_bytes": 128 * MIB, **more},
        )
        control.mount(dataset, places[number], options)

    try:
        with ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(mount, range(len(nodes))))
        yield places
    finally:
        for place in places:
            clear(place)


def stats_of(place: Path) -> dict[str, Any]:
    """The `.dieselfs/stats` of a mount."""
    stats: dict[str, Any] = json.loads((place / ".dieselfs/stats").read_text())
    return stats


def loads(places: Sequence[Path]) -> int:
    """Chunks, and extents of chunks, that the server sent to the job."""
    jobs = [stats_of(place) for place in places]
    return sum(job["node_cache"]["fetched_chunks"] + job["requested"]["from_servers"] for job in jobs)
