import numpy as np
import pytest

from dieselfs.errors import NotFound
from dieselfs.snapshot.erofs_files import BLOCK_BYTES
from dieselfs.snapshot.erofs_image import ErofsImage, ImageOwner, ImagePlan, Serving
from dieselfs_client.mount.reading.core import CONTROL_FOLDER, ROOT_INODE, MountCore
from dieselfs_client.mount.views.image_layout import IMAGE_INODE, IMAGE_NAME, ImageLayout
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.erofs import image_bytes

SIZES = (1, 4095, 4096, 4097, 0, 30_000, 9000)


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"f%d" % n, 0o100644, 5, bytes([n + 1]) * size) for n, size in enumerate(SIZES)]
    return pack_entries(entries, chunk_bytes=10_000)


@pytest.fixture(scope="module")
def image(packed: PackedDataset) -> ErofsImage:
    serving = Serving(CONTROL_FOLDER, np.arange(len(packed.snapshot)) % 2 == 0)
    return ImagePlan(packed.snapshot, ImageOwner(0, 0), serving=serving).write()


def content(layout: ImageLayout, packed: PackedDataset, offset: int, size: int) -> bytes:
    payloads, found = packed.source().payloads, b""
    for node, start, length, content in layout.parts(offset, size):
        if node < 0:
            assert len(content) == length
            found += content
            continue
        for extent, first, part in MountCore(packed.snapshot).parts(node + 1, start, length):
            found += payloads[extent.chunk][extent.offset + first : extent.offset + first + part]
    return found


def test_any_range_has_the_bytes_of_the_image(packed: PackedDataset, image: ErofsImage) -> None:
    layout, whole = ImageLayout(packed.snapshot, image), image_bytes(packed, image)
    borders = {0, image.size_bytes, len(image.metadata), image.opening_offset}
    for start, node in zip(image.starts.tolist(), image.nodes.tolist(), strict=True):
        borders |= {start, start + packed.snapshot.size(node)}
    near = sorted({border + step for border in borders for step in (-BLOCK_BYTES, -1, 0, 1, BLOCK_BYTES)})
    for offset in (place for place in near if place >= 0):
        for size in (1, BLOCK_BYTES, 5 * BLOCK_BYTES, 1 << 20, 4 << 20):
            assert content(layout, packed, offset, size) == whole[offset : offset + size]


def test_the_root_lists_the_control_folder_while_the_image_is_opened(
    packed: PackedDataset, image: ErofsImage
) -> None:
    layout, first = ImageLayout(packed.snapshot, image), image.opening_offset
    around = first - BLOCK_BYTES, 3 * BLOCK_BYTES
    final = content(layout, packed, *around)
    assert CONTROL_FOLDER not in final
    layout.is_opening = True
    opening = content(layout, packed, *around)
    assert opening[BLOCK_BYTES : 2 * BLOCK_BYTES] == image.opening.tobytes()
    assert CONTROL_FOLDER in opening
    assert (
        opening[:BLOCK_BYTES] + opening[2 * BLOCK_BYTES :] == final[:BLOCK_BYTES] + final[2 * BLOCK_BYTES :]
    )
    layout.is_opening = False
    assert content(layout, packed, *around) == final


def test_the_image_is_a_private_file_that_is_not_listed(packed: PackedDataset, image: ErofsImage) -> None:
    core = MountCore(packed.snapshot, unlisted={IMAGE_NAME: ImageLayout(packed.snapshot, image).attributes()})
    assert core.lookup(ROOT_INODE, IMAGE_NAME) == IMAGE_INODE
    attributes = core.attributes(IMAGE_INODE)
    assert (attributes.mode, attributes.size) == (0o100400, image.size_bytes)
    assert IMAGE_NAME not in core.siblings(core.child_nodes(ROOT_INODE)).names
    with pytest.raises(NotFound):
        core.parts(IMAGE_INODE, 0, 1)
