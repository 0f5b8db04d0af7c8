"""The object store in a bucket of S3, Google Cloud Storage or Azure.

    <prefix>/<dataset ID, hex>/<name>     a chunk; `name` is its ID as printed
    <prefix>/records/<record>             a record

Each object is stored by one request, or it is not there: after a crash there is nothing to clean up, but parts of a
large record, which no listing shows. Buckets list names in order, from any name on, so there is no index to keep.
`docs/guide/object-stores.md` lists the requests.
"""

import time
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import islice, takewhile
from typing import Self

from dieselfs.bucket.client import LISTED_AT_ONCE, Bucket
from dieselfs.bucket.url import BucketUrl
from dieselfs.chunk.ids import chunk_name, earliest_chunk_id, parse_chunk_name
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs_server.store.interface import (
    RECORD_NAME,
    Buffer,
    ObjectStore,
    check_record_name,
    dataset_folder,
    naming,
    with_chunks,
)

PROBE_RECORD = "exclusive"
EXCLUSIVE_CHECK_S = 10.0
"""Before the first write after this time, conditional puts are tried again: a proxy or a gateway may have changed."""

_RECORDS = "records"


class BucketStore:
    """An `ObjectStore`. The storage must have conditional puts, or writers overwrite each other: `check_exclusive` is
    for the start. Writes raise Unavailable if it has lost them, once EXCLUSIVE_CHECK_S has passed.
    """

    def __init__(self, bucket: Bucket, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._clock = clock
        self._checked_s = clock()

    @classmethod
    def open(cls, url: str, is_new: bool) -> Self:
        """The store at `s3://BUCKET/PREFIX`, or at that of another kind of bucket. Raises InvalidInput, Unavailable."""
        return cls(Bucket(BucketUrl.parse(url)))

    def _check_exclusive(self) -> None:
        now_s = self._clock()
        if now_s - self._checked_s >= EXCLUSIVE_CHECK_S:
            try:
                check_exclusive(self, str(self._bucket))
            except InvalidInput as error:
                raise Unavailable(str(error)) from error
            self._checked_s = now_s

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        self._check_exclusive()
        key = _chunk_key(dataset_id, chunk_id)
        try:
            self._bucket.create(key, b"".join(parts))
        except AlreadyExists:
            self._confirm(key)
            raise AlreadyExists(f"chunk {chunk_name(chunk_id)} already exists") from None

    def _confirm(self, key: str) -> None:
        """Raise Unavailable unless the object exists: storage may also refuse two writers that came together."""
        try:
            self._bucket.size(key)
        except NotFound:
            raise Unavailable(f"object store {self._bucket}: {key}: another writer came between") from None

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        key = _chunk_key(dataset_id, chunk_id)
        with naming(chunk_id):
            if length == 0:
                self._bucket.size(key)
                return b""
            data = self._bucket.read(key, offset, length)
        if len(data) != length:
            raise Damaged(
                f"chunk {chunk_name(chunk_id)}: offset {offset}: "
                f"{length} bytes requested, but the object ends before {offset + length}"
            )
        return data

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """None: there are no files."""

    def size(self, dataset_id: bytes, chunk_id: bytes) -> int:
        with naming(chunk_id):
            return self._bucket.size(_chunk_key(dataset_id, chunk_id))

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        self._bucket.remove([_chunk_key(dataset_id, chunk_id)])

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        first = chunk_name(earliest_chunk_id(since_s))
        # The last character of a name is cut off, so that the listing begins with `first` itself.
        for name in self._bucket.keys(dataset_folder(dataset_id), after=first[:-1]):
            if name >= first:
                try:
                    yield parse_chunk_name(name)
                except InvalidInput:  # not a chunk, but an object of another program
                    continue

    def list_datasets(self, without: Container[bytes] = ()) -> Iterator[bytes]:
        return with_chunks(self, self._bucket.folders(), without)

    def delete_dataset(self, dataset_id: bytes) -> None:
        folder = dataset_folder(dataset_id)
        names = self._bucket.keys(folder)
        while page := [f"{folder}/{name}" for name in islice(names, LISTED_AT_ONCE)]:
            self._bucket.remove(page)

    def put_record(self, name: str, content: bytes) -> None:
        self._bucket.replace(_record_key(name), content)

    def create_record(self, name: str, content: bytes) -> bool:
        if name != PROBE_RECORD:
            self._check_exclusive()
        key = _record_key(name)
        try:
            self._bucket.create(key, content)
        except AlreadyExists:
            self._confirm(key)
            return False
        return True

    def get_record(self, name: str) -> bytes | None:
        try:
            return self._bucket.read_whole(_record_key(name))
        except NotFound:
            return None

    def list_records(self, prefix: str) -> list[str]:
        names = self._bucket.keys(_RECORDS, after=prefix[:-1])
        found = takewhile(lambda name: name.startswith(prefix) or name < prefix, names)
        return [name for name in found if name.startswith(prefix) and RECORD_NAME.fullmatch(name)]

    def delete_record(self, name: str) -> None:
        self._bucket.remove([_record_key(name)])

    def close(self) -> None:
        return


def check_exclusive(store: ObjectStore, name: str) -> None:
    """Raise InvalidInput if a store in a bucket overwrites objects where it is asked to create them only.

    Its first server creates a record, and each finds that it cannot be created again. `name` is for errors.
    """
    if store.create_record(PROBE_RECORD, b"") and store.create_record(PROBE_RECORD, b""):
        raise InvalidInput(
            f"store {name}: this storage has no conditional put (it ignores If-None-Match), so writers could "
            "overwrite each other's chunks; use another one, such as AWS, Ceph, MinIO, Google or Azure"
        )


def _chunk_key(dataset_id: bytes, chunk_id: bytes) -> str:
    return f"{dataset_folder(dataset_id)}/{chunk_name(chunk_id)}"


def _record_key(name: str) -> str:
    return f"{_RECORDS}/{check_record_name(name)}"
