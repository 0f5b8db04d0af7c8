"""Shards of MosaicML MDS and of LitData: a table of offsets, then samples, each of them the sizes and the bytes of its
values. No I/O of its own.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import BinaryIO

from dieselfs.errors import Damaged

INDEX = "index.json"
"""The file that names the shards of a folder."""

SAMPLES_MAX = 1 << 28
SAMPLE_BYTES_MAX = 1 << 30
SKIP_BYTES = 1 << 20

_COUNT = struct.Struct("<I")


def samples(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The samples of a shard, and where they begin. Raises Damaged if its table makes no sense, or it is cut off."""
    (count,) = _COUNT.unpack(_exactly(stream, _COUNT.size))
    if count > SAMPLES_MAX:
        raise Damaged(f"its table says {count} samples")
    table = _exactly(stream, (count + 1) * _COUNT.size)
    offsets = [offset for (offset,) in _COUNT.iter_unpack(table)]
    position = _COUNT.size + len(table)
    for begin, end in pairwise(offsets):
        if not position <= begin <= end or end - begin > SAMPLE_BYTES_MAX:
            raise Damaged(f"its table has a sample from {begin} to {end}, after {position}")
        while position < begin:  # notes of the writer
            position += len(_exactly(stream, min(begin - position, SKIP_BYTES)))
        yield begin, _exactly(stream, end - begin)
        position = end


def values(sample: bytes, sizes: Sequence[int | None]) -> list[bytes]:
    """The values of a sample, whose sizes are those given, or else noted at its begin. Raises Damaged."""
    noted = sum(size is None for size in sizes)
    place = noted * _COUNT.size
    if len(sample) < place:
        raise Damaged("a sample is shorter than its sizes")
    lengths = _COUNT.iter_unpack(sample[:place])
    found = []
    for size in sizes:
        length = next(lengths)[0] if size is None else size
        found.append(sample[place : place + length])
        place += length
    if place != len(sample):
        raise Damaged(f"a sample has {len(sample)} bytes, and its values {place}")
    return found


def _exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise Damaged("it is cut off")
    return content
