"""Memory without a name: what the kernel lets others do with it, and when it is gone."""

import fcntl
import mmap
import multiprocessing
import os
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.chunk.segment import HUGE_PAGE_BYTES, Segment, map_sealed
from dieselfs.errors import Damaged, NoRoom, Unavailable
from dieselfs.limits import KIB
from tests.support.descriptors import descriptor_count

CONTENT = bytes(range(256)) * 33 + b"end"


def sealed(content: bytes = CONTENT) -> Segment:
    segment = Segment.create(len(content))
    segment.view[:] = content
    segment.seal()
    return segment


def mappings() -> int:
    """How many mappings of segments this process has."""
    return Path("/proc/self/maps").read_text().count("memfd:dieselfs-chunk")


def huge_kb() -> int:
    """Memory of segments that this process has mapped in huge pages."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("ShmemPmdMapped"))


def test_what_was_filled_in_is_read_by_whoever_has_the_descriptor() -> None:
    segment = sealed()
    other = Segment.adopt(os.dup(segment.descriptor), len(CONTENT))
    assert bytes(segment.view) == bytes(other.view) == CONTENT
    assert len(segment) == len(other) == len(CONTENT)
    segment.close()
    assert bytes(other.view) == CONTENT
    other.close()


def test_it_may_be_filled_piece_by_piece() -> None:
    segment = Segment.create(len(CONTENT))
    for start in (5000, 0):  # one after the other, or not
        segment.write(start, memoryview(CONTENT)[start : start + 5000])
    segment.seal()
    assert bytes(segment.view) == CONTENT
    segment.close()


@pytest.mark.parametrize("more_bytes", [-HUGE_PAGE_BYTES // 4, -1, 0, 1, HUGE_PAGE_BYTES - 5000])
def test_bytes_of_huge_pages_are_those_that_were_written(more_bytes: int) -> None:
    content = os.urandom(HUGE_PAGE_BYTES + more_bytes)
    with closing(sealed(content)) as segment:
        assert bytes(map_sealed(segment.descriptor, len(content))[0 : len(content)]) == content
        assert os.fstat(segment.descriptor).st_size == len(content)


def test_a_large_segment_is_in_huge_pages() -> None:
    before_kb = huge_kb()
    with closing(sealed(bytes(2 * HUGE_PAGE_BYTES))) as segment:
        memory = map_sealed(segment.descriptor, len(segment))
        memory[0 : len(segment)]
        if huge_kb() == before_kb:
            pytest.skip("this kernel has no MADV_COLLAPSE, or no huge page is free")
        assert huge_kb() - before_kb >= 2 * HUGE_PAGE_BYTES // KIB


def test_a_failed_mapping_leaves_no_reserved_memory() -> None:
    def reserved() -> int:
        return Path("/proc/self/maps").read_text().count("---p")

    with closing(Segment.create(HUGE_PAGE_BYTES)) as segment:
        descriptor = os.open(f"/proc/self/fd/{segment.descriptor}", os.O_WRONLY)
        segment.seal()
        before = reserved()
        with pytest.raises(Unavailable):
            map_sealed(descriptor, HUGE_PAGE_BYTES)
        assert reserved() == before
        os.close(descriptor)


def test_nobody_can_change_or_cut_what_is_sealed() -> None:
    segment = sealed()
    descriptor = segment.descriptor
    for change in (
        lambda: os.ftruncate(descriptor, 1),
        lambda: os.ftruncate(descriptor, len(CONTENT) + 1),
        lambda: os.pwrite(descriptor, b"x", 0),
        lambda: mmap.mmap(descriptor, len(CONTENT)),
        lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    ):
        with pytest.raises(PermissionError):
            change()
    with open(f"/proc/self/fd/{descriptor}", "r+b", buffering=0) as again, pytest.raises(PermissionError):
        again.write(b"x")  # the way around: the same memory, opened anew for writing
    with pytest.raises(TypeError):
        segment.view[0] = 1
    assert bytes(segment.view) == CONTENT
    segment.close()


def test_what_is_not_sealed_or_of_another_length_is_not_taken() -> None:
    half_made = Segment.create(100)
    with pytest.raises(Damaged, match="not sealed"):
        map_sealed(half_made.descriptor, 100)
    fcntl.fcntl(half_made.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with pytest.raises(Damaged, match="not sealed"):
        map_sealed(half_made.descriptor, 100)
    half_made.close()
    whole = sealed()
    for length in (0, -1, len(CONTENT) - 1, len(CONTENT) + 1, 1 << 40):
        with pytest.raises(Damaged):
            map_sealed(whole.descriptor, length)
    whole.close()


def test_a_descriptor_that_is_refused_is_closed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises((Damaged, Unavailable)):
        Segment.adopt(descriptor, len(CONTENT))
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_the_memory_is_there_for_its_last_user_and_then_gone() -> None:
    before = mappings()
    segment = sealed()
    view = segment.view
    piece = view[256:512]
    del view
    segment.close()
    segment.close()
    assert mappings() == before + 1
    assert bytes(piece) == CONTENT[256:512]
    del piece
    assert mappings() == before


def test_a_mapping_outlives_its_descriptor_and_takes_none() -> None:
    segment = sealed()
    descriptors = descriptor_count()
    array = map_sealed(segment.descriptor, len(CONTENT))
    assert descriptor_count() == descriptors
    segment.close()
    assert array[1:300] == CONTENT[1:300]


def _read(segment: Segment) -> bytes:
    return bytes(segment.view)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_reads_the_same_memory() -> None:
    segment = sealed()
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sending.send_bytes(_read(segment)))
    child.start()
    try:
        assert receiving.poll(60) and receiving.recv_bytes() == CONTENT
    finally:
        child.join()
        segment.close()
    receiving.close()
    sending.close()


def test_no_memory_is_one_clear_error() -> None:
    with pytest.raises(NoRoom, match="no room for a chunk of"):
        Segment.create(1 << 62)
