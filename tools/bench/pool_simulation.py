"""How the memory of large jobs is filled, read, and restored, on the real code with a simulated clock and network.

    python -m bench.pool_simulation

The nodes, servers and datasets are those of the tables of `docs/scale.md`; this prints them anew.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bench.pool_simulation_epoch import Traffic, groups_together, traffic
from bench.pool_simulation_links import Rates
from bench.pool_simulation_recovery import Loss, Recovery, recovery
from bench.pool_simulation_warming import Warmed, inherited, owned, warmed

NODE_BYTES_PER_S = 1.25e9
SERVER_BYTES_PER_S = 2.5e9
STORE_BYTES_PER_S = 2e9
"""For each server that there is."""

JOBS = (
    (16, 2, 34_500),
    (64, 4, 1_000_000),
    (256, 16, 1_000_000),
    (1024, 64, 1_000_000),
    (1024, 64, 10_000_000),
)
"""Nodes, servers, chunks."""
# As many chunks in a group as a span has: a node fetches the groups of one together.
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


def rates(servers: int) -> Rates:
    return Rates(NODE_BYTES_PER_S, SERVER_BYTES_PER_S, STORE_BYTES_PER_S * servers)


def warming_line(what: str, done: Warmed) -> Sequence[str]:
    return (
        what,
        f"{done.nodes:,}",
        f"{done.servers}",
        f"{done.kept:,}",
        f"{done.first_s:.1f} s",
        f"{done.all_s:.1f} s",
        f"{done.sent_bytes_per_s / 1e9:.1f} GB/s",
        f"{done.requests_per_s:,.0f}",
        f"{done.busiest_server:.2f}",
        f"{done.fullest_moment:.2f}",
    )


WARMING_HEADS = (
    *("what", "nodes", "servers", "chunks", "first warm", "all warm", "sent", "requests a second"),
    *("busiest server", "fullest moment"),
)


def warming_lines() -> Iterator[Sequence[str]]:
    for nodes, servers, chunks in JOBS:
        yield warming_line("from nothing", warmed(owned(nodes, chunks), servers, rates(servers)))
    nodes, servers, chunks = JOBS[-1]
    yield warming_line("from nothing", warmed(owned(nodes, chunks), 8, rates(8)))
    for lost in (1, 16):
        gains = inherited(nodes, chunks, lost)
        yield warming_line(f"{lost} lost", warmed(gains, servers, rates(servers)))
    returned = owned(nodes, chunks)[:1]
    yield warming_line("one comes back", warmed(returned, servers, rates(servers)))


TRAFFIC_HEADS = (
    *("file", "nodes", "groups together", "a node's share", "of chunks", "requests", "bytes each"),
    *("requests a second", "of a core", "the order", "busiest"),
)


def traffic_line(found: Traffic) -> Sequence[str]:
    return (
        f"{found.file_bytes:,}",
        f"{found.nodes:,}",
        f"{found.groups:,}",
        f"{found.share_bytes / 1e6:.1f} MB",
        f"{found.chunks:,.0f}",
        f"{found.requests:,.0f}",
        f"{found.request_bytes / 1e3:,.0f} KB",
        f"{found.requests_per_s:,.0f}",
        f"{found.processor_share:.0%}",
        f"{found.order_share:.0%}",
        f"{found.busiest:.1f}",
    )


def traffic_lines() -> Iterator[Sequence[str]]:
    """Each by single groups first, and then by as many as are fetched together."""
    for nodes, file_bytes in READINGS:
        for groups in sorted({1, groups_together(nodes)}):
            yield traffic_line(traffic(nodes, file_bytes, groups))


LOSS_HEADS = (
    *("nodes", "lost", "how", "known: half", "all", "readers waited: half", "most", "server requests"),
    *("in the worst second", "fetched again a second", "pings in the worst second"),
)


def loss_line(loss: Loss, found: Recovery) -> Sequence[str]:
    known_s, stalled_s = np.quantile(found.known_s, (0.5, 1)), np.quantile(found.stalled_s, (0.5, 1))
    steady = [
        found.heir_loads[second] for second in range(int(loss.end_s) // 2, int(min(loss.back_s, loss.end_s)))
    ]
    return (
        f"{loss.nodes:,}",
        f"{loss.lost}",
        "cut off" if loss.is_silent else "killed",
        *(f"{each:.1f} s" for each in (*known_s, *stalled_s)),
        f"{found.server_requests.total():,}",
        f"{max(found.server_requests.values(), default=0):,}",
        f"{np.mean(steady):.0f}",
        f"{max(found.pings.values(), default=0):,}",
    )


RETURN_HEADS = (
    "nodes",
    "how",
    "asked again: first",
    "half",
    "all",
    "chunks that it fetches, second after second",
)


def return_line(loss: Loss, found: Recovery) -> Sequence[str]:
    seconds = range(int(loss.back_s), int(loss.end_s))
    return (
        f"{loss.nodes:,}",
        "cut off" if loss.is_silent else "killed",
        *(f"{each:.1f} s" for each in np.quantile(found.trusted_s, (0, 0.5, 1))),
        ", ".join(str(found.own_loads[second]) for second in seconds),
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table as Markdown, row after row as they are worked out."""
    for row in (heads, ["---"] * len(heads)):
        print(f"| {' | '.join(row)} |")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    print()


def main() -> None:
    table(WARMING_HEADS, warming_lines())
    table(TRAFFIC_HEADS, traffic_lines())
    recoveries = [(loss, recovery(loss)) for loss in LOSSES]
    table(LOSS_HEADS, (loss_line(*each) for each in recoveries))
    table(RETURN_HEADS, (return_line(*each) for each in recoveries if each[1].trusted_s))


if __name__ == "__main__":
    main()
