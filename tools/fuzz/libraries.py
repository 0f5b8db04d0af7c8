"""Formats that libraries in C read, as targets: through the process that reads them for `dlcmd import`, because a crash
of the library is an error there. This module writes temporary files and starts a process.
"""

from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from dieselfs.transfer.upload import ENTRY_ERRORS
from dieselfs_tools.archives.importing.reader import Readers
from dieselfs_tools.cli.output import Output
from fuzz.target import Target

RECORDS_MAX = 1_000
"""What is read of one input: a damaged one may have records without end."""


@cache
def _readers() -> Readers:
    return Readers(Output(is_quiet=True))


def _read(format_name: str, data: bytes) -> None:
    with TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.write_bytes(data)
        with _readers().read(str(source), format_name) as opened:
            for _, record in zip(range(RECORDS_MAX), opened, strict=False):
                with suppress(*ENTRY_ERRORS):  # this record fails alone
                    record.load()


LIBRARY_TARGETS = tuple(Target(name, partial(_read, name), [b""]) for name in ("lmdb", "hdf5", "parquet"))
"""Their valid inputs are in `tests/corpus`, with some that are made to do harm."""
