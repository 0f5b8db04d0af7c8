"""Warming, reading and recovery of large jobs: the tables of docs/internals/scale.md, simulated on the real code."""

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.figures import Scale, Table
from bench.simulated_epoch import groups_together, traffic
from bench.simulated_recovery import Loss, Recovery, recovery
from bench.simulated_warming import Rates, inherited, owned, warmed

NODE_BYTES_PER_S = 1.25e9
SERVER_BYTES_PER_S = 2.5e9
STORE_BYTES_PER_S = 2e9
"""For each server."""

JOBS = (
    (16, 2, 34_500),
    (64, 4, 1_000_000),
    (256, 16, 1_000_000),
    (1024, 64, 1_000_000),
    (1024, 64, 10_000_000),
)
"""Nodes, servers, chunks."""
# A group has as many chunks as a span: a node fetches the groups of a span together.
LOSSES = (
    Loss(16, 1, 100, False, 30, 45),
    Loss(16, 1, 100, True, 30, 45),
    Loss(64, 1, 1_024, True, 30, 45),
    Loss(256, 1, 4_096, True, 30, 45),
    Loss(1024, 1, 16_384, False, 30, 45),
    Loss(1024, 1, 16_384, True, 30, 45),
    Loss(64, 16, 1_024, True, 20, 20),
    Loss(1024, 16, 16_384, True, 15, 15),
)
READINGS = tuple((nodes, file_bytes) for file_bytes in (110_000, 4_096) for nodes in (8, 64, 256, 1024))
"""Nodes, bytes of a file."""

WARMING = {"what": "{}", "nodes": "{:,}", "servers": "{}", "chunks": "{:,}", "first warm": "{:.1f} s"}
WARMING |= {"all warm": "{:.1f} s", "sent": "{:.1f} GB/s", "requests a second": "{:,.0f}"}
WARMING |= dict.fromkeys(("busiest server", "fullest moment"), "{:.2f}")
TRAFFIC = dict.fromkeys(("file, bytes", "nodes", "groups together"), "{:,}")
TRAFFIC |= {"a node's share of them": "{:.1f} MB", "of chunks": "{:,.0f}", "requests": "{:,.0f}"}
TRAFFIC |= {"bytes each": "{:,.0f} KB", "requests a second": "{:,.0f}", "of a core": "{:.0%}"}
TRAFFIC |= {"the order": "{:.0%}", "busiest": "{:.1f}"}
LOST = {"nodes": "{:,}", "lost": "{}", "how": "{}"}
LOST |= dict.fromkeys(("known: half", "all", "readers waited: half", "most"), "{:.1f} s")
LOST |= {"server requests": "{:,}", "in the worst second": "{:,}", "fetched again a second": "{:.0f}"}
LOST |= {"pings in the worst second": "{:,}"}
RETURNED = {"nodes": "{:,}", "how": "{}"} | dict.fromkeys(("asked again: first", "half", "all"), "{:.1f} s")
RETURNED |= {"chunks that it fetches, second after second": "{}"}


def pool_simulation(folder: Path, scale: Scale) -> Generator[Table]:
    yield Table(WARMING, _warming([job for job in JOBS if job[0] <= scale.nodes]))
    yield Table(
        TRAFFIC,
        (
            traffic(nodes, file_bytes, groups)
            for nodes, file_bytes in READINGS
            if nodes <= scale.nodes
            for groups in sorted({1, groups_together(nodes)})
        ),
    )
    recoveries = [(loss, recovery(loss)) for loss in LOSSES if loss.nodes <= scale.nodes]
    yield Table(LOST, (_lost(*each) for each in recoveries))
    yield Table(RETURNED, (_returned(*each) for each in recoveries if each[1].trusted_s))


def rates(servers: int) -> Rates:
    return Rates(NODE_BYTES_PER_S, SERVER_BYTES_PER_S, STORE_BYTES_PER_S * servers)


def _warming(jobs: Sequence[tuple[int, int, int]]) -> Iterator[Sequence[object]]:
    for nodes, servers, chunks in jobs:
        yield "from nothing", *warmed(owned(nodes, chunks), servers, rates(servers))
    nodes, servers, chunks = jobs[-1]
    yield "from nothing", *warmed(owned(nodes, chunks), 8, rates(8))
    for lost in (1, nodes // 64):
        if lost:
            yield f"{lost} lost", *warmed(inherited(nodes, chunks, lost), servers, rates(servers))
    yield "one comes back", *warmed(owned(nodes, chunks)[:1], servers, rates(servers))


def _how(loss: Loss) -> str:
    return "cut off" if loss.is_silent else "killed"


def _lost(loss: Loss, found: Recovery) -> Sequence[object]:
    steady = range(int(loss.end_s) // 2, int(min(loss.back_s, loss.end_s)))
    return (
        *(loss.nodes, loss.lost, _how(loss)),
        *np.quantile(found.known_s, (0.5, 1)),
        *np.quantile(found.stalled_s, (0.5, 1)),
        *(found.server_requests.total(), max(found.server_requests.values(), default=0)),
        *(np.mean([found.heir_loads[second] for second in steady]), max(found.pings.values(), default=0)),
    )


def _returned(loss: Loss, found: Recovery) -> Sequence[object]:
    loads = (str(found.own_loads[second]) for second in range(int(loss.back_s), int(loss.end_s)))
    return loss.nodes, _how(loss), *np.quantile(found.trusted_s, (0, 0.5, 1)), ", ".join(loads)
