"""Values that exist while somebody uses them. No I/O."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class InUse(Generic[Key, Value]):
    """The first user of a key makes its value, later ones share it, the last one drops it. For one event loop."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry[Value]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    @contextmanager
    def held(self, key: Key, make: Callable[[], Value]) -> Iterator[Value]:
        """The value of `key`, until the block ends."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(make())
        entry.users += 1
        try:
            yield entry.value
        finally:
            entry.users -= 1
            if not entry.users:
                del self._entries[key]


class _Entry(Generic[Value]):
    def __init__(self, value: Value) -> None:
        self.value = value
        self.users = 0
