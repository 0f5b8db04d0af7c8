"""Counts how long the calls of a store take, by operation: with the time in queues and that of retries."""

import time
from collections.abc import Callable

from dieselfs.errors import DieselfsError, NotFound
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.wrapper import Arguments, Result, StoreWrapper


class MeasuredStore(StoreWrapper):
    """An `ObjectStore`. Of a listing, only its start is measured."""

    def __init__(self, store: ObjectStore, metrics: Registry) -> None:
        super().__init__(store)
        self._metrics = metrics

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        metrics, operation, started_s = self._metrics, call.__name__, time.monotonic()
        try:
            return call(*args)
        except NotFound:
            raise  # an answer of the store as any other
        except DieselfsError:
            failures = metrics.counter(
                "store.failures", "Calls of the object store that failed.", operation=operation
            )
            metrics.add(failures)
            raise
        finally:
            took = metrics.declare_histogram(catalogue.STORE_ANSWERED_S, operation=operation)
            metrics.observe(took, time.monotonic() - started_s)
