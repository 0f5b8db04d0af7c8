"""Content that is longer than one RADOS object should be: pieces under names of their own, numbered from 1 on.

    <object>.<nonce>.<number>    a piece; the nonce is new for each writer, so that two never mix theirs

A key `<name>.<nonce>.<pieces>` is entered before the first piece is written, and stays as long as any is there, so
that what a crash leaves is found and removed with the object.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from dieselfs.limits import MIB
from dieselfs_server.store.rados_pool import RadosPool

PIECE_BYTES = 64 * MIB
"""Ceph takes at most 90 MiB in one write (osd_max_write_size), and objects of at most 128 MiB (osd_max_object_size)."""


@dataclass(frozen=True, slots=True)
class Stripes:
    """Which pieces belong together; `count` is the number of the last one."""

    nonce: str
    length: int
    count: int

    @classmethod
    def new(cls, length: int, count: int) -> "Stripes":
        return cls(secrets.token_hex(8), length, count)

    def encode(self) -> bytes:
        return f"{self.nonce} {self.length} {self.count}".encode()

    @classmethod
    def decode(cls, value: bytes) -> "Stripes":
        """Raises ValueError."""
        nonce, length, count = value.decode("ascii").split(" ")
        return cls(nonce, int(length), int(count))

    def key(self, name: str) -> str:
        return f"{name}.{self.nonce}.{self.count}"

    def objects(self, base: str) -> list[str]:
        """The names of all pieces of the object `base`."""
        return [f"{base}.{self.nonce}.{number}" for number in range(1, self.count + 1)]


def pieces_of_key(key: str) -> Stripes:
    """What a key tells of its pieces; not their length."""
    _, nonce, count = key.split(".")
    return Stripes(nonce, 0, int(count))


def write_pieces(pool: RadosPool, base: str, pieces: Stripes, content: memoryview, piece_bytes: int) -> None:
    """Write `content`, which fills the pieces one after the other."""
    for number, name in enumerate(pieces.objects(base)):
        pool.create(name, bytes(content[number * piece_bytes : (number + 1) * piece_bytes]))


def remove_pieces(pool: RadosPool, base: str, pieces: Stripes) -> None:
    """Remove them, as far as they are there."""
    for name in pieces.objects(base):
        pool.remove(name)


def just_before(key: str) -> str:
    """What sorts behind all that sorts before `key`, which is not empty: from there on, `key` and what follows it."""
    return f"{key[:-1]}{chr(ord(key[-1]) - 1)}\x7f"


def keys_of(pool: RadosPool, keys: str, prefix: str) -> Iterator[str]:
    """The keys in the object `keys` that begin with `prefix`, which is not empty, sorted."""
    return takewhile(lambda key: key.startswith(prefix), pool.keys(keys, after=just_before(prefix)))
