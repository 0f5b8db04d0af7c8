import os
from pathlib import Path

import numpy as np
import pytest

from dieselfs.snapshot.erofs_image import BLOCK_BYTES
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.views.image import image_file
from dieselfs_client.prefetch.tripwires import Tripwires
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.erofs import fsck, image_bytes, mounted_image, needs_fsck

ENTRIES = [TreeEntry(b"%04d" % n, 0o100644, 0, b"%04d" % n * 500) for n in range(1000)]


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    (tmp_path / "5-1.snapshot").write_bytes(pack_entries(ENTRIES).snapshot.content)
    return Snapshot.open(tmp_path / "5-1.snapshot")


def test_tripwires_have_guards(snapshot: Snapshot) -> None:
    image, descriptor = image_file(snapshot, 0, 0, True)
    is_wire = Tripwires(snapshot).usual(image.nodes)
    gaps = np.diff(image.starts) // BLOCK_BYTES - 1
    assert is_wire.any() and (gaps == is_wire[1:].astype(int) + is_wire[:-1]).all()
    os.close(descriptor)


def test_the_next_daemon_has_the_same_image_whatever_its_code_makes_of_it(snapshot: Snapshot) -> None:
    first, kept = image_file(snapshot, 0, 0, True)
    second, inherited = image_file(snapshot, 7, 8, False, os.dup(kept))
    assert (second.metadata == first.metadata).all()
    assert second.size_bytes == first.size_bytes
    for descriptor in (kept, inherited):
        os.close(descriptor)


@needs_fsck
@pytest.mark.parametrize(("is_private", "mode", "owner"), [(True, 0o700, os.geteuid()), (False, 0o755, 70)])
def test_only_the_mounting_user_enters_a_private_mount(
    snapshot: Snapshot, tmp_path: Path, is_private: bool, mode: int, owner: int
) -> None:
    content, descriptor = image_file(snapshot, 70, 80, is_private)
    image = tmp_path / "image"
    image.write_bytes(image_bytes(pack_entries(ENTRIES), content))
    os.close(descriptor)
    assert fsck(image) == ""
    with mounted_image(image, tmp_path / "mounted") as mounted:
        assert (mounted.stat().st_mode & 0o777, mounted.stat().st_uid) == (mode, owner)
        assert ((mounted / "0001").stat().st_uid, (mounted / "0001").stat().st_gid) == (70, 80)
