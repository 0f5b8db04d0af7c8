"""The object store in a pool of a Ceph cluster. `docs/guide/object-stores.md` lists the objects and the states.

RADOS cannot list objects in order, and lists those of one dataset only by a scan of the pool. So the store keeps
indexes: objects whose keys are the names of chunks. Each has the chunks of 256 seconds, which share the first four
characters of their names. Keys are written before the chunk, from the top of the index down, and removed after it, from
the bottom up. So a crash can leave keys without an object, which listings skip, but never an object without a key.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self
from urllib.parse import parse_qsl

from dieselfs.chunk.ids import CHUNK_NAME_CHARACTERS, chunk_name, earliest_chunk_id, parse_chunk_name
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.fields import DATASET_ID_BYTES
from dieselfs.net.address import path_of, split
from dieselfs_server.store.interface import Buffer
from dieselfs_server.store.rados_pool import STATS_AT_ONCE_MAX, RadosPool
from dieselfs_server.store.rados_records import (
    PIECE_BYTES,
    RadosRecords,
    Stripes,
    just_before,
    keys_of,
    pieces_of_key,
    remove_pieces,
    write_pieces,
)

DEFAULT_CEPH_CONF = "/etc/ceph/ceph.conf"
DEFAULT_CEPH_USER = "client.dieselfs"

REGISTER_TRIES_MAX = 8
"""Tries to enter a chunk while its dataset is being removed."""

_TIME_CHARACTERS = 4
_DATASETS = "datasets"
_PIECES = "pieces"
_DATASET_KEY = re.compile(rf"[0-9a-f]{{{2 * DATASET_ID_BYTES}}}")


class RadosStore(RadosRecords):
    """An `ObjectStore`. The pool must be replicated: erasure-coded pools have no keys.

    Removing a dataset during a put may leave chunks that are not listed. The server then drops the dataset's metadata,
    so nothing refers to them.
    """

    def __init__(self, pool: RadosPool, piece_bytes: int = PIECE_BYTES) -> None:
        super().__init__(pool, piece_bytes)

    @classmethod
    def open(cls, url: str, is_new: bool) -> Self:
        """The store at `rados://POOL?conf=FILE&user=client.NAME`. Raises NotFound, Unavailable."""
        pool, options = path_of(url), dict(parse_qsl(split(url).query))
        if not pool or options.keys() - {"conf", "user"}:
            raise InvalidInput(f"store {url!r}: name a pool, and conf or user: rados://POOL?conf=FILE")
        user = options.get("user", DEFAULT_CEPH_USER)
        if not user.startswith("client."):
            raise InvalidInput(
                f"store {url!r}: user {user!r} must be a Ceph client, such as {DEFAULT_CEPH_USER}"
            )
        return cls(RadosPool(pool, options.get("conf", DEFAULT_CEPH_CONF), user))

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)
        name = chunk_name(chunk_id)
        self._register(dataset_id, name, name)
        try:
            if len(content) < self._piece_bytes:
                self._pool.create(_chunk_object(dataset_id, name), content)
            else:
                self._put_pieces(dataset_id, name, content)
        except AlreadyExists:
            raise AlreadyExists(f"chunk {name} already exists") from None

    def _put_pieces(self, dataset_id: bytes, name: str, content: bytes) -> None:
        """Writes the first part last: the chunk exists once it does."""
        first = _chunk_object(dataset_id, name)
        pieces = Stripes.new(len(content), -(-len(content) // self._piece_bytes) - 1)
        self._register(dataset_id, name, pieces.key(name))
        rest = memoryview(content)[self._piece_bytes :]
        write_pieces(self._pool, first, pieces, rest, self._piece_bytes)
        try:
            self._pool.create(first, content[: self._piece_bytes], [(_PIECES, pieces.encode())])
        except AlreadyExists:
            remove_pieces(self._pool, first, pieces)
            self._pool.remove_keys(_time_object(dataset_id, name), [pieces.key(name)])
            raise

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        name = chunk_name(chunk_id)
        first = _chunk_object(dataset_id, name)
        with _naming(name):
            if length == 0:
                self._pool.size(first)
                return b""
            if offset + length <= self._piece_bytes:
                data = self._pool.read(first, offset, length)
            else:
                data = self._read_pieces(first, offset, length)
        if len(data) != length:
            raise Damaged(
                f"chunk {name}: offset {offset}: "
                f"{length} bytes requested, but the object ends at {offset + len(data)}"
            )
        return data

    def _read_pieces(self, first: str, offset: int, length: int) -> bytes:
        pieces = self._pieces(first)
        objects = [first, *pieces.objects(first)] if pieces else [first]
        end = min(offset + length, len(objects) * self._piece_bytes)
        data = bytearray()
        for number in range(offset // self._piece_bytes, -(-end // self._piece_bytes)):
            start = max(offset - number * self._piece_bytes, 0)
            wanted = min(end - number * self._piece_bytes, self._piece_bytes) - start
            try:
                part = self._pool.read(objects[number], start, wanted)
            except NotFound:
                if objects[number] == first:
                    raise
                raise Damaged(f"{objects[number]}: offset 0: this piece is missing") from None
            data += part
            if len(part) != wanted:
                break
        return bytes(data)

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """None: there are no files."""

    def size(self, dataset_id: bytes, chunk_id: bytes) -> int:
        name = chunk_name(chunk_id)
        first = _chunk_object(dataset_id, name)
        with _naming(name):
            length = self._pool.size(first)
            pieces = self._pieces(first) if length == self._piece_bytes else None
        return pieces.length if pieces else length

    def _pieces(self, first: str) -> Stripes | None:
        value = self._pool.attribute(first, _PIECES)
        try:
            return None if value is None else Stripes.decode(value)
        except ValueError:
            raise Damaged(f"{first}: invalid attribute {_PIECES}: {value!r}") from None

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        name = chunk_name(chunk_id)
        times = _time_object(dataset_id, name)
        keys = list(keys_of(self._pool, times, name))
        self._remove_chunks(dataset_id, [name, *keys])
        with suppress(NotFound):
            self._pool.remove_keys(times, [name, *keys])

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        first = chunk_name(earliest_chunk_id(since_s))
        for time in self._pool.keys(_times_object(dataset_id), after=just_before(first[:_TIME_CHARACTERS])):
            yield from self._chunks_of(dataset_id, time, first)

    def _chunks_of(self, dataset_id: bytes, time: str, first: str) -> Iterator[bytes]:
        names: list[str] = []
        for key in self._pool.keys(f"{_times_object(dataset_id)}/{time}", after=just_before(first)):
            if len(key) == CHUNK_NAME_CHARACTERS:
                names.append(key)
            if len(names) == STATS_AT_ONCE_MAX:
                yield from self._stored(dataset_id, names)
                names.clear()
        yield from self._stored(dataset_id, names)

    def _stored(self, dataset_id: bytes, names: Sequence[str]) -> list[bytes]:
        found = self._pool.existing([_chunk_object(dataset_id, name) for name in names])
        return [parse_chunk_name(name) for name, is_there in zip(names, found, strict=True) if is_there]

    def list_datasets(self) -> Iterator[bytes]:
        for key in self._pool.keys(_DATASETS):
            if _DATASET_KEY.fullmatch(key):
                dataset_id = bytes.fromhex(key)
                if next(self.list_chunks(dataset_id), None) is not None:
                    yield dataset_id

    def delete_dataset(self, dataset_id: bytes) -> None:
        times = _times_object(dataset_id)
        for time in self._pool.keys(times):
            self._remove_chunks(dataset_id, self._pool.keys(f"{times}/{time}"))
            self._pool.remove(f"{times}/{time}")
        self._pool.remove(times)
        with suppress(NotFound):
            self._pool.remove_keys(_DATASETS, [dataset_id.hex()])

    def close(self) -> None:
        self._pool.close()

    def _register(self, dataset_id: bytes, name: str, key: str) -> None:
        """Enter `key` into the index of its time, after the missing levels above it, from the top down."""
        time = _time_object(dataset_id, name)
        for _ in range(REGISTER_TRIES_MAX):
            with suppress(NotFound):
                self._pool.add_key(time, key)
                return
            times = _times_object(dataset_id)
            self._pool.make_keys(_DATASETS)
            with suppress(NotFound):
                self._pool.add_key(_DATASETS, dataset_id.hex())
                self._pool.make_keys(times)
                self._pool.add_key(times, name[:_TIME_CHARACTERS])
                self._pool.make_keys(time)
        raise Unavailable(f"chunk {name}: its dataset is being removed; try again later")

    def _remove_chunks(self, dataset_id: bytes, keys: Iterator[str] | Sequence[str]) -> None:
        for key in keys:
            if len(key) == CHUNK_NAME_CHARACTERS:
                self._pool.remove(_chunk_object(dataset_id, key))
            else:
                first = _chunk_object(dataset_id, key[:CHUNK_NAME_CHARACTERS])
                remove_pieces(self._pool, first, pieces_of_key(key))


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the chunk in a NotFound of the block."""
    try:
        yield
    except NotFound:
        raise NotFound(f"chunk {name} is not stored") from None


def _dataset_prefix(dataset_id: bytes) -> str:
    if len(dataset_id) != DATASET_ID_BYTES:
        raise InvalidInput(f"a dataset ID has {DATASET_ID_BYTES} bytes, not {len(dataset_id)}")
    return dataset_id.hex()


def _chunk_object(dataset_id: bytes, name: str) -> str:
    return f"{_dataset_prefix(dataset_id)}/chunks/{name}"


def _times_object(dataset_id: bytes) -> str:
    return f"{_dataset_prefix(dataset_id)}/times"


def _time_object(dataset_id: bytes, name: str) -> str:
    return f"{_times_object(dataset_id)}/{name[:_TIME_CHARACTERS]}"
