"""`dieselfs.snapshot.files`: private files that are written aside."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import BinaryIO

from dieselfs.snapshot.files import write_aside

WAIT_S = 10.0


def test_threads_that_write_one_file_at_once_leave_a_whole_one(tmp_path: Path) -> None:
    """As the threads of a process that open the same new generation of an encrypted dataset."""
    both, path = Barrier(2), tmp_path / "folder" / "1-1.snapshot"

    def write(content: bytes, file: BinaryIO) -> bytes:
        file.write(content[:1])
        both.wait(WAIT_S)  # the other one has begun
        file.write(content[1:])
        return content

    with ThreadPoolExecutor(2) as threads:
        contents = [b"first", b"second"]
        assert [
            *threads.map(lambda content: write_aside(path, partial(write, content)), contents)
        ] == contents
    assert path.read_bytes() in contents
    assert [each.name for each in path.parent.iterdir()] == [path.name]
