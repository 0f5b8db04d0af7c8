"""The order in which waiting threads get the semaphore."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from dieselfs.cluster import peer_client as module
from dieselfs.cluster.peer_client import PrioritySemaphore

LONG_S = 60.0


class Queue:
    """Threads that wait for the semaphore, in the order of `come`."""

    def __init__(self) -> None:
        self.semaphore = PrioritySemaphore(1)
        self.went: list[str] = []
        self.threads: list[Thread] = []
        assert self.semaphore.acquire(LONG_S)

    def come(self, name: str, is_retry: bool = False) -> None:
        waiting = self.semaphore._retries if is_retry else self.semaphore._firsts
        length = len(waiting)

        def go() -> None:
            assert self.semaphore.acquire(LONG_S, is_retry)
            self.went.append(name)
            self.semaphore.release()

        self.threads.append(Thread(target=go))
        self.threads[-1].start()
        while len(waiting) == length:
            pass


@contextmanager
def queue() -> Iterator[Queue]:
    """The end of the block releases the semaphore; then all threads get it."""
    queue = Queue()
    yield queue
    queue.semaphore.release()
    for thread in queue.threads:
        thread.join()


def test_first_requests_go_before_retries() -> None:
    with queue() as waiting:
        for name in ("a", "b"):
            waiting.come(f"retry {name}", is_retry=True)
        for name in ("a", "b"):
            waiting.come(f"first {name}")
    assert waiting.went == ["first a", "first b", "retry a", "retry b"]


def test_a_retry_does_not_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRSTS_IN_A_ROW_MAX", 2)
    with queue() as waiting:
        waiting.come("retry", is_retry=True)
        for name in ("a", "b", "c"):
            waiting.come(name)
    assert waiting.went == ["a", "b", "retry", "c"]


@pytest.mark.parametrize("is_retry", [False, True])
def test_a_timeout_leaves_the_semaphore_to_the_others(is_retry: bool) -> None:
    semaphore = PrioritySemaphore(2)
    assert semaphore.acquire(0) and semaphore.acquire(0) and not semaphore.acquire(0, is_retry)
    semaphore.release()
    assert semaphore.acquire(0, is_retry) and not semaphore.acquire(0)
