"""The records of a server in a RADOS pool, and pieces: the parts of content that is too long for one RADOS object.

The object of a record is replaced atomically, so a reader gets the old or the new content. The key of the pieces is
entered before the first of them, and removed after the last. So pieces that a crash leaves are removed with the object.
The pieces of the old content are removed after the new content is stored.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.limits import MIB
from dieselfs_server.store.rados_pool import RadosPool

READ_TRIES_MAX = 8
"""Tries to read a record that is replaced meanwhile."""

_KEYS = "records"
_RECORD_NAME = re.compile(r"[a-z0-9-]{1,200}")
_WHOLE, _IN_PIECES = b"\0", b"\1"
_HEAD_BYTES_MAX = 128
"""Enough for the encoded `Stripes` in the object of a record."""

PIECE_BYTES = 64 * MIB
"""Ceph takes at most 90 MiB in one write (osd_max_write_size), and objects of at most 128 MiB (osd_max_object_size)."""


@dataclass(frozen=True, slots=True)
class Stripes:
    """The pieces of one content of `length` bytes, numbered from 1 to `count`. `nonce` is random, for their names."""

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
    """The pieces of a key; their `length` is unknown, and 0."""
    _, nonce, count = key.split(".")
    return Stripes(nonce, 0, int(count))


def write_pieces(pool: RadosPool, base: str, pieces: Stripes, content: memoryview, piece_bytes: int) -> None:
    """Write `content` into the pieces, in order."""
    for number, name in enumerate(pieces.objects(base)):
        pool.create(name, bytes(content[number * piece_bytes : (number + 1) * piece_bytes]))


def remove_pieces(pool: RadosPool, base: str, pieces: Stripes) -> None:
    for name in pieces.objects(base):
        pool.remove(name)


def just_before(key: str) -> str:
    """A text after all keys that are smaller than `key`, so that `keys(after=...)` begins with `key`, if it exists.

    `key` is not empty.
    """
    return f"{key[:-1]}{chr(ord(key[-1]) - 1)}\x7f"


def keys_of(pool: RadosPool, keys: str, prefix: str) -> Iterator[str]:
    """The keys in the object `keys` that begin with `prefix`, which is not empty, sorted."""
    return takewhile(lambda key: key.startswith(prefix), pool.keys(keys, after=just_before(prefix)))


class RadosRecords:
    """The records of an `ObjectStore`. Content of `piece_bytes` and more goes into pieces."""

    def __init__(self, pool: RadosPool, piece_bytes: int) -> None:
        self._pool = pool
        self._piece_bytes = piece_bytes

    def put_record(self, name: str, content: bytes) -> None:
        place = _record_object(name)
        before = self._record_pieces(place)
        self._enter(name)
        if len(content) < self._piece_bytes:
            self._pool.replace(place, _WHOLE + content)
        else:
            pieces = Stripes.new(len(content), -(-len(content) // self._piece_bytes))
            self._enter(pieces.key(name))
            write_pieces(self._pool, place, pieces, memoryview(content), self._piece_bytes)
            self._pool.replace(place, _IN_PIECES + pieces.encode())
        if before is not None:
            remove_pieces(self._pool, place, before)
            self._pool.remove_keys(_KEYS, [before.key(name)])

    def create_record(self, name: str, content: bytes) -> bool:
        self._enter(name)
        try:
            self._pool.create(_record_object(name), _WHOLE + content)
        except AlreadyExists:
            return False
        return True

    def get_record(self, name: str) -> bytes | None:
        place = _record_object(name)
        before = None
        for _ in range(READ_TRIES_MAX):
            try:
                head = self._pool.read(place, 0, self._piece_bytes + len(_WHOLE))
            except NotFound:
                return None
            if head[:1] == _WHOLE:
                return head[1:]
            pieces = _decode(place, head)
            if pieces == before:
                raise Damaged(f"{place}: offset 0: some of its pieces are missing")
            with suppress(NotFound):  # the record may have been replaced meanwhile
                return self._join(place, pieces)
            before = pieces
        raise Unavailable(f"record {name}: replaced during each of {READ_TRIES_MAX} reads; try again")

    def _join(self, place: str, pieces: Stripes) -> bytes:
        content = b"".join(self._pool.read(part, 0, self._piece_bytes) for part in pieces.objects(place))
        if len(content) != pieces.length:
            raise Damaged(f"{place}: {len(content)} bytes in its pieces, {pieces.length} expected")
        return content

    def list_records(self, prefix: str) -> list[str]:
        keys = keys_of(self._pool, _KEYS, prefix) if prefix else self._pool.keys(_KEYS)
        names = [key for key in keys if "." not in key]
        found = self._pool.existing([_record_object(name) for name in names])
        return [name for name, is_there in zip(names, found, strict=True) if is_there]

    def delete_record(self, name: str) -> None:
        place = _record_object(name)
        self._pool.remove(place)
        keys = list(keys_of(self._pool, _KEYS, f"{name}."))
        for key in keys:
            remove_pieces(self._pool, place, pieces_of_key(key))
        with suppress(NotFound):
            self._pool.remove_keys(_KEYS, [*keys, name])

    def _record_pieces(self, place: str) -> Stripes | None:
        """The pieces of the present content; None without a record, or if its content is in its object."""
        try:
            head = self._pool.read(place, 0, _HEAD_BYTES_MAX)
        except NotFound:
            return None
        return _decode(place, head) if head[:1] == _IN_PIECES else None

    def _enter(self, key: str) -> None:
        try:
            self._pool.add_key(_KEYS, key)
        except NotFound:
            self._pool.make_keys(_KEYS)
            self._pool.add_key(_KEYS, key)


def _decode(place: str, head: bytes) -> Stripes:
    try:
        return Stripes.decode(head.removeprefix(_IN_PIECES))
    except ValueError:
        raise Damaged(f"{place}: offset 0: not a record") from None


def _record_object(name: str) -> str:
    if not _RECORD_NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is not a valid name of a record")
    return f"{_KEYS}/{name}"
