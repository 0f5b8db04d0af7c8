"""A file object over ranges behaves as a file of the system."""

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.dataset.file import DatasetFile, buffered

CONTENT = bytes(range(256)) * 4


def opened(content: bytes = CONTENT) -> io.BufferedReader:
    return buffered(DatasetFile(len(content), lambda start, end: content[start:end], "dl://data/file"))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]),
            st.integers(-1500, 1500),
            st.integers(-1, 1500),
        ),
        max_size=20,
    )
)
def test_seeks_and_reads_give_what_a_file_in_memory_gives(steps: list[tuple[int, int, int]]) -> None:
    file, model = opened(), io.BytesIO(CONTENT)
    for whence, offset, size in steps:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: model.tell(), os.SEEK_END: len(CONTENT)}[whence]
        if origin + offset < 0:
            with pytest.raises((ValueError, OSError)):
                file.seek(offset, whence)
            file.seek(model.tell())
            continue
        assert file.seek(offset, whence) == model.seek(offset, whence)
        assert file.read(size) == model.read(size)
        assert file.tell() == model.tell()


def test_only_what_is_read_is_requested() -> None:
    requested = []

    def read_range(start: int, end: int) -> bytes:
        requested.append((start, end))
        return bytes(end - start)

    file = DatasetFile(1 << 30, read_range, "dl://data/file")
    file.seek(-100, os.SEEK_END)
    assert len(file.read(200)) == 100
    assert requested == [((1 << 30) - 100, 1 << 30)]


def test_a_closed_file_and_a_negative_position_are_refused() -> None:
    file = DatasetFile(len(CONTENT), lambda start, end: CONTENT[start:end], "dl://data/file")
    with pytest.raises(ValueError, match="negative seek position"):
        file.seek(-1)
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read(1)
