"""Chunk IDs (DIESEL, table 1): 16 bytes that sort by the time of writing, and their printed form. No I/O.

    bytes  0-3   seconds since 1970, big-endian
    bytes  4-9   machine: the MAC address of a network interface
    bytes 10-12  process ID
    bytes 13-15  counter

The printed form is base64 over the alphabet ``-0-9A-Z_a-z``, which is in ASCII order and safe in file names, so
printed IDs sort as the IDs do (with the usual alphabet they would not). It is always 22 characters.

Two writers may still choose the same ID: containers on a host share its MAC address, and each may run as process 1. So
the counter starts at a random number, and a store creates chunks exclusively. A writer whose ID is taken chooses the
next one.
"""

import os
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cache
from threading import Lock

from dieselfs.errors import InvalidInput

CHUNK_ID_BYTES = 16
CHUNK_NAME_CHARACTERS = 22

_STANDARD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SORTED = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_TO_SORTED = bytes.maketrans(_STANDARD, _SORTED)
_TO_STANDARD = bytes.maketrans(_SORTED, _STANDARD)

_COUNTER_SPAN = 1 << 24


def chunk_name(chunk_id: bytes) -> str:
    """The printed form of a chunk ID: 22 characters, in the same order as the IDs."""
    if len(chunk_id) != CHUNK_ID_BYTES:
        raise InvalidInput(f"a chunk ID has {CHUNK_ID_BYTES} bytes, not {len(chunk_id)}")
    return b64encode(chunk_id).rstrip(b"=").translate(_TO_SORTED).decode("ascii")


def parse_chunk_name(name: str) -> bytes:
    """The chunk ID with the printed form `name`. Raises InvalidInput for any other text."""
    text = name.encode("utf-8", "replace")
    if len(text) != CHUNK_NAME_CHARACTERS or text.translate(None, _SORTED):
        raise InvalidInput(f"{name[:40]!r} is not a chunk ID")
    chunk_id = b64decode(text.translate(_TO_STANDARD) + b"==")
    if chunk_name(chunk_id) != name:  # the last character carries two bits; the other four must be zero
        raise InvalidInput(f"{name!r} is not a chunk ID")
    return chunk_id


def chunk_time_s(chunk_id: bytes) -> int:
    """Seconds since 1970 at which the chunk was made, by its writer's clock."""
    return int.from_bytes(chunk_id[:4], "big")


def earliest_chunk_id(time_s: int) -> bytes:
    """The smallest ID that a chunk made at `time_s` or later can have."""
    return min(max(time_s, 0), 0xFFFF_FFFF).to_bytes(4, "big") + bytes(CHUNK_ID_BYTES - 4)


class ChunkIdSource:
    """Makes the chunk IDs of this process, each larger than the one before, even if the clock steps back.

    Safe to use from several threads and after a fork. The clock, the machine and the process are
    arguments for tests.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        machine: bytes | None = None,
        process: Callable[[], int] = os.getpid,
        first_counter: int | None = None,
    ) -> None:
        self._clock = clock
        self._machine = machine
        self._process = process
        self._lock = Lock()  # guards the three below
        self._process_id = process()
        self._time_s = 0
        self._start_counter(first_counter)

    def _start_counter(self, first: int | None) -> None:
        self._counter = secrets.randbelow(_COUNTER_SPAN) if first is None else first

    def next(self) -> bytes:
        """A new ID."""
        with self._lock:
            if self._process() != self._process_id:  # this is a forked child
                self._process_id = self._process()
                self._start_counter(None)
            now_s = int(self._clock())
            if now_s > self._time_s:
                self._time_s = now_s
            elif self._counter == 0:  # the counter overflowed within one second: use the next second
                self._time_s += 1
            stamp = self._time_s.to_bytes(4, "big")
            process = (self._process_id % (1 << 24)).to_bytes(3, "big")
            machine = _address_of_machine() if self._machine is None else self._machine
            chunk_id = stamp + machine + process + self._counter.to_bytes(3, "big")
            self._counter = (self._counter + 1) % _COUNTER_SPAN
            return chunk_id


@cache
def _address_of_machine() -> bytes:
    """The address of a network card of this machine."""
    import uuid  # not imported to read

    return uuid.getnode().to_bytes(6, "big")
