"""A stream as a temporary file, for as long as it is needed. This module writes to the folder of temporary files."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

from dieselfs.errors import DieselfsError
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.progress import Reading, shown

STANDARD_INPUT = "-"
COPY_BYTES = 1 << 20
FILE_MODE = 0o644


@contextmanager
def spooled(stream: BinaryIO, output: Output, name: str = STANDARD_INPUT) -> Iterator[str]:
    """Copy a stream, which is called `name`, into a temporary file: a chunk records the size of a file before its
    bytes, and some formats have their index at the end. Shows the progress; yields the path. The context removes the
    file.

    Raises DieselfsError if there is no space for it.
    """
    title = "standard input" if name == STANDARD_INPUT else name
    with ExitStack() as stack:
        try:
            # In a folder of this user alone: the mode of the file is what the dataset records.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlcmd-"))
            file = stack.enter_context(open(os.path.join(folder, "standard-input"), "xb"))
            with shown(output, f"read {title}", lambda: _reading(file.fileno())):
                while block := stream.read(COPY_BYTES):
                    file.write(block)
                file.flush()
            os.fchmod(file.fileno(), FILE_MODE)
        except OSError as error:
            raise DieselfsError(
                f"{title} cannot be stored in {tempfile.gettempdir()}: {error.strerror}; "
                "set TMPDIR to a folder with more space"
            ) from None
        yield file.name


def _reading(descriptor: int) -> Reading:
    size_bytes = os.fstat(descriptor).st_size
    return Reading(0, size_bytes, 0, size_bytes, None, is_total_known=False, noun="")
