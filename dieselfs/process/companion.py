"""Work with a companion: a task that runs beside it and can end it. This module runs tasks."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")


async def accompanied(work: Callable[[], Awaitable[T]], companion: Callable[[], Awaitable[None]]) -> T:
    """What `work` returns or raises. `companion` is cancelled then; if it raises before, `work` is cancelled and the
    error of the companion is raised.
    """
    results: list[T] = []
    failures: list[Exception] = []

    async def guarded() -> None:
        try:
            await companion()
        except Exception as error:  # raised after the nursery, without an exception group
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(guarded)
        try:
            results.append(await work())
        except Exception as error:  # as above
            failures.append(error)
        nursery.cancel_scope.cancel()
    if results:
        return results[0]
    raise failures[0]
