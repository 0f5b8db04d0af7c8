import errno
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from dieselfs.arrays import Nodes
from dieselfs.errors import Damaged
from dieselfs.snapshot import erofs_files, erofs_image, erofs_tree
from dieselfs.snapshot import stored_image as stored_image_module
from dieselfs.snapshot.erofs_files import BLOCK_BYTES
from dieselfs.snapshot.erofs_image import ErofsImage, ImageOwner, ImagePlan, Serving
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.stored_image import image_key, open_image, stored_image
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.small_disk import small_disk

OWNED = ImageOwner(12, 34, 0o700)


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    packed = pack_entries([TreeEntry(b"%03d" % n, 0o100644, 0, b"x" * 100 * n) for n in range(200)])
    (tmp_path / "5-1.snapshot").write_bytes(packed.snapshot.content)
    return Snapshot.open(tmp_path / "5-1.snapshot")


@pytest.fixture
def serving(snapshot: Snapshot) -> Serving:
    return Serving(b".control", np.arange(len(snapshot)) % 7 == 0)


def columns(image: ErofsImage) -> list[object]:
    image.fill(0, len(image.metadata))
    assert image.has(0, len(image.metadata))
    arrays = (image.metadata, image.nodes, image.blocks, image.first_blocks, image.opening)
    return [*(array.tolist() for array in arrays), image.size_bytes, image.opening_offset]


def stored(snapshot: Snapshot, ownership: ImageOwner, serving: Serving) -> ErofsImage:
    image, descriptor = stored_image(snapshot, ownership, serving)
    os.close(descriptor)
    return image


def whole(snapshot: Snapshot, ownership: ImageOwner, serving: Serving) -> list[object]:
    return columns(ImagePlan(snapshot, ownership, serving=serving).write())


def test_what_is_stored_is_what_was_computed(snapshot: Snapshot, serving: Serving) -> None:
    computed = whole(snapshot, OWNED, serving)
    assert columns(stored(snapshot, OWNED, serving)) == computed
    assert columns(stored(snapshot, OWNED, serving)) == computed


def test_it_is_computed_once(
    snapshot: Snapshot, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = columns(stored(snapshot, OWNED, serving))
    (kept,) = tmp_path.glob("5-1.*.erofs")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    inode = kept.stat().st_ino
    monkeypatch.setattr(ImagePlan, "__init__", None)
    image, descriptor = stored_image(snapshot, OWNED, serving)
    assert os.fstat(descriptor).st_ino == inode
    os.close(descriptor)
    assert columns(image) == computed
    assert sorted(path.name for path in tmp_path.iterdir()) == [kept.name, "5-1.snapshot"]


def test_each_owner_and_each_choice_of_guards_has_its_own(
    snapshot: Snapshot, serving: Serving, tmp_path: Path
) -> None:
    others = (
        (ImageOwner(12, 34), serving),
        (ImageOwner(13, 34, 0o700), serving),
        (OWNED, Serving(b".control", ~serving.is_guarded)),
        (OWNED, Serving(b".other", serving.is_guarded)),
    )
    for ownership, choice in ((OWNED, serving), *others):
        image = stored(snapshot, ownership, choice)
        assert columns(image) == whole(snapshot, ownership, choice)
    assert len([*tmp_path.glob("*.erofs")]) == 5


@pytest.fixture
def parted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (erofs_image, stored_image_module):
        monkeypatch.setattr(module, "PART_BYTES", BLOCK_BYTES)


@pytest.mark.usefixtures("parted")
def test_parts_are_computed_in_any_order_by_any_daemon(
    snapshot: Snapshot, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = ImagePlan(snapshot, OWNED, serving=serving).write().metadata
    parts, found = list(range(len(computed) // BLOCK_BYTES)), list[int]()
    assert len(parts) > 5
    write = ImagePlan.write_part

    def noted(plan: ImagePlan, part: npt.NDArray[np.uint8], first: int, first_blocks: Nodes) -> None:
        found.append(first)
        write(plan, part, first, first_blocks)

    monkeypatch.setattr(ImagePlan, "write_part", noted)
    random.Random(3).shuffle(parts)
    for number, part in enumerate(parts):
        image = stored(snapshot, OWNED, serving)  # that of another daemon
        for known in (part, *parts[:number]):
            first = known * BLOCK_BYTES + 17
            assert not image.has(first, first + 100)
            image.fill(first, first + 100)
            assert image.has(first, first + 100)
            place = slice(known * BLOCK_BYTES, (known + 1) * BLOCK_BYTES)
            assert np.array_equal(image.metadata[place], computed[place])
    assert sorted(found) == [part * BLOCK_BYTES for part in sorted(parts)]


def test_a_daemon_that_is_killed_leaves_parts_that_the_next_one_uses(
    tmp_path: Path, snapshot: Snapshot, serving: Serving
) -> None:
    image, descriptor = stored_image(snapshot, OWNED, serving)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        subprocess.run([sys.executable, "-c", KILLED, snapshot.source], check=True, timeout=60)
    assert failed.value.returncode == -signal.SIGKILL
    (kept,) = tmp_path.glob("*.erofs")
    assert kept.stat().st_ino == os.fstat(descriptor).st_ino
    os.close(descriptor)
    assert columns(stored(snapshot, OWNED, serving)) == whole(snapshot, OWNED, serving)
    assert columns(image) == whole(snapshot, OWNED, serving)


KILLED = """
import os, signal, sys
import numpy as np
from dieselfs.snapshot import erofs_image, stored_image
from dieselfs.snapshot.erofs_image import ImageOwner, Serving
from dieselfs.snapshot.reader import Snapshot
snapshot = Snapshot.open(sys.argv[1])
serving = Serving(b".control", np.arange(len(snapshot)) % 7 == 0)
image, _ = stored_image.stored_image(snapshot, ImageOwner(12, 34, 0o700), serving)
stored_image.xxh3_64_intdigest = lambda content: os.kill(os.getpid(), signal.SIGKILL)
image.fill(0, 1)
"""
"""Dies between the bytes of a part and its mark."""


def test_an_image_with_holes_on_a_full_disk_is_in_memory(
    tmp_path: Path, snapshot: Snapshot, serving: Serving
) -> None:
    """As of a backup that leaves out zeros. It is filled in another process, which a signal could end."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        source = disk / "5-1.snapshot"
        source.write_bytes(snapshot.content)
        stored(Snapshot.open(source), OWNED, serving)
        (kept,) = disk.glob("*.erofs")
        content = kept.read_bytes()
        kept.write_bytes(b"")
        os.truncate(kept, len(content))
        with open(kept, "r+b") as file:
            for first in range(0, len(content), BLOCK_BYTES):
                if any(block := content[first : first + BLOCK_BYTES]):
                    os.pwrite(file.fileno(), block, first)
        with open(disk / "other", "wb", 0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(BLOCK_BYTES))
        filled = subprocess.run(
            [sys.executable, "-c", FILLED, str(source)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert filled.returncode == 0, filled
        assert filled.stdout.startswith("/memfd:") and kept.read_bytes() == content
        (line,) = filled.stderr.splitlines()
        assert f"{kept} cannot be kept, so it is in memory: No space left" in line
        (disk / "other").unlink()
        assert columns(stored(Snapshot.open(source), OWNED, serving)) == whole(snapshot, OWNED, serving)
        assert kept.read_bytes() != content


FILLED = """
import os, sys
import numpy as np
from dieselfs.snapshot.erofs_image import ImageOwner, ImagePlan, Serving
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.stored_image import stored_image
snapshot = Snapshot.open(sys.argv[1])
serving, owner = Serving(b".control", np.arange(len(snapshot)) % 7 == 0), ImageOwner(12, 34, 0o700)
image, descriptor = stored_image(snapshot, owner, serving)
image.fill(0, len(image.metadata))
assert np.array_equal(image.metadata, ImagePlan(snapshot, owner, serving=serving).write().metadata)
print(os.readlink(f"/proc/self/fd/{descriptor}"))
"""


def test_an_image_that_cannot_be_written_is_used_if_it_is_complete(
    tmp_path: Path, snapshot: Snapshot, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = whole(snapshot, OWNED, serving)
    with small_disk(tmp_path / "disk", "1m") as disk:
        source = disk / "5-1.snapshot"
        source.write_bytes(snapshot.content)

        def read_only(option: str) -> None:
            subprocess.run(["mount", "-o", f"remount,bind,{option}", str(disk)], check=True)

        def where() -> tuple[str, list[object]]:
            image, descriptor = stored_image(Snapshot.open(source), OWNED, serving)
            place, found = os.readlink(f"/proc/self/fd/{descriptor}"), columns(image)
            assert columns(open_image(descriptor)) == found  # in the next daemon of the mount
            os.close(descriptor)
            return place, found

        stored(Snapshot.open(source), OWNED, serving)
        (kept,) = disk.glob("*.erofs")
        read_only("ro")
        place, found = where()
        assert place.startswith("/memfd:") and found == computed
        read_only("rw")
        columns(stored(Snapshot.open(source), OWNED, serving))
        read_only("ro")
        with monkeypatch.context() as patch:
            patch.setattr(ImagePlan, "__init__", None)
            assert where() == (str(kept), computed)
        read_only("rw")
        with open(kept, "r+b") as file:
            file.seek(9000)
            file.write(b"\xff")
        read_only("ro")
        place, found = where()
        assert place.startswith("/memfd:") and found == computed


@pytest.mark.parametrize("place", [0, 30, 79, 4096, 9000, -9, -1])
def test_a_damaged_file_is_replaced(snapshot: Snapshot, serving: Serving, tmp_path: Path, place: int) -> None:
    """What is damaged in the metadata area, or the mark of a part, is computed again in place."""
    computed = columns(stored(snapshot, OWNED, serving))
    (kept,) = tmp_path.glob("*.erofs")
    content = bytearray(kept.read_bytes())
    content[place] ^= 1
    kept.write_bytes(content)
    assert columns(stored(snapshot, OWNED, serving)) == computed
    descriptor = os.open(kept, os.O_RDWR)
    assert columns(open_image(descriptor)) == computed
    os.close(descriptor)


def test_a_mark_is_that_of_what_was_computed(
    snapshot: Snapshot, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte is damaged in the file before the mark is written; the next daemon finds it."""
    image, descriptor = stored_image(snapshot, OWNED, serving)

    def damaging(content: memoryview) -> int:
        os.pwrite(descriptor, b"\xff", 9000)
        return xxh3_64_intdigest(content)

    with monkeypatch.context() as patch:
        patch.setattr(stored_image_module, "xxh3_64_intdigest", damaging)
        image.fill(0, 1)
    os.close(descriptor)
    assert columns(stored(snapshot, OWNED, serving)) == whole(snapshot, OWNED, serving)


@pytest.mark.usefixtures("parted")
def test_a_daemon_that_inherits_an_image_for_reading_checks_the_parts_that_it_needs(
    snapshot: Snapshot, serving: Serving, tmp_path: Path
) -> None:
    computed = ImagePlan(snapshot, OWNED, serving=serving).write().metadata
    stored(snapshot, OWNED, serving).fill(BLOCK_BYTES, 2 * BLOCK_BYTES)
    (kept,) = tmp_path.glob("*.erofs")
    descriptor = os.open(kept, os.O_RDONLY)
    with pytest.raises(Damaged, match="missing, and it cannot be written"):
        open_image(descriptor, None, image_key(snapshot, OWNED, serving))
    inherited = open_image(descriptor, lambda: ImagePlan(snapshot, OWNED, serving=serving))
    os.close(descriptor)
    inherited.fill(BLOCK_BYTES, 2 * BLOCK_BYTES)
    place = slice(BLOCK_BYTES, 2 * BLOCK_BYTES)
    assert np.array_equal(inherited.metadata[place], computed[place])
    with pytest.raises(Damaged, match="missing, and it cannot be written"):
        inherited.fill(0, 1)
    stored(snapshot, OWNED, serving).fill(0, 1)  # by another mount
    inherited.fill(0, 1)
    assert np.array_equal(inherited.metadata[: 2 * BLOCK_BYTES], computed[: 2 * BLOCK_BYTES])


def test_another_version_does_not_complete_an_image(snapshot: Snapshot, serving: Serving) -> None:
    image, descriptor = stored_image(snapshot, OWNED, serving)
    other = open_image(descriptor, lambda: ImagePlan(snapshot, ImageOwner(0, 0), serving=serving))
    with pytest.raises(Damaged, match="this version would compute another"):
        other.fill(0, 1)
    with pytest.raises(Damaged, match="a part of the stored image is missing"):
        open_image(descriptor).fill(0, 1)
    image.fill(0, len(image.metadata))
    assert columns(other) == whole(snapshot, OWNED, serving)
    os.close(descriptor)


def test_an_image_of_the_version_before_is_read(snapshot: Snapshot, serving: Serving, tmp_path: Path) -> None:
    image = ImagePlan(snapshot, OWNED, serving=serving).write()
    counts = len(image.metadata), len(image.nodes), image.size_bytes, image.opening_offset
    head = struct.pack("<16s4Q", image_key(snapshot, OWNED, serving), *counts).ljust(4096 - 24, b"\0")
    parts = (image.opening, image.metadata, image.nodes.astype(np.int64), image.starts)
    content = b"".join([head, *(part.tobytes() for part in parts)])
    (tmp_path / "before").write_bytes(b"dieselI1" + xxh3_128_digest(content) + content)
    descriptor = os.open(tmp_path / "before", os.O_RDONLY)
    found = open_image(descriptor)
    os.close(descriptor)
    without = replace(image, first_blocks=np.empty(0, np.uint32))
    assert columns(found) == columns(without)


def test_room_is_reserved_for_a_right_image_and_once(
    snapshot: Snapshot, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(snapshot, OWNED, serving)
    (kept,) = tmp_path.glob("*.erofs")
    with monkeypatch.context() as patch:
        patch.delattr(os, "posix_fallocate")
        stored(snapshot, OWNED, serving)  # its metadata area is reserved, and not written
    with open(kept, "rb") as damaged:
        os.truncate(kept, 1 << 26)
        before = os.fstat(damaged.fileno())
        stored(snapshot, OWNED, serving)
        assert os.fstat(damaged.fileno()).st_blocks == before.st_blocks
        assert kept.stat().st_ino != before.st_ino


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_an_image_of_another_user_is_replaced(snapshot: Snapshot, serving: Serving, tmp_path: Path) -> None:
    stored(snapshot, OWNED, serving)
    (kept,) = tmp_path.glob("*.erofs")
    os.chown(kept, 12345, -1)
    stored(snapshot, OWNED, serving)
    assert kept.stat().st_uid == 0
    for path in (kept, Path(snapshot.source)):
        os.chown(path, 12345, -1)
    stored(snapshot, OWNED, serving)
    assert kept.stat().st_uid == 12345, "the snapshot is theirs too"


def test_a_fifo_is_replaced(
    snapshot: Snapshot, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(snapshot, OWNED, serving)
    (kept,) = tmp_path.glob("*.erofs")
    kept.unlink()
    os.mkfifo(kept)
    usual = os.open

    def for_reading(path: Path, flags: int, *mode: int) -> int:
        if path == kept and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "as if this user may not write it")
        return usual(path, flags, *mode)

    monkeypatch.setattr(os, "open", for_reading)
    assert columns(stored(snapshot, OWNED, serving)) == whole(snapshot, OWNED, serving)
    assert kept.is_file()


@pytest.mark.parametrize("length", [0, 100, 4096, 10_000])
def test_a_file_that_is_cut_off_is_replaced(
    snapshot: Snapshot, serving: Serving, tmp_path: Path, length: int
) -> None:
    stored(snapshot, OWNED, serving)
    (kept,) = tmp_path.glob("*.erofs")
    os.truncate(kept, length)
    assert len(stored(snapshot, OWNED, serving).nodes) == 199


def test_the_memory_does_not_grow_with_the_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = 30_000
    entries = [TreeEntry(b"%03d/%05d" % (n % 100, n), 0o100644, 0, b"x") for n in range(files)]
    packed = pack_entries(entries, chunk_bytes=20_000)
    (tmp_path / "5-1.snapshot").write_bytes(packed.snapshot.content)
    snapshot = Snapshot.open(tmp_path / "5-1.snapshot")
    serving = Serving(b".control", np.zeros(len(snapshot), np.bool_))
    for module in (erofs_tree, erofs_image, erofs_files):
        monkeypatch.setattr(module, "AT_ONCE", 1024)
    for module in (erofs_image, stored_image_module):
        monkeypatch.setattr(module, "PART_BYTES", 16 * BLOCK_BYTES)
    tracemalloc.start()
    try:
        image = stored(snapshot, OWNED, serving)
        image.fill(0, len(image.metadata))
        assert tracemalloc.get_traced_memory()[1] < 100 * files  # the image has 130 bytes per file
    finally:
        tracemalloc.stop()


def test_an_image_of_another_key_is_refused(snapshot: Snapshot, serving: Serving) -> None:
    _, descriptor = stored_image(snapshot, OWNED, serving)
    open_image(descriptor, None, image_key(snapshot, OWNED, serving))
    with pytest.raises(Damaged, match="another snapshot"):
        open_image(descriptor, None, image_key(snapshot, ImageOwner(0, 0), serving))
    os.close(descriptor)


def test_without_a_place_beside_the_snapshot_it_is_in_memory(serving: Serving, snapshot: Snapshot) -> None:
    nowhere = Snapshot(bytes(snapshot.content), "snapshot")
    image, descriptor = stored_image(nowhere, OWNED, serving)
    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:")
    os.close(descriptor)
    assert columns(image) == whole(snapshot, OWNED, serving)
