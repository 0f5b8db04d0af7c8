"""The object store in a pool of a Ceph cluster. `docs/guide/object-stores.md` lists the objects and the states.

RADOS cannot list objects in order, and lists those of one dataset only by a scan of the pool. So the store keeps
indexes: objects whose keys are the names of chunks. Each has the chunks of 256 seconds, which share the first four
characters of their names. Keys are written before the chunk, from the top of the index down, and removed after it, from
the bottom up. So a crash can leave keys without an object, which listings skip, but never an object without a key.

Chunks may be in another pool than the indexes and records, for example in an erasure-coded one, which has no keys. All
of them may be in one namespace of their pools.

Content that is too long for one RADOS object is in pieces. The object of a record is replaced atomically, so a reader
gets the old or the new content. The key of the pieces is entered before the first of them, and removed after the last.
So pieces that a crash leaves are removed with the object. The pieces of the old content are removed after the new
content is stored.
"""

import secrets
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Self
from urllib.parse import parse_qsl

from dieselfs.chunk.ids import CHUNK_NAME_CHARACTERS, chunk_name, earliest_chunk_id, parse_chunk_name
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.limits import KIB, MIB
from dieselfs.net.address import path_of, split
from dieselfs_server.store.interface import (
    Buffer,
    check_record_name,
    dataset_folder,
    naming,
    require_length,
    with_chunks,
)
from dieselfs_server.store.rados_pool import STATS_AT_ONCE_MAX, RadosPool
from dieselfs_server.store.wrapper import MARKER_RECORD

READ_TRIES_MAX = 8
"""Tries to read a record that is replaced meanwhile."""

_KEYS = "records"
_WHOLE, _IN_PIECES = b"\0", b"\1"
_HEAD_BYTES_MAX = 128
"""Enough for the encoded `Stripes` in the object of a record."""

_SMALL_RECORD_BYTES = 128 * KIB
"""Most records are smaller. librados has reads of 100 MB in flight at most, by the lengths that were asked for; further
ones wait, without a timeout.
"""

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


def _decode(place: str, head: bytes) -> Stripes:
    try:
        return Stripes.decode(head.removeprefix(_IN_PIECES))
    except ValueError:
        raise Damaged(f"{place}: offset 0: not a record") from None


def _record_object(name: str) -> str:
    return f"{_KEYS}/{check_record_name(name)}"


DEFAULT_CEPH_CONF = "/etc/ceph/ceph.conf"
DEFAULT_CEPH_USER = "client.dieselfs"

REGISTER_TRIES_MAX = 8
"""Tries to enter a chunk while its dataset is being removed."""

_TIME_CHARACTERS = 4
_DATASETS = "datasets"
_PIECES = "pieces"
_CHUNKS_POOL = "chunks-pool"
"""The object with the name of the pool of the chunks, if it is another one."""


class RadosStore:
    """An `ObjectStore`. `pool` has indexes and records, and must be replicated: erasure-coded pools have no keys.
    `chunks`: the pool of the chunks, or None for the same one.

    Removing a dataset during a put may leave chunks that are not listed. The server then drops the dataset's metadata,
    so nothing refers to them. Content of `piece_bytes` and more goes into pieces.
    """

    def __init__(
        self, pool: RadosPool, piece_bytes: int = PIECE_BYTES, chunks: RadosPool | None = None
    ) -> None:
        self._pool = pool
        self._chunks = chunks or pool
        self._piece_bytes = piece_bytes

    @classmethod
    def open(cls, url: str, is_new: bool) -> Self:
        """The store at `rados://POOL?conf=FILE&user=client.NAME&chunks=POOL&namespace=NAME`; options may be missing.

        Raises InvalidInput, NotFound, Unavailable.
        """
        name, options = path_of(url), dict(parse_qsl(split(url).query))
        if not name or options.keys() - {"conf", "user", "chunks", "namespace"}:
            raise InvalidInput(
                f"store {url!r}: name a pool, and conf, user, chunks or namespace: rados://POOL?conf=FILE"
            )
        user = options.get("user", DEFAULT_CEPH_USER)
        if not user.startswith("client."):
            raise InvalidInput(
                f"store {url!r}: user {user!r} must be a Ceph client, such as {DEFAULT_CEPH_USER}"
            )
        others = options.get("conf", DEFAULT_CEPH_CONF), user, options.get("namespace", "")
        with ExitStack() as opened:
            pool = opened.enter_context(closing(RadosPool(name, *others)))
            chunks = pool
            if (of_chunks := options.get("chunks", name)) != name:
                chunks = opened.enter_context(closing(RadosPool(of_chunks, *others)))
            _check_pools(pool, name, of_chunks, is_new)
            opened.pop_all()
        return cls(pool, chunks=chunks)

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)
        name = chunk_name(chunk_id)
        self._register(dataset_id, name, name)
        try:
            if len(content) < self._piece_bytes:
                self._chunks.create(_chunk_object(dataset_id, name), content)
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
        write_pieces(self._chunks, first, pieces, rest, self._piece_bytes)
        try:
            self._chunks.create(first, content[: self._piece_bytes], [(_PIECES, pieces.encode())])
        except AlreadyExists:
            remove_pieces(self._chunks, first, pieces)
            self._pool.remove_keys(_time_object(dataset_id, name), [pieces.key(name)])
            raise

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        first = _chunk_object(dataset_id, chunk_name(chunk_id))
        with naming(chunk_id):
            if length == 0:
                self._chunks.size(first)
                return b""
            read = self._chunks.read if offset + length <= self._piece_bytes else self._read_pieces
            return require_length(read(first, offset, length), chunk_id, offset, length)

    def _read_pieces(self, first: str, offset: int, length: int) -> bytes:
        pieces = self._pieces(first)
        objects = [first, *pieces.objects(first)] if pieces else [first]
        end = min(offset + length, len(objects) * self._piece_bytes)
        data = bytearray()
        for number in range(offset // self._piece_bytes, -(-end // self._piece_bytes)):
            start = max(offset - number * self._piece_bytes, 0)
            wanted = min(end - number * self._piece_bytes, self._piece_bytes) - start
            try:
                part = self._chunks.read(objects[number], start, wanted)
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
        first = _chunk_object(dataset_id, chunk_name(chunk_id))
        with naming(chunk_id):
            length = self._chunks.size(first)
            pieces = self._pieces(first) if length == self._piece_bytes else None
        return pieces.length if pieces else length

    def _pieces(self, first: str) -> Stripes | None:
        value = self._chunks.attribute(first, _PIECES)
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
        found = self._chunks.existing([_chunk_object(dataset_id, name) for name in names])
        return [parse_chunk_name(name) for name, is_there in zip(names, found, strict=True) if is_there]

    def list_datasets(self, without: Container[bytes] = ()) -> Iterator[bytes]:
        return with_chunks(self, self._pool.keys(_DATASETS), without)

    def delete_dataset(self, dataset_id: bytes) -> None:
        times = _times_object(dataset_id)
        for time in self._pool.keys(times):
            self._remove_chunks(dataset_id, self._pool.keys(f"{times}/{time}"))
            self._pool.remove(f"{times}/{time}")
        self._pool.remove(times)
        with suppress(NotFound):
            self._pool.remove_keys(_DATASETS, [dataset_id.hex()])

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
                head = self._pool.read(place, 0, _SMALL_RECORD_BYTES)
                if len(head) == _SMALL_RECORD_BYTES:  # read again as one: it may have been replaced
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

    def close(self) -> None:
        self._pool.close()
        if self._chunks is not self._pool:
            self._chunks.close()

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
                self._chunks.remove(_chunk_object(dataset_id, key))
            else:
                first = _chunk_object(dataset_id, key[:CHUNK_NAME_CHARACTERS])
                remove_pieces(self._chunks, first, pieces_of_key(key))


def _check_pools(pool: RadosPool, name: str, of_chunks: str, is_new: bool) -> None:
    """Raise InvalidInput if the chunks are in another pool than `of_chunks`. A new store notes which one it is."""
    try:
        noted = pool.read(_CHUNKS_POOL, 0, _SMALL_RECORD_BYTES).decode("utf-8", "replace")
    except NotFound:
        noted = name
        if is_new and of_chunks != name and not any(pool.existing([_record_object(MARKER_RECORD)])):
            with suppress(AlreadyExists):  # another server starts, too
                pool.create(_CHUNKS_POOL, of_chunks.encode())
            return
    if noted != of_chunks:
        raise InvalidInput(
            f"store rados://{name}: its chunks are in the pool {noted}, not in {of_chunks}; "
            "give the pool that the store was created with (chunks=POOL)"
        )


def _chunk_object(dataset_id: bytes, name: str) -> str:
    return f"{dataset_folder(dataset_id)}/chunks/{name}"


def _times_object(dataset_id: bytes) -> str:
    return f"{dataset_folder(dataset_id)}/times"


def _time_object(dataset_id: bytes, name: str) -> str:
    return f"{_times_object(dataset_id)}/{name[:_TIME_CHARACTERS]}"
