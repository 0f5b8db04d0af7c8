"""An object store that counts its calls."""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.wrapper import StoreWrapper

WRITES = ("put", "put_record", "create_record", "delete", "delete_record")

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class CountedCalls(StoreWrapper):
    """`calls`: of `store`, by name."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.calls = Counter[str]()

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        self.calls[call.__name__] += 1
        return call(*args)

    def writes(self) -> int:
        """How many there were since the last time."""
        found = sum(self.calls[name] for name in WRITES)
        self.calls.clear()
        return found
