"""Warming, reading and recovery of large jobs: the tables of docs/internals/scale.md, simulated on the real code."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.figures import Row, Scale
from bench.simulated_epoch import groups_together, traffic
from bench.simulated_recovery import Loss, Recovery, recovery
from bench.simulated_warming import Rates, Shares, inherited, owned, warmed

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


def pool_simulation(folder: Path, scale: Scale) -> Generator[Iterable[Row]]:
    yield _warming([job for job in JOBS if job[0] <= scale.nodes])
    yield (
        traffic(nodes, file_bytes, groups)
        for nodes, file_bytes in READINGS
        if nodes <= scale.nodes
        for groups in sorted({1, groups_together(nodes)})
    )
    recoveries = [(loss, recovery(loss)) for loss in LOSSES if loss.nodes <= scale.nodes]
    yield (_lost(*each) for each in recoveries)
    yield (_returned(*each) for each in recoveries if each[1].trusted_s)


def _warming(jobs: Sequence[tuple[int, int, int]]) -> Iterator[Row]:
    def row(what: str, shares: Shares, servers: int) -> Row:
        rates = Rates(NODE_BYTES_PER_S, SERVER_BYTES_PER_S, STORE_BYTES_PER_S * servers)
        return {"what": what, **warmed(shares, servers, rates)}

    for nodes, servers, chunks in jobs:
        yield row("from nothing", owned(nodes, chunks), servers)
    nodes, servers, chunks = jobs[-1]
    yield row("from nothing", owned(nodes, chunks), 8)
    for lost in (1, nodes // 64):
        if lost:
            yield row(f"{lost} lost", inherited(nodes, chunks, lost), servers)
    yield row("one comes back", owned(nodes, chunks)[:1], servers)


def _seconds(heads: Sequence[str], times_s: Sequence[float], quantiles: Sequence[float]) -> Row:
    """Quantiles of the times of all nodes."""
    found = np.quantile(times_s, quantiles)
    return {head: (time_s, "{:.1f} s") for head, time_s in zip(heads, found, strict=True)}


def _how(loss: Loss) -> str:
    return "cut off" if loss.is_silent else "killed"


def _lost(loss: Loss, found: Recovery) -> Row:
    steady = range(int(loss.end_s) // 2, int(min(loss.back_s, loss.end_s)))
    return {
        "nodes": loss.nodes,
        "lost": loss.lost,
        "how": _how(loss),
        **_seconds(("known: half", "all"), found.known_s, (0.5, 1)),
        **_seconds(("readers waited: half", "most"), found.stalled_s, (0.5, 1)),
        "server requests": found.server_requests.total(),
        "in the worst second": max(found.server_requests.values(), default=0),
        "fetched again a second": (np.mean([found.heir_loads[second] for second in steady]), "{:.0f}"),
        "pings in the worst second": max(found.pings.values(), default=0),
    }


def _returned(loss: Loss, found: Recovery) -> Row:
    loads = (str(found.own_loads[second]) for second in range(int(loss.back_s), int(loss.end_s)))
    return {
        "nodes": loss.nodes,
        "how": _how(loss),
        **_seconds(("asked again: first", "half", "all"), found.trusted_s, (0, 0.5, 1)),
        "chunks that it fetches, second after second": ", ".join(loads),
    }
