import os
import stat
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dieselfs.errors import Damaged
from dieselfs.snapshot import erofs_image, erofs_tree
from dieselfs.snapshot.erofs_image import ErofsImage, ImageOwner, ImagePlan, Serving
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.stored_image import image_key, open_image, stored_image
from tests.support.dataset import TreeEntry, pack_entries

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
    arrays = (image.metadata, image.nodes, image.starts, image.opening)
    return [*(array.tolist() for array in arrays), image.size_bytes, image.opening_offset]


def opened(descriptor: int) -> ErofsImage:
    try:
        return open_image(descriptor)
    finally:
        os.close(descriptor)


def test_what_is_stored_is_what_was_computed(snapshot: Snapshot, serving: Serving) -> None:
    computed = columns(ImagePlan(snapshot, OWNED, serving=serving).write())
    assert columns(opened(stored_image(snapshot, OWNED, serving))) == computed
    assert columns(opened(stored_image(snapshot, OWNED, serving))) == computed


def test_it_is_computed_once(snapshot: Snapshot, serving: Serving, tmp_path: Path) -> None:
    os.close(stored_image(snapshot, OWNED, serving))
    (kept,) = tmp_path.glob("5-1.*.erofs")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    inode = kept.stat().st_ino
    descriptor = stored_image(snapshot, OWNED, serving)
    assert os.fstat(descriptor).st_ino == inode
    os.close(descriptor)
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
        image = opened(stored_image(snapshot, ownership, choice))
        assert columns(image) == columns(ImagePlan(snapshot, ownership, serving=choice).write())
    assert len([*tmp_path.glob("*.erofs")]) == 5


@pytest.mark.parametrize("place", [0, 30, 4096, 9000, -1])
def test_a_damaged_file_is_replaced(snapshot: Snapshot, serving: Serving, tmp_path: Path, place: int) -> None:
    computed = columns(opened(stored_image(snapshot, OWNED, serving)))
    (kept,) = tmp_path.glob("*.erofs")
    content = bytearray(kept.read_bytes())
    content[place] ^= 1
    kept.write_bytes(content)
    assert columns(opened(stored_image(snapshot, OWNED, serving))) == computed
    assert columns(opened(os.open(kept, os.O_RDONLY))) == computed


@pytest.mark.parametrize("length", [0, 100, 4096, 10_000])
def test_a_file_that_is_cut_off_is_replaced(
    snapshot: Snapshot, serving: Serving, tmp_path: Path, length: int
) -> None:
    os.close(stored_image(snapshot, OWNED, serving))
    (kept,) = tmp_path.glob("*.erofs")
    os.truncate(kept, length)
    assert len(opened(stored_image(snapshot, OWNED, serving)).nodes) == 199


def test_the_memory_does_not_grow_with_the_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = 30_000
    entries = [TreeEntry(b"%03d/%05d" % (n % 100, n), 0o100644, 0, b"x") for n in range(files)]
    packed = pack_entries(entries, chunk_bytes=20_000)
    (tmp_path / "5-1.snapshot").write_bytes(packed.snapshot.content)
    snapshot = Snapshot.open(tmp_path / "5-1.snapshot")
    serving = Serving(b".control", np.zeros(len(snapshot), np.bool_))
    for module, name in ((erofs_tree, "AT_ONCE"), (erofs_image, "AT_ONCE"), (erofs_image, "_FILES_AT_ONCE")):
        monkeypatch.setattr(module, name, 1024)
    tracemalloc.start()
    try:
        os.close(stored_image(snapshot, OWNED, serving))
        assert tracemalloc.get_traced_memory()[1] < 100 * files  # the image has 130 bytes per file
    finally:
        tracemalloc.stop()


def test_an_image_of_another_key_is_refused(snapshot: Snapshot, serving: Serving) -> None:
    descriptor = stored_image(snapshot, OWNED, serving)
    open_image(descriptor, image_key(snapshot, OWNED, serving))
    with pytest.raises(Damaged, match="another snapshot"):
        open_image(descriptor, image_key(snapshot, ImageOwner(0, 0), serving))
    os.close(descriptor)


def test_without_a_place_beside_the_snapshot_it_is_in_memory(serving: Serving, snapshot: Snapshot) -> None:
    nowhere = Snapshot(bytes(snapshot.content), "snapshot")
    descriptor = stored_image(nowhere, OWNED, serving)
    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:")
    assert columns(opened(descriptor)) == columns(ImagePlan(snapshot, OWNED, serving=serving).write())
