"""Standard input as a file, because a chunk says how long a file is, and a pipe does not.

This module writes a temporary file.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

from dieselfs.errors import DieselfsError

COPY_BYTES = 1 << 20
FILE_MODE = 0o644


@contextmanager
def spooled(stream: BinaryIO) -> Iterator[str]:
    """Copy a stream to its end into a temporary file, which is gone afterwards; gives its path.

    Raises DieselfsError if there is no room for it.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="dlcmd-"))
            shutil.copyfileobj(stream, file, COPY_BYTES)
            file.flush()
            os.fchmod(file.fileno(), FILE_MODE)
        except OSError as error:
            raise DieselfsError(
                f"standard input cannot be kept in {tempfile.gettempdir()}: {error.strerror}; "
                "set TMPDIR to a folder with more room"
            ) from None
        yield file.name
