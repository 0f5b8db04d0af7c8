"""The records of a server in a RADOS pool.

    records            keys: names; and <name>.<nonce>.<pieces> of records in pieces
    records/<name>     a zero byte and the content; or a one byte and what `Stripes` encodes; the content is in stripes

The object `records/<name>` is replaced at once, so that a reader finds the old or the new content. The key is entered
before it; the pieces of the old content go after it.
"""

import re
from contextlib import suppress

from dieselfs.errors import Damaged, InvalidInput, NotFound, Unavailable
from dieselfs_server.store.rados_pieces import (
    Stripes,
    keys_of,
    pieces_of_key,
    remove_pieces,
    write_pieces,
)
from dieselfs_server.store.rados_pool import RadosPool

READ_TRIES_MAX = 8
"""How often a record is read again that is replaced while it is read."""

_KEYS = "records"
_NAME = re.compile(r"[a-z0-9-]{1,200}")
_WHOLE, _IN_PIECES = b"\0", b"\1"
_HEAD_BYTES_MAX = 128
"""Enough for what says where pieces are."""


class RadosRecords:
    """The part of an `ObjectStore` that keeps records. Content of `piece_bytes` and more goes into pieces."""

    def __init__(self, pool: RadosPool, piece_bytes: int) -> None:
        self._pool = pool
        self._piece_bytes = piece_bytes

    def put(self, name: str, content: bytes) -> None:
        place = _object(name)
        before = self._pieces(place)
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

    def get(self, name: str) -> bytes | None:
        place = _object(name)
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
                raise Damaged(f"{place}: offset 0: pieces are missing of what it names")
            with suppress(NotFound):  # perhaps it was replaced meanwhile
                return self._join(place, pieces)
            before = pieces
        raise Unavailable(f"record {name}: it is replaced all the time")

    def _join(self, place: str, pieces: Stripes) -> bytes:
        content = b"".join(self._pool.read(part, 0, self._piece_bytes) for part in pieces.objects(place))
        if len(content) != pieces.length:
            raise Damaged(f"{place}: {len(content)} bytes in its pieces, not {pieces.length}")
        return content

    def names(self, prefix: str) -> list[str]:
        keys = keys_of(self._pool, _KEYS, prefix) if prefix else self._pool.keys(_KEYS)
        names = [key for key in keys if "." not in key]
        found = self._pool.existing([_object(name) for name in names])
        return [name for name, is_there in zip(names, found, strict=True) if is_there]

    def delete(self, name: str) -> None:
        place = _object(name)
        self._pool.remove(place)
        keys = list(keys_of(self._pool, _KEYS, f"{name}."))
        for key in keys:
            remove_pieces(self._pool, place, pieces_of_key(key))
        with suppress(NotFound):
            self._pool.remove_keys(_KEYS, [*keys, name])

    def _pieces(self, place: str) -> Stripes | None:
        """The pieces of what is there now, if it is in pieces."""
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
        raise Damaged(f"{place}: offset 0: this is no record") from None


def _object(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is not the name of a record")
    return f"{_KEYS}/{name}"
