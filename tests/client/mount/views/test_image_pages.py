"""Over a real mount that is served by a thread of this process."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dieselfs.snapshot.erofs_files import BLOCK_BYTES
from dieselfs_client.mount.kernel.page_helper import ZEROS_BASE
from dieselfs_client.mount.views.image_pages import _notices
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.image_mount import ImageMount, image_mount_of
from tests.support.page_cache import cached_pages, undisturbed

CHUNK_BYTES = 128 * 1024
SMALL = 1500
SIZES = {b"large": 300_000, b"empty": 0, b"tiny": 1, b"page": 4096, b"odd": 5000, b"folder/other": 9000} | {
    b"small/%04d" % number: 1 + number % 500 for number in range(SMALL)
}


def content(path: bytes) -> bytes:
    return (path * (SIZES[path] // len(path) + 1))[: SIZES[path]]


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries(
        [TreeEntry(path, 0o100644, 0, content(path)) for path in sorted(SIZES)], chunk_bytes=CHUNK_BYTES
    )


@pytest.fixture
def mount(packed: PackedDataset, tmp_path: Path) -> Iterator[ImageMount]:
    with image_mount_of(packed, tmp_path / "mount") as mount:
        yield mount


def pages_of(mount: ImageMount, path: bytes) -> list[bool]:
    """Which pages of a file are in the image's page cache."""
    node = mount.snapshot.require(path)
    number = mount.image.nodes.tolist().index(node)
    first = int(mount.image.starts[number]) // BLOCK_BYTES
    return cached_pages(mount.image_path)[first : first + -(-SIZES[path] // BLOCK_BYTES)]


def read_all(mount: ImageMount) -> None:
    for path in SIZES:
        assert (mount.path / os.fsdecode(path)).read_bytes() == content(path), path


def test_without_pushes_every_file_is_read_through_the_daemon(mount: ImageMount) -> None:
    read_all(mount)
    assert mount.source.fetched_chunks


def push_all(mount: ImageMount) -> None:
    for offset in range(0, len(mount.image.metadata), 1 << 20):
        mount.pages.store_metadata(offset)
    # Pages with bytes of two chunks are left out.
    assert sum(SIZES.values()) - 4 * BLOCK_BYTES * mount.snapshot.chunk_count < mount.store_chunks()


def until_undisturbed(attempt: Callable[[], bool]) -> None:
    """Another test may make the kernel drop its caches at any time."""
    assert any(attempt() for _ in range(5))


def test_what_is_stored_is_read_without_a_request(mount: ImageMount) -> None:
    nodes = {path: mount.snapshot.require(path) for path in SIZES}
    in_one_chunk = [path for path, node in nodes.items() if len(mount.snapshot.extents(node)) == 1]
    assert len(in_one_chunk) > SMALL - 10

    def attempt() -> bool:
        push_all(mount)
        mount.pages.uncover(np.array([nodes[path] for path in in_one_chunk]))
        push_all(mount)
        before = mount.requests()
        for path in in_one_chunk:
            assert (mount.path / os.fsdecode(path)).read_bytes() == content(path)
        return mount.requests() == before

    until_undisturbed(attempt)
    read_all(mount)


def test_tripwires_among_the_files_are_left_out_and_no_neighbour_reads_them(mount: ImageMount) -> None:
    mount.store_chunks(mount.is_guarded)
    for path in SIZES:
        if not mount.is_guarded[mount.snapshot.require(path)]:
            assert (mount.path / os.fsdecode(path)).read_bytes() == content(path)
    guarded = [path for path in SIZES if mount.is_guarded[mount.snapshot.require(path)] and SIZES[path]]
    assert len(guarded) > SMALL // 20
    small = [path for path in guarded if SIZES[path] < BLOCK_BYTES]
    assert not any(any(pages_of(mount, path)) for path in small)
    read_all(mount)


@undisturbed
def test_what_the_kernel_has_reclaimed_is_found(mount: ImageMount) -> None:
    push_all(mount)
    nodes = {path: mount.snapshot.require(path) for path in SIZES}
    everything = mount.table.of_files(np.array([*nodes.values()]))
    assert not mount.pages.reclaimed(everything).any()
    gone = [nodes[b"odd"], nodes[b"large"], nodes[b"small/0007"]]
    mount.pages.drop(np.array(gone))
    assert mount.pages.reclaimed(everything).tolist() == np.isin(everything.nodes, gone).tolist()


@undisturbed
def test_what_programs_have_read_is_found_although_it_was_dropped(mount: ImageMount) -> None:
    push_all(mount)
    nodes = [mount.snapshot.require(path) for path in (b"large", b"odd", b"folder/other")]
    for path in ("large", "odd"):
        (mount.path / path).read_bytes()
    extents = mount.table.of_files(np.array(nodes))
    mount.pages.drop(np.array(nodes))
    assert mount.pages.reclaimed(extents).all()
    assert mount.pages.reclaimed(extents, of_readers=True).tolist() == (extents.nodes == nodes[-1]).tolist()


def test_what_is_dropped_is_read_again_once_it_is_uncovered(mount: ImageMount) -> None:
    mount.store_chunks()
    chosen = [b"odd", b"small/0007", b"small/0008", b"empty"]
    nodes = np.array([mount.snapshot.require(path) for path in chosen])
    read_all(mount)
    mount.pages.drop(nodes)
    assert not any(any(pages_of(mount, path)) for path in chosen[:3])

    def attempt() -> bool:
        read_all(mount)
        mount.pages.drop(nodes)
        before = mount.requests()
        read_all(mount)
        return mount.requests() == before  # from the copies that EROFS keeps

    until_undisturbed(attempt)
    before = mount.requests()
    mount.pages.uncover(nodes)
    read_all(mount)
    assert mount.requests() >= before + 2


def test_pages_of_a_file_that_is_stored_in_parts(mount: ImageMount) -> None:
    extents = mount.table.of_files(np.array([mount.snapshot.require(b"large")]))
    assert len(extents) > 2
    cut = extents[np.array([1])]
    start = int(cut.places[0])
    payload = memoryview(content(b"large"))[start : start + int(cut.lengths[0])]
    taken = mount.pages.store(cut, payload, np.array([0]))
    first = -(-start // BLOCK_BYTES)
    last = (start + int(cut.lengths[0])) // BLOCK_BYTES
    assert taken == (last - first) * BLOCK_BYTES
    assert [place for place, is_there in enumerate(pages_of(mount, b"large")) if is_there] == [
        *range(first, last)
    ]
    mount.pages.drop_parts(cut)
    assert not any(pages_of(mount, b"large"))
    read_all(mount)


def test_a_helper_that_dies_is_replaced(mount: ImageMount) -> None:
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    for helper in (pid for pid in own if b"page_helper" in Path(f"/proc/{pid}/cmdline").read_bytes()):
        os.kill(int(helper), signal.SIGKILL)
    while mount.store_chunks() == 0:
        pass
    read_all(mount)


def test_an_inode_that_the_kernel_does_not_know_is_made_known(packed: PackedDataset, tmp_path: Path) -> None:
    with image_mount_of(packed, tmp_path / "mount") as mount:
        assert mount.store_chunks() > 0
        read_all(mount)


def test_bytes_that_follow_each_other_are_one_notice() -> None:
    places = np.array([0, 4096, 8192, 12288, 20480])
    lengths = np.array([4096, 4096, 100, 4096, 4096])
    begins = np.array([500, 4596, 9000, 9100, 13196])
    offsets, firsts, pieces, counts = _notices(places, begins, lengths)
    assert offsets.tolist() == [0, 20480]
    assert counts.tolist() == [4, 1] and firsts.tolist() == [0, 4]
    assert pieces.tolist() == [[500, 8192], [9000, 100], [ZEROS_BASE, 3996], [9100, 4096], [13196, 4096]]


def test_a_notice_has_no_more_pieces_than_one_call_takes() -> None:
    count = 1700
    places, lengths = np.arange(count) * 4096, np.full(count, 7)
    offsets, firsts, pieces, counts = _notices(places, np.arange(count) * 7, lengths)
    assert counts.max() < 1024 and counts.sum() == len(pieces) == 2 * count
    sizes = np.add.reduceat(pieces[:, 1].astype(np.int64), firsts)
    assert (offsets + sizes).tolist() == [*offsets[1:].tolist(), count * 4096]
