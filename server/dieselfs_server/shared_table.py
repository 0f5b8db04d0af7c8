"""A table in memory, for processes and those that they fork. This module maps memory, and locks a file in memory.

Records have one length each. A key has few places where it may be; if all are taken, the record that the caller
chooses gives way. So a table never grows, and a look-up takes microseconds.
"""

import fcntl
import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import count

KEY_BYTES = 16
PLACE_BYTES = 4
"""The first bytes of a key decide its places: keys that begin with the same ones share them."""
PLACES = 16
"""Places of a key."""
LOCK_TIMEOUT_S = 0.25
"""A holder needs microseconds, and on a loaded machine the time until it gets a processor again. One that was stopped
meanwhile must not stop the others: after this time they continue, and one of two changes may be lost."""
_YIELDS = 100
_PAUSE_S = 50e-6

_EMPTY = bytes(KEY_BYTES)


def key_of(*parts: str) -> bytes:
    """A key for texts, which differ from those of any other key."""
    digest = blake2b(digest_size=KEY_BYTES)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def least(worth: Callable[[bytes], float]) -> Callable[[Sequence[bytes]], int]:
    """The value of the least worth gives way."""

    def number(values: Sequence[bytes]) -> int:
        worths = [*map(worth, values)]
        return worths.index(min(worths))

    return number


class SharedTable:
    """For one thread of each process at a time. The kernel releases the lock of a process that dies."""

    def __init__(self, records_max: int, value_bytes: int) -> None:
        self._record_bytes, self._records_max = KEY_BYTES + value_bytes, records_max
        self._memory = mmap.mmap(-1, records_max * self._record_bytes)
        self._lock = os.memfd_create("dieselfs-table", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._lock).atexit = False

    def get(self, key: bytes) -> bytes | None:
        with self._locked():
            place = self._find(key)
            return None if place is None else self._value(place)

    def change(
        self,
        key: bytes,
        edit: Callable[[bytes | None], bytes | None],
        gives_way: Callable[[Sequence[bytes]], int],
    ) -> None:
        """Replace the value of a key by `edit` of it, None for no value. If the key has no place, `gives_way` gets the
        values that have taken its places, and returns the number of the one that is removed.
        """
        with self._locked():
            place = self._find(key)
            value = edit(None if place is None else self._value(place))
            if place is None:
                if value is None:
                    return
                place = self._free(key, gives_way)
            start = place * self._record_bytes
            record = _EMPTY + bytes(self._record_bytes - KEY_BYTES) if value is None else key + value
            self._memory[start : start + self._record_bytes] = record

    def _places(self, key: bytes) -> Iterator[int]:
        first = int.from_bytes(key[:PLACE_BYTES], "little")
        return ((first + step) % self._records_max for step in range(min(PLACES, self._records_max)))

    def _key(self, place: int) -> bytes:
        start = place * self._record_bytes
        return self._memory[start : start + KEY_BYTES]

    def _value(self, place: int) -> bytes:
        start = place * self._record_bytes
        return self._memory[start + KEY_BYTES : start + self._record_bytes]

    def _find(self, key: bytes) -> int | None:
        return next((place for place in self._places(key) if self._key(place) == key), None)

    def _free(self, key: bytes, gives_way: Callable[[Sequence[bytes]], int]) -> int:
        places = [*self._places(key)]
        empty = next((place for place in places if self._key(place) == _EMPTY), None)
        return places[gives_way([*map(self._value, places)])] if empty is None else empty

    @contextmanager
    def _locked(self) -> Iterator[None]:
        end_s = 0.0
        for tries in count():
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if tries < _YIELDS:
                    os.sched_yield()
                    continue
            now_s = time.monotonic()
            end_s = end_s or now_s + LOCK_TIMEOUT_S
            if now_s >= end_s:
                break
            time.sleep(_PAUSE_S)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)
