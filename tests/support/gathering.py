"""Ranks of one process, a thread each, that exchange objects as torch.distributed does."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any, TypeVar

from dieselfs.samples.ranks import Gather

TIMEOUT_S = 60.0
Result = TypeVar("Result")


def run_ranks(world: int, of_rank: Callable[[int, Gather], Result]) -> list[Result]:
    """`of_rank(rank, gather)` for each rank; the results by rank, or the first error. Ranks that wait for one that has
    failed raise BrokenBarrierError.
    """
    barrier = Barrier(world, timeout=TIMEOUT_S)
    shown: list[Any] = [None] * world

    def gather(rank: int, value: Any) -> list[Any]:
        shown[rank] = value
        barrier.wait()
        found = list(shown)
        barrier.wait()  # nobody overwrites what another has not read
        return found

    def run(rank: int) -> Result:
        try:
            return of_rank(rank, partial(gather, rank))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        return [one.result(TIMEOUT_S) for one in [pool.submit(run, rank) for rank in range(world)]]
