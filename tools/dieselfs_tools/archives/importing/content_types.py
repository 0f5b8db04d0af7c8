"""Names and bytes of values that are no files in their source: arrays as .npy, and the suffix of a known content.
No I/O.
"""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

DIGITS = 8
"""Of the number in the name of a record."""

_MAGICS: tuple[tuple[bytes, int, str], ...] = (
    (b"\xff\xd8\xff", 0, ".jpg"),
    (b"\x89PNG\r\n\x1a\n", 0, ".png"),
    (b"GIF8", 0, ".gif"),
    (b"WEBP", 8, ".webp"),
    (b"WAVE", 8, ".wav"),
    (b"fLaC", 0, ".flac"),
    (b"OggS", 0, ".ogg"),
    (b"ID3", 0, ".mp3"),
    (b"ftyp", 4, ".mp4"),
    (b"BM", 0, ".bmp"),
    (b"II*\0", 0, ".tif"),
    (b"MM\0*", 0, ".tif"),
    (b"\x93NUMPY", 0, ".npy"),
    (b"%PDF", 0, ".pdf"),
)


def suffix_of(content: bytes) -> str:
    """The suffix of images, sound and arrays, by their first bytes; empty for anything else."""
    for magic, place, suffix in _MAGICS:
        if content.startswith(magic, place):
            return suffix
    return ""


def number(index: int) -> str:
    """The number of a record in names."""
    return format(index, f"0{DIGITS}")


def npy(array: npt.NDArray[Any]) -> bytes:
    """An array, which may be a scalar, as the bytes of an .npy file. Raises ValueError for arrays of objects."""
    written, array = BytesIO(), np.asanyarray(array)
    if array.dtype.metadata and array.dtype.names is None:  # of h5py; an .npy file has none
        array = array.view(array.dtype.str)
    np.lib.format.write_array(written, array, allow_pickle=False)
    return written.getvalue()


def npy_rows(rows: npt.NDArray[Any]) -> Callable[[int], bytes]:
    """The function from the number of a row, of shape rows.shape[1:], to the bytes of its .npy file. The rows have one
    header, so it is made once.
    """
    if not len(rows):
        return lambda _: b""
    rows = np.ascontiguousarray(rows)
    first = rows[:1].reshape(rows.shape[1:])  # not rows[0], which may be a scalar in another byte order
    whole = npy(first)
    head = whole[: len(whole) - first.nbytes]
    return lambda row: head + rows[row : row + 1].tobytes()
