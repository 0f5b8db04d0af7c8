"""What is written is read again, at any offset and length, with direct I/O and without."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dieselfs.disk.direct_io import (
    ALIGNMENT_BYTES,
    aligned_bytes,
    bypass_page_cache,
    new_buffer,
    read_at,
    write_all,
)
from tests.support.small_disk import small_disk

CONTENT = os.urandom(3 * ALIGNMENT_BYTES + 77)


def store(path: Path, content: bytes) -> None:
    buffer = new_buffer(len(content))
    buffer[: len(content)] = content
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        bypass_page_cache(descriptor)
        write_all(descriptor, buffer)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)


@pytest.fixture(scope="module")
def descriptor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("direct") / "file"
    store(path, CONTENT)
    assert path.read_bytes() == CONTENT
    descriptor = os.open(path, os.O_RDONLY)
    bypass_page_cache(descriptor)
    yield descriptor
    os.close(descriptor)


@given(st.integers(0, len(CONTENT) + ALIGNMENT_BYTES), st.integers(0, 2 * len(CONTENT)))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_range_is_that_of_the_file(descriptor: int, offset: int, length: int) -> None:
    assert bytes(read_at(descriptor, length, offset)) == CONTENT[offset : offset + length]


def test_a_file_system_of_memory_works_too(tmp_path: Path) -> None:
    with small_disk(tmp_path / "memory", "1m") as folder:
        store(folder / "file", CONTENT)
        with open(folder / "file", "rb") as file:
            bypass_page_cache(file.fileno())
            assert bytes(read_at(file.fileno(), len(CONTENT), 0)) == CONTENT


@given(st.integers(0, 1 << 40))
def test_lengths_are_rounded_up_to_sectors(length: int) -> None:
    assert 0 <= aligned_bytes(length) - length < ALIGNMENT_BYTES
    assert aligned_bytes(length) % ALIGNMENT_BYTES == 0
