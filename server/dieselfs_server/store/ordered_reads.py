"""Reads of many chunks, ahead of their use, given in order. This module starts threads.

A pass over all chunks reads a few kilobytes of each. Storage on a network answers late, but many requests at once: with
30 ms for an answer, one read after the other takes an hour for 60,000 chunks. A local disk answers so soon that threads
would only cost time.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from dieselfs_server.store.interface import ObjectStore

HEADERS_AT_ONCE = 16
"""Limit of headers that are read ahead; as many as `store/wrapper.py` lets through."""

PAYLOADS_AT_ONCE = 2
"""Limit of whole chunks, which may have 128 MiB each."""

SLOW_READ_S = 0.002
"""After a read that took this long, the following chunks are read ahead."""

Key = TypeVar("Key")
Result = TypeVar("Result")


def read_in_order(
    read: Callable[[ObjectStore, bytes, Key], Result],
    store: ObjectStore,
    dataset_id: bytes,
    chunk_ids: Iterable[Key],
    at_once: int = HEADERS_AT_ONCE,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[tuple[Key, Future[Result]]]:
    """`(chunk ID, result or error of read(store, dataset_id, chunk ID))` for each chunk, in the order of `chunk_ids`,
    which may be other keys.

    The generator ends its reads when it is closed.
    """
    threads = ThreadPoolExecutor(at_once, thread_name_prefix="chunks")  # starts them when they are needed
    waiting: deque[tuple[Key, Future[Result]]] = deque()
    is_slow = False
    try:
        for chunk_id in chunk_ids:
            if is_slow:
                waiting.append((chunk_id, threads.submit(read, store, dataset_id, chunk_id)))
                if len(waiting) == at_once:
                    yield waiting.popleft()
            else:
                started_s = clock()
                chunk = _read_now(read, store, dataset_id, chunk_id)
                is_slow = clock() - started_s >= SLOW_READ_S
                yield chunk_id, chunk
        while waiting:
            yield waiting.popleft()
    finally:
        threads.shutdown(cancel_futures=True)


def _read_now(
    read: Callable[[ObjectStore, bytes, Key], Result], store: ObjectStore, dataset_id: bytes, chunk_id: Key
) -> Future[Result]:
    done: Future[Result] = Future()
    try:
        done.set_result(read(store, dataset_id, chunk_id))
    except Exception as error:  # goes to the reader of the result, as from an executor
        done.set_exception(error)
    return done
