"""How much processor time calls really take, beside the model of their costs: that of worker threads. Steps of the
event loop are not measured: they are short, and those that are not have a metric of their own.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

import trio

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


@dataclass(eq=False, slots=True)
class Spending:
    """What the threads of one call have taken, by `clock`, which has the seconds of the present thread."""

    clock: Callable[[], float]
    processor_s: float = 0.0


SPENDING: ContextVar[Spending | None] = ContextVar("SPENDING", default=None)
"""Of the call that the present task answers."""


async def in_thread(
    work: Callable[[*Arguments], Result],
    *arguments: *Arguments,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> Result:
    """As `trio.to_thread.run_sync`, but the time counts for the call. An abandoned thread no longer counts."""
    spending = SPENDING.get()

    def measured() -> Result:
        if spending is None:
            return work(*arguments)
        began_s = spending.clock()
        try:
            return work(*arguments)
        finally:
            spending.processor_s += spending.clock() - began_s

    return await trio.to_thread.run_sync(measured, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
