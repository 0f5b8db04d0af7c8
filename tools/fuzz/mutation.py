"""Changes of inputs, from a seeded source of chance. No I/O."""

import random
from collections.abc import Callable, Sequence

_NUMBERS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    1 << 31,
    0xFFFF_FFFF,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_WORDS = (
    b"",
    b"\0",
    b"/",
    b"..",
    b"=",
    b",",
    b":",
    b"%",
    b"\\134",
    b"\n",
    b" ",
    b"\xff",
    b"-1",
    b"9" * 30,
    b"nan",
    b"1e999",
    b"[" * 50,
)
_LENGTH_MAX = 1 << 16
"""Longer inputs are cut, so that no copy of a copy fills memory."""


def _flip_bits(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _put_number(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    width, order = chance.choice((1, 2, 4, 8)), chance.choice(("little", "big"))
    place = chance.randrange(len(data))
    number = chance.choice(_NUMBERS) % (1 << 8 * width)
    data[place : place + width] = number.to_bytes(width, "big" if order == "big" else "little")


def _put_word(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    place = chance.randrange(len(data))
    data[place : place + chance.randint(0, 4)] = chance.choice(_WORDS)


def _cut_out(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    place = chance.randrange(len(data))
    del data[place : place + chance.choice((1, 2, 8, 100, len(data)))]


def _copy_within(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start, place = chance.randrange(len(data)), chance.randrange(len(data))
    data[place:place] = data[start : start + chance.randint(1, 60)]


def _cross(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = chance.choice(others)
    place = chance.randrange(len(data))
    data[place:] = other[chance.randrange(len(other) + 1) :]


_MUTATIONS: Sequence[Callable[[random.Random, bytearray, Sequence[bytes]], None]] = (
    _flip_bits,
    _put_number,
    _put_word,
    _cut_out,
    _copy_within,
    _cross,
)


def mutated(chance: random.Random, inputs: Sequence[bytes]) -> bytes:
    """One of `inputs`, with one to four changes."""
    data = bytearray(chance.choice(inputs))
    for mutate in chance.choices(_MUTATIONS, k=chance.randint(1, 4)):
        if not data:
            break
        mutate(chance, data, inputs)
    return bytes(data[:_LENGTH_MAX])
