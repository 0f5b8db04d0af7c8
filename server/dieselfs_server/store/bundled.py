"""Chunks that refer to others, many in one object (`dieselfs/chunk/bundle.py`). This module sends requests.

Above this wrapper, a chunk in a bundle is read, listed and deleted as any other. A bundle never changes: records tell
which of its chunks were deleted, and it is deleted with the last of them.

    erased-DATASET-BUNDLE-FIRST-LAST    these chunks of a bundle were deleted

Heads are read in windows, because most passes need all of them, in order. A listing reads the indexes of bundles and
their records again, so it knows what other servers have deleted. A mirror has chunks with the IDs of its origin, so one
that is in a bundle there is an object here.
"""

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock

import numpy as np
import numpy.typing as npt

from dieselfs.chunk.bundle import (
    BUNDLE_PREAMBLE_BYTES,
    MAGIC,
    bundle_of,
    bundled_id,
    decode_index,
    index_bytes,
    is_bundle,
    is_bundled,
    number_of,
)
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound
from dieselfs.limits import KIB
from dieselfs_server.store.interface import Buffer, ObjectStore, require_length
from dieselfs_server.store.wrapper import Arguments, Result, StoreWrapper

log = logging.getLogger(__name__)

WINDOW_BYTES = 256 * KIB
PASS_STEP = 32
"""A chunk that is so close behind the last one belongs to a pass over all; others are read alone."""
BUNDLES_OPEN_MAX = 64
"""Bundles of which an index and a window are in memory: 17 MiB together."""


@dataclass(eq=False)
class _Bundle:
    """`ends`: as `decode_index`; `erased`: the numbers of deleted chunks; `last`: that of the one that was read last.
    `lock` guards what changes, and is held while a window is read.
    """

    ends: npt.NDArray[np.int64]
    erased: set[int]
    lock: Lock = field(default_factory=Lock)
    window: tuple[int, bytes] = 0, b""
    last: int = 0

    @property
    def numbers(self) -> set[int]:
        """Of the chunks that are there."""
        return set(range(1, len(self.ends))) - self.erased


class BundledStore(StoreWrapper):
    """An `ObjectStore` over `store`, some of whose objects are bundles."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._lock = Lock()  # guards the one below
        self._open: OrderedDict[tuple[bytes, bytes], _Bundle | None] = (
            OrderedDict()
        )  # the last used one at the end

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        """Also a bundle. Raises InvalidInput for a chunk with the ID of a bundle, and AlreadyExists if it is in one."""
        if is_bundled(chunk_id):
            if is_bundle(chunk_id) and not b"".join(parts).startswith(MAGIC):
                raise InvalidInput(f"chunk {chunk_name(chunk_id)}: only bundles have such IDs")
            if (
                number_of(chunk_id)
                and self._opened(dataset_id, bundle_of(chunk_id), is_fresh=True) is not None
            ):
                raise AlreadyExists(f"chunk {chunk_name(chunk_id)} already exists")
        self.store.put(dataset_id, chunk_id, parts)
        with self._lock:
            self._open.pop((dataset_id, chunk_id), None)

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        if (place := self._place(dataset_id, chunk_id)) is None:
            return self._single(self.store.get_range, dataset_id, chunk_id, offset, length)
        bundle, start, end = place
        if offset + length > end - start:  # as where an object ends: no request for what is behind
            return require_length(bytes(max(end - start - offset, 0)), chunk_id, offset, length)
        return self._read(bundle, dataset_id, chunk_id, start + offset, length)

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> int | None:
        if self._place(dataset_id, chunk_id) is None:
            return self._single(self.store.open_chunk, dataset_id, chunk_id)
        return None

    def size(self, dataset_id: bytes, chunk_id: bytes) -> int:
        if (place := self._place(dataset_id, chunk_id)) is None:
            return self._single(self.store.size, dataset_id, chunk_id)
        return place[2] - place[1]

    def _single(
        self,
        call: Callable[[bytes, bytes, *Arguments], Result],
        dataset_id: bytes,
        chunk_id: bytes,
        *args: *Arguments,
    ) -> Result:
        """A call for a chunk in no bundle. After NotFound, the next one looks for a bundle: it may be brought back."""
        try:
            return call(dataset_id, chunk_id, *args)
        except NotFound:
            with self._lock:
                self._open.pop((dataset_id, bundle_of(chunk_id)), None)
            raise

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        self.delete_chunks(dataset_id, [chunk_id])

    def delete_chunks(self, dataset_id: bytes, chunk_ids: Iterable[bytes]) -> None:
        bundles = defaultdict[bytes, set[int]](set)
        for chunk_id in chunk_ids:
            if is_bundled(chunk_id):
                bundles[bundle_of(chunk_id)].add(number_of(chunk_id))
            else:
                self.store.delete(dataset_id, chunk_id)
        for bundle_id, numbers in bundles.items():
            self._delete(dataset_id, bundle_id, numbers)

    def _delete(self, dataset_id: bytes, bundle_id: bytes, numbers: set[int]) -> None:
        """Delete chunks of a bundle; with number 0, all. Of a bundle that is gone, a crash may have left records."""
        objects = {0}
        try:
            bundle = self._opened(dataset_id, bundle_id, is_fresh=True)
        except Damaged:
            left = numbers | {0}
        else:
            left = bundle.numbers if bundle is not None else set()
            objects = {0} if bundle is not None else numbers
        if 0 not in numbers and left - numbers:
            for first, last in _runs(sorted(numbers & left)):
                self.store.put_record(f"{_erased(dataset_id, bundle_id)}{first:04x}-{last:04x}", b"")
        else:
            for number in objects:
                self.store.delete(dataset_id, bundled_id(bundle_id, number))
            for name in self.store.list_records(_erased(dataset_id, bundle_id)):
                self.store.delete_record(name)
        with self._lock:
            self._open.pop((dataset_id, bundle_id), None)

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        """A damaged bundle is listed itself: it is no chunk that can be read."""
        for chunk_id in self.store.list_chunks(dataset_id, since_s):
            if not is_bundle(chunk_id):
                yield chunk_id
                continue
            try:
                bundle = self._opened(dataset_id, chunk_id, is_fresh=True)
            except Damaged:
                yield chunk_id
                continue
            for number in sorted(bundle.numbers) if bundle is not None else ():
                yield bundled_id(chunk_id, number)

    def delete_dataset(self, dataset_id: bytes) -> None:
        self.store.delete_dataset(dataset_id)
        for name in self.store.list_records(_erased(dataset_id)):
            self.store.delete_record(name)
        with self._lock:
            for key in [key for key in self._open if key[0] == dataset_id]:
                del self._open[key]

    def _place(self, dataset_id: bytes, chunk_id: bytes) -> tuple[_Bundle, int, int] | None:
        """The bundle of a chunk, and where its head begins and ends there; None if it is in none. Raises NotFound if
        it was deleted, Damaged.
        """
        if not is_bundled(chunk_id) or not (number := number_of(chunk_id)):
            return None
        bundle = self._opened(dataset_id, bundle_of(chunk_id))
        if bundle is None:
            return None
        if number >= len(bundle.ends) or number in bundle.erased:
            raise NotFound(f"chunk {chunk_name(chunk_id)} is not stored")
        return bundle, int(bundle.ends[number - 1]), int(bundle.ends[number])

    def _opened(self, dataset_id: bytes, bundle_id: bytes, is_fresh: bool = False) -> _Bundle | None:
        """None if there is no such bundle, which is remembered too: chunks are asked for after it is stored. Raises
        Damaged.
        """
        key = dataset_id, bundle_id
        with self._lock:
            if not is_fresh and key in self._open:
                self._open.move_to_end(key)
                return self._open[key]
            self._open.pop(key, None)
        try:
            bundle = self._loaded(*key)
        except Damaged as error:  # a store may give wrong bytes once, and here they hide many chunks
            log.warning("%s; reading it again", error)
            bundle = self._loaded(*key)
        with self._lock:
            while len(self._open) >= BUNDLES_OPEN_MAX:
                self._open.popitem(last=False)
            self._open[key] = bundle
        return bundle

    def _loaded(self, dataset_id: bytes, bundle_id: bytes) -> _Bundle | None:
        key = dataset_id, bundle_id
        try:
            preamble = self.store.get_range(*key, 0, BUNDLE_PREAMBLE_BYTES)
            index = self.store.get_range(*key, BUNDLE_PREAMBLE_BYTES, index_bytes(preamble, bundle_id))
        except NotFound:  # also if it is deleted between the two
            return None
        erased = set[int]()
        for name in self.store.list_records(_erased(*key)):
            first, last = name.split("-")[-2:]
            erased.update(range(int(first, 16), int(last, 16) + 1))
        return _Bundle(decode_index(index, bundle_id), erased)

    def _read(self, bundle: _Bundle, dataset_id: bytes, chunk_id: bytes, start: int, length: int) -> bytes:
        """A range in the head of a chunk; in a pass, with what follows it, for the next calls."""
        whole, number = (dataset_id, bundle_of(chunk_id)), number_of(chunk_id)
        with bundle.lock:
            step, bundle.last = number - bundle.last, number
            first, content = bundle.window
            if not first <= start <= start + length <= first + len(content):
                if 0 < step <= PASS_STEP and length <= WINDOW_BYTES:
                    first, ahead = start, min(WINDOW_BYTES, int(bundle.ends[-1]) - start)
                    content = self.store.get_range(*whole, start, ahead)
                    bundle.window = first, content
                else:
                    content = b""
        if not content:
            return self.store.get_range(*whole, start, length)
        return content[start - first : start - first + length]


def _erased(dataset_id: bytes, bundle_id: bytes = b"") -> str:
    return f"erased-{dataset_id.hex()}-{f'{bundle_id[:-2].hex()}-' if bundle_id else ''}"


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of ascending numbers."""
    cuts = [0, *(i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1), len(numbers)]
    for first, end in pairwise(cuts):
        if end > first:
            yield numbers[first], numbers[end - 1]
