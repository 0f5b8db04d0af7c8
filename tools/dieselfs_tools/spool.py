"""Standard input as a file, because a chunk says how long a file is, and a pipe does not.

This module writes a temporary file.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from dieselfs.errors import DieselfsError

COPY_BYTES = 1 << 20
FILE_MODE = 0o644


@contextmanager
def spooled(stream: BinaryIO) -> Iterator[str]:
    """Copy a stream to its end into a temporary file, which is gone afterwards; gives its path.

    Raises DieselfsError if there is no room for it.
    """
    folder = tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(prefix="dlcmd-") as file:
            shutil.copyfileobj(stream, file, COPY_BYTES)
            file.flush()
            os.fchmod(file.fileno(), FILE_MODE)
            yield file.name
    except OSError as error:
        raise DieselfsError(
            f"standard input cannot be kept in {folder}: {error.strerror}; set TMPDIR to a folder with more room"
        ) from None
