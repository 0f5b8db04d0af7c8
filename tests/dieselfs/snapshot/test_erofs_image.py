"""EROFS images: accepted by fsck.erofs, read by the kernel as the tree that they were made of."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from dieselfs.errors import InvalidInput
from dieselfs.snapshot import erofs_files, erofs_image, erofs_tree
from dieselfs.snapshot.erofs_files import BLOCK_BYTES
from dieselfs.snapshot.erofs_image import METADATA_GUARD_BLOCKS, ImageOwner, ImagePlan, Serving
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries, pack_tree
from tests.support.erofs import fsck, image_bytes, inode_count, mounted_image, needs_fsck
from tests.support.random_trees import random_trees
from tests.support.trees import described, odd_tree

ROOT_OWNED = ImageOwner(0, 0)
CONTROL = b".dieselfs"
NAMES_AROUND_DOTS = (b"!", b"-a", b"-", b".!", b".-b", b".a", b"..x", b"...", b"a", b"\x01", b"\xff")


def written(packed: PackedDataset, path: Path, ownership: ImageOwner = ROOT_OWNED, folder: int = 0) -> Path:
    path.write_bytes(image_bytes(packed, ImagePlan(packed.snapshot, ownership, folder).write()))
    return path


@needs_fsck
def test_the_kernel_reads_the_tree_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    root = odd_tree(tmp_path / "tree")
    for name in NAMES_AROUND_DOTS:
        Path(os.fsdecode(os.path.join(os.fsencode(root), name))).write_bytes(name)
    for length in (1, 63, 64, 65, 448, 449, 4031, 4032, 4033, 4095):
        (root / f"links/{length}").symlink_to("t" * length)
    (root / "crowd").mkdir()
    for number in range(3000):
        (root / f"crowd/{number:0{20 + number % 180}}").write_bytes(b"x" * (number % 7))
    image = written(pack_tree(root, chunk_bytes=50_000), tmp_path / "image")
    assert fsck(image) == ""
    assert inode_count(image) == len(described(root)) + 1
    with mounted_image(image, tmp_path / "mounted") as mounted:
        assert described(mounted) == described(root)
        for folder, folders, _ in os.walk(mounted):
            assert os.lstat(folder).st_nlink == 2 + len(
                [n for n in folders if not Path(folder, n).is_symlink()]
            )
        assert (os.stat(mounted).st_uid, os.stat(mounted / "sizes/4096").st_gid) == (0, 0)
        assert os.statvfs(mounted).f_blocks * BLOCK_BYTES == image.stat().st_size


@needs_fsck
def test_owner_group_and_mode_of_the_root(tmp_path: Path) -> None:
    packed = pack_entries([TreeEntry(b"file", 0o100644, 0, b"data")])
    image = written(packed, tmp_path / "image", ImageOwner(1234, 70_000, 0o700))
    assert fsck(image) == ""
    with mounted_image(image, tmp_path / "mounted") as mounted:
        for path, mode in ((mounted, 0o40700), (mounted / "file", 0o100644)):
            status = path.stat()
            assert (status.st_uid, status.st_gid, status.st_mode) == (1234, 70_000, mode)
    image = written(packed, tmp_path / "image", ImageOwner(1234, 70_000, 0o700, 5))
    with mounted_image(image, tmp_path / "again") as mounted:
        assert (mounted.stat().st_uid, (mounted / "file").stat().st_uid) == (5, 1234)


@needs_fsck
def test_an_image_of_a_folder_has_what_is_below_it(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    root = odd_tree(tmp_path / "tree")
    packed = pack_tree(root)
    for name in ("names", "links", "empty", "d0/d1/d2"):
        folder = packed.snapshot.require(name.encode())
        image = written(packed, tmp_path / "image", folder=folder)
        assert fsck(image) == ""
        with mounted_image(image, tmp_path / name.replace("/", "-")) as mounted:
            assert described(mounted) == described(root / name)


def test_files_lie_in_the_order_of_chunks_at_block_borders(tmp_path: Path) -> None:
    entries = [TreeEntry(b"%03d" % (7 * n % 100), 0o100644, 0, b"x" * (50 * n)) for n in range(100)]
    packed = pack_entries(entries, chunk_bytes=20_000)
    image, snapshot = ImagePlan(packed.snapshot, ROOT_OWNED).write(), packed.snapshot
    assert sorted(image.nodes.tolist()) == [node for node in snapshot.walk() if snapshot.size(node)]
    firsts = [snapshot.extents(node)[0] for node in image.nodes.tolist()]
    assert [(e.chunk, e.offset) for e in firsts] == sorted((e.chunk, e.offset) for e in firsts)
    assert not (image.starts % BLOCK_BYTES).any() and image.starts[0] == len(image.metadata)
    ends = image.starts + snapshot.column("sizes")[image.nodes].astype(np.int64)
    assert (ends[:-1] <= image.starts[1:]).all() and ends[-1] <= image.size_bytes


def test_no_program_runs_as_the_owner_of_the_image(tmp_path: Path) -> None:
    packed = pack_entries([TreeEntry(b"program", 0o106755, 0, b"x"), TreeEntry(b"folder", 0o043777, 0)])
    with mounted_image(written(packed, tmp_path / "image"), tmp_path / "mounted") as mounted:
        assert (mounted / "program").stat().st_mode == 0o100755
        assert (mounted / "folder").stat().st_mode == 0o040777


def test_an_image_is_a_function_of_the_snapshot(tmp_path: Path) -> None:
    packed = pack_tree(odd_tree(tmp_path))
    first, second = (ImagePlan(packed.snapshot, ROOT_OWNED).write() for _ in range(2))
    assert first.metadata.tobytes() == second.metadata.tobytes() and first.size_bytes == second.size_bytes


def test_an_image_does_not_depend_on_how_much_is_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [b"%02d/%d" % (n, m) for n in range(40) for m in range(3)]
    names = [b"%s/%s" % (folder, name) for folder in (b"", *folders[::7]) for name in NAMES_AROUND_DOTS]
    names += [b"crowd/%0200d" % n for n in range(1500)] + [folder + b"/file" for folder in folders]
    names = [name.removeprefix(b"/") for name in names]
    # The files are not in the order of their names.
    entries = [TreeEntry(name, 0o100644, 0, b"x" * (n % 50)) for n, name in enumerate(sorted(names)[::-1])]
    packed = pack_entries(entries, chunk_bytes=3000)
    serving = Serving(CONTROL, np.arange(len(packed.snapshot)) % 3 == 0)
    whole = ImagePlan(packed.snapshot, ROOT_OWNED, serving=serving).write()
    monkeypatch.setattr(erofs_files, "AT_ONCE", 7)
    monkeypatch.setattr(erofs_image, "PART_BYTES", 2 * BLOCK_BYTES)
    for module in (erofs_tree, erofs_image):
        monkeypatch.setattr(module, "AT_ONCE", BLOCK_BYTES // 10)
    parted = ImagePlan(packed.snapshot, ROOT_OWNED, serving=serving).write()
    for column in ("metadata", "nodes", "blocks", "first_blocks", "opening"):
        assert np.array_equal(getattr(parted, column), getattr(whole, column)), column


def test_a_dataset_without_entries(tmp_path: Path) -> None:
    packed = pack_entries([])
    image = written(packed, tmp_path / "image")
    with mounted_image(image, tmp_path / "mounted") as mounted:
        assert list(mounted.iterdir()) == []


def test_an_image_beyond_the_block_addresses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_entries([TreeEntry(b"file", 0o100644, 0, b"x" * 3 * BLOCK_BYTES)])
    blocks = ImagePlan(packed.snapshot, ROOT_OWNED).write().size_bytes // BLOCK_BYTES
    monkeypatch.setattr(erofs_image, "IMAGE_BLOCKS_MAX", blocks - 1)
    with pytest.raises(InvalidInput, match=r"an EROFS image of packed would have \d+ bytes"):
        ImagePlan(packed.snapshot, ROOT_OWNED).write()


def served(packed: PackedDataset, path: Path, is_opening: bool = False) -> Path:
    """An image as a mount serves it, with every third file guarded."""
    serving = Serving(CONTROL, np.arange(len(packed.snapshot)) % 3 == 0)
    image = ImagePlan(packed.snapshot, ROOT_OWNED, serving=serving).write()
    content = bytearray(image_bytes(packed, image))
    if is_opening:
        content[image.opening_offset : image.opening_offset + BLOCK_BYTES] = image.opening.tobytes()
    path.write_bytes(content)
    return path


def test_guarded_files_have_unused_blocks_around_them() -> None:
    packed = pack_entries([TreeEntry(b"%02d" % n, 0o100644, 0, b"x" * (3000 * n)) for n in range(40)])
    is_guarded = np.arange(len(packed.snapshot)) % 3 == 0
    image = ImagePlan(packed.snapshot, ROOT_OWNED, serving=Serving(CONTROL, is_guarded)).write()
    lengths = -(-packed.snapshot.column("sizes")[image.nodes].astype(np.int64) // BLOCK_BYTES) * BLOCK_BYTES
    origin = len(image.metadata) + METADATA_GUARD_BLOCKS * BLOCK_BYTES
    gaps = np.diff(np.concatenate([[origin], np.stack([image.starts, image.starts + lengths], 1).ravel()]))[
        ::2
    ]
    of = is_guarded[image.nodes].astype(int)
    assert (gaps // BLOCK_BYTES).tolist() == (of + np.concatenate([[0], of[:-1]])).tolist()
    assert image.size_bytes == image.starts[-1] + lengths[-1] + of[-1] * BLOCK_BYTES


@needs_fsck
@pytest.mark.parametrize(
    "others",
    [
        pytest.param([], id="alone"),
        pytest.param([b"!", b"-a", b".a", b".e", b"z"], id="in the middle"),
        pytest.param([b"%02d" % n + b"!" * 253 for n in range(40)], id="before others"),
        # 15 names of 255 bytes and one of 40, `.` and `..` take 4,084 bytes of a block.
        pytest.param([b"!" * 40, *(b"-%02d" % n + b"!" * 252 for n in range(15))], id="in the next block"),
    ],
)
def test_the_control_folder_is_found_and_then_not_listed(others: list[bytes], tmp_path: Path) -> None:
    packed = pack_entries([TreeEntry(name, 0o100644, 0, name) for name in others])
    opening, image = served(packed, tmp_path / "opening", True), served(packed, tmp_path / "image")
    assert fsck(opening) == "" and fsck(image) == ""
    with mounted_image(opening, tmp_path / "first") as mounted:
        assert sorted(os.listdir(os.fsencode(mounted))) == sorted([*others, CONTROL])
        control = mounted / os.fsdecode(CONTROL)
        assert control.stat().st_mode == 0o40555 and list(control.iterdir()) == []
    with mounted_image(image, tmp_path / "second") as mounted:
        assert sorted(os.listdir(os.fsencode(mounted))) == sorted(others)
        assert not (mounted / os.fsdecode(CONTROL)).exists()
        assert mounted.stat().st_nlink == 2
        assert all((mounted / os.fsdecode(name)).read_bytes() == name for name in others)


@needs_fsck
def test_the_control_folder_hides_an_entry_of_its_name(tmp_path: Path) -> None:
    names = (b".dieselfs/a/b", b".dieselfs/c", b"a/.dieselfs/d", b"a/b", b"z")
    packed = pack_entries([TreeEntry(name, 0o100644, 0, name) for name in names])
    image = served(packed, tmp_path / "image")
    assert fsck(image) == ""
    with mounted_image(image, tmp_path / "mounted") as mounted:
        found = {path for path, (mode, _, _) in described(mounted).items() if stat.S_ISREG(mode)}
        assert found == {b"a/.dieselfs/d", b"a/b", b"z"}


@given(entries=random_trees(), data=strategies.data())
@settings(max_examples=60, deadline=None)
def test_each_part_of_the_metadata_alone_has_the_bytes_of_the_whole(
    entries: dict[bytes, TreeEntry], data: strategies.DataObject
) -> None:
    packed = pack_entries([entries[path] for path in sorted(entries)], chunk_bytes=5000)
    plan = ImagePlan(
        packed.snapshot, ROOT_OWNED, serving=Serving(CONTROL, np.arange(len(packed.snapshot)) % 3 == 0)
    )
    whole = plan.write()
    blocks = strategies.integers(0, len(whole.metadata) // BLOCK_BYTES)
    for borders in data.draw(strategies.lists(strategies.tuples(blocks, blocks), min_size=1)):
        first, end = (BLOCK_BYTES * border for border in sorted(borders))
        part = np.zeros(end - first, np.uint8)
        plan.write_part(part, first, whole.first_blocks)
        assert np.array_equal(part, whole.metadata[first:end])


@needs_fsck
@pytest.mark.parametrize("write", [written, served])
@given(entries=random_trees())
@settings(max_examples=60, deadline=None)
def test_random_trees(
    write: Callable[[PackedDataset, Path], Path],
    entries: dict[bytes, TreeEntry],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("image")
    packed = pack_entries([entries[path] for path in sorted(entries)], chunk_bytes=5000)
    image = write(packed, folder / "image")
    assert fsck(image) == ""
    with mounted_image(image, folder / "mounted") as mounted:
        wanted = {path: (of.mode, of.mtime_ns, of.content) for path, of in entries.items()}
        assert described(mounted) == wanted
    image.unlink()
