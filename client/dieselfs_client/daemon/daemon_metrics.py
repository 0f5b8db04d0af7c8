"""What each daemon counts, with and without a mount: its age, its memory, its generation, how servers answer it. This
module reads files of /proc.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import Snapshot
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry


def declare_daemon(
    metrics: Registry,
    snapshot: Snapshot,
    granted_bytes: int,
    used_bytes: Mapping[str, Callable[[], int]],
    clock: Callable[[], float],
) -> None:
    """`granted_bytes`: the memory that the daemon may use; `used_bytes`: what each part of it uses. `clock` is in
    seconds; the age is that since this call.
    """
    began_s, updated_s = clock(), snapshot.header.updated_ns / 1e9
    metrics.declare(catalogue.UPTIME_S, lambda: round(clock() - began_s, 3))
    metrics.declare(catalogue.MEMORY_GRANTED_BYTES).value = granted_bytes
    for part, read in used_bytes.items():
        metrics.declare(catalogue.MEMORY_USED_BYTES, read, part=part)
    metrics.gauge("memory.process_bytes", "Memory of the process, without mapped files.", process_bytes)
    metrics.gauge(
        "snapshot.age_s", "Time since the generation was made.", lambda: round(time.time() - updated_s)
    )


def declare_servers(metrics: Registry, client: ServerClient) -> None:
    """How the servers answer this process."""
    metrics.gauge("servers.failures", "Calls and connections that a server failed.", client.failures)
    metrics.counter("servers.retries", "Further attempts of calls that a server had failed.", client.retries)


def process_bytes() -> int:
    """Anonymous memory of this process, in bytes: without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
