"""Formats that libraries in C read, as targets: through the process that reads them for `dlcmd import`, because a crash
of the library is an error there. This module writes temporary files and starts a process.
"""

from contextlib import suppress
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dieselfs.errors import DieselfsError
from dieselfs.transfer.upload import ENTRY_ERRORS
from dieselfs_tools.archives.formats import required
from dieselfs_tools.archives.importing.reader import Readers
from dieselfs_tools.archives.importing.record import ArrayForm
from dieselfs_tools.cli.output import Output
from fuzz.imports import is_inside
from fuzz.target import Target

RECORDS_MAX = 1_000
"""What is read of one input: a damaged one may have records without end."""


@cache
def _readers(is_in_place: bool) -> Readers:
    return Readers(Output(is_quiet=True), form=ArrayForm(is_in_place=is_in_place))


def _read(format_name: str, is_in_place: bool, data: bytes) -> None:
    with TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.write_bytes(data)
        with _readers(is_in_place).read(str(source), format_name, not is_in_place) as opened:
            for _, record in zip(range(RECORDS_MAX), opened, strict=False):
                if is_in_place:
                    assert all(map(is_inside, record.ranges))
                    continue
                with suppress(*ENTRY_ERRORS):  # this record fails alone
                    record.load()


@cache
def _hdf5() -> bytes:
    """Contiguous and chunked datasets."""
    try:
        h5py = required("h5py")
    except DieselfsError:  # the extra is not installed: the target refuses everything
        return b""
    written = BytesIO()
    with h5py.File(written, "w") as file:
        file["whole"] = np.arange(64).reshape(4, 16)
        file.create_dataset("chunked", data=np.arange(64).reshape(4, 16), chunks=(3, 16))
    return written.getvalue()


@cache
def _parquet() -> bytes:
    try:
        pyarrow, parquet = required("pyarrow"), required("pyarrow.parquet")
    except DieselfsError:
        return b""
    written = BytesIO()
    table = pyarrow.table({"image": [bytes([n]) * 40 for n in range(4)]})
    parquet.write_table(table, written, compression="none", use_dictionary=False)
    return written.getvalue()


LIBRARY_TARGETS = (
    *(Target(name, partial(_read, name, False), [b""]) for name in ("lmdb", "hdf5", "parquet")),
    Target("parquet-in-place", partial(_read, "parquet", True), [_parquet()]),
    Target("hdf5-in-place", partial(_read, "hdf5", True), [_hdf5()]),
)
"""Their valid inputs are mostly in `tests/corpus`, with some that are made to do harm."""
