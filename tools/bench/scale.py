"""How much the benchmarks do: little, to try them out, or enough for figures that mean something."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """`rounds`: how often each side is run; `entries`: of the large dataset; `chunks`: in a store; `requests`: of
    all clients together; `kills`: of nodes of a job; the others: files of the source trees.
    """

    rounds: int
    entries: int
    small_files: int
    large_files: int
    chunks: int
    requests: int
    kills: int


QUICK = Scale(
    rounds=3, entries=50_000, small_files=5_000, large_files=300, chunks=32, requests=3_000, kills=2
)
FULL = Scale(
    rounds=5, entries=1_280_000, small_files=100_000, large_files=5_000, chunks=256, requests=12_000, kills=20
)
