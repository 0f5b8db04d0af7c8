"""Puts the simulation in the place of threads, clocks and random numbers. `install` must run before the product is
imported: its modules keep the functions that they import.
"""

import concurrent.futures.thread
import os
import queue
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import trio
from trio._core import _run

from tests.simulation import clock, green

EPOCH_S = 1_800_000_000
"""The wall clock at the begin of each run, in seconds since 1970."""

_source = random.Random(0)
"""Random numbers of the product: keys, names, pauses."""
PROCESS_ID = 1000
_DISK = os.statvfs_result((4096, 4096, *[1 << 22] * 3, *[1 << 20] * 3, 0, 255))
"""Each file system: 16 GiB, and empty. Servers refuse chunks when that of the machine is full."""

real_monotonic, _real_time, _real_time_ns = time.monotonic, time.time, time.time_ns
_real_sleep, _real_urandom, real_thread_time = time.sleep, os.urandom, time.thread_time
_real_statvfs = os.statvfs


def _is_simulated() -> bool:
    return green.current_process() is not None


def _monotonic() -> float:
    return clock.now_s() + 1000.0 if _is_simulated() else real_monotonic()


def _time_ns() -> int:
    process = green.current_process()
    if process is None:
        return _real_time_ns()
    return EPOCH_S * 10**9 + int((clock.now_s() + process.skew_s) * 10**9)


def _time() -> float:
    return _time_ns() / 1e9 if _is_simulated() else _real_time()


def _sleep(seconds: float) -> None:
    if not _is_simulated():
        _real_sleep(seconds)
        return
    green.pause(seconds)


def _urandom(size: int) -> bytes:
    return _source.randbytes(size) if _is_simulated() else _real_urandom(size)


def _statvfs(path: Any) -> os.statvfs_result:
    return _DISK if _is_simulated() else _real_statvfs(path)


class _Random(random.Random):
    """Without a seed, it gets one from the seed of the run."""

    def __init__(self, seed: Any = None) -> None:
        super().__init__(_source.getrandbits(64) if seed is None and _is_simulated() else seed)


def _getpid() -> int:
    process = green.current_process()
    return PROCESS_ID if process is None else PROCESS_ID + process.number


def install() -> None:
    """Once, in a process that does nothing else."""
    replaced: list[tuple[Any, dict[str, Any]]] = [
        (time, {"monotonic": _monotonic, "perf_counter": _monotonic, "time": _time, "time_ns": _time_ns}),
        (time, {"sleep": _sleep}),
        (time, {"thread_time": lambda: 0.0 if _is_simulated() else real_thread_time()}),
        (os, {"urandom": _urandom, "getpid": _getpid, "statvfs": _statvfs}),
        (random, {"_urandom": _urandom, "Random": _Random}),
        (uuid, {"getnode": lambda: 0x0242AC110002}),
        (
            threading,
            {
                "Thread": green.Thread,
                "Lock": green.Lock,
                "RLock": green.RLock,
                "_allocate_lock": green.Lock,
                "_time": _monotonic,
            },
        ),
        (queue, {"SimpleQueue": queue._PySimpleQueue, "time": _monotonic}),  # type: ignore[attr-defined]  # the one in Python
        (concurrent.futures.thread, {"_global_shutdown_lock": green.Lock()}),
        (trio.to_thread, {"run_sync": green.run_sync}),
        (trio.from_thread, {"check_cancelled": green.check_cancelled}),
        (_run, {"_ALLOW_DETERMINISTIC_SCHEDULING": True}),
    ]
    for module, names in replaced:
        for name, value in names.items():
            setattr(module, name, value)


def run(main: Callable[[], Any], seed: int) -> Any:
    """`trio.run(main)` on a clock that jumps, with all that is random from `seed`."""
    _source.seed(seed)
    _run._r.seed(seed)
    random.seed(seed)
    return clock.run(main, seed)
