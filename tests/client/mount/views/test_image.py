import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from dieselfs.errors import MountError
from dieselfs.settings.table import IMAGE
from dieselfs.snapshot.erofs_files import BLOCK_BYTES
from dieselfs.snapshot.erofs_image import PART_BYTES
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.points.view_choice import Choice
from dieselfs_client.mount.views.image import PUSHED_AGAIN_S, ImageView, MetadataPush, image_file
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
    is_wire = Tripwires(snapshot).usual(image.nodes.astype(np.int64))
    gaps = np.diff(image.starts) // BLOCK_BYTES - 1
    assert is_wire.any() and (gaps == is_wire[1:].astype(int) + is_wire[:-1]).all()
    os.close(descriptor)


def test_the_next_daemon_has_the_same_image_whatever_its_code_makes_of_it(snapshot: Snapshot) -> None:
    first, kept = image_file(snapshot, 0, 0, True)
    first.fill(0, len(first.metadata))
    second, inherited = image_file(snapshot, 7, 8, False, os.dup(kept))
    second.fill(0, len(second.metadata))
    assert (second.metadata == first.metadata).all()
    assert second.size_bytes == first.size_bytes
    for descriptor in (kept, inherited):
        os.close(descriptor)


def test_daemons_share_the_image_of_the_process_that_forks_them(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the daemon before serves another one, or the dataset is large."""
    monkeypatch.setattr(ImageView, "shared", None)
    options, choice = MountOptions(), Choice(IMAGE, "")
    _, other = image_file(snapshot, 7, 8, True)
    with monkeypatch.context() as context:
        context.setattr("dieselfs_client.mount.views.image.SHARED_NODES_MAX", len(snapshot) - 1)
        ImageView.prepare(snapshot, options)
    assert ImageView.shared is None
    ImageView.prepare(snapshot, options)
    assert ImageView.shared is not None
    image, kept = ImageView.shared
    assert image.has(0, len(image.metadata))
    first = ImageView(choice, snapshot, options)
    assert first.kept not in (None, kept) and first._layout.image is image
    second = ImageView(choice, snapshot, options, first.kept)
    assert second.kept == first.kept and second._layout.image is image
    third = ImageView(choice, snapshot, options, other)
    assert third.kept == other and third._layout.image is not image
    for descriptor in (kept, other):
        os.close(descriptor)
    first.close()


@needs_fsck
@pytest.mark.parametrize(("is_private", "mode", "owner"), [(True, 0o700, os.geteuid()), (False, 0o755, 70)])
def test_only_the_mounting_user_enters_a_private_mount(
    snapshot: Snapshot, tmp_path: Path, is_private: bool, mode: int, owner: int
) -> None:
    content, descriptor = image_file(snapshot, 70, 80, is_private)
    content.fill(0, len(content.metadata))
    image = tmp_path / "image"
    image.write_bytes(image_bytes(pack_entries(ENTRIES), content))
    os.close(descriptor)
    assert fsck(image) == ""
    with mounted_image(image, tmp_path / "mounted") as mounted:
        assert (mounted.stat().st_mode & 0o777, mounted.stat().st_uid) == (mode, owner)
        assert ((mounted / "0001").stat().st_uid, (mounted / "0001").stat().st_gid) == (70, 80)


class Rig:
    """An image with three parts, the root in the second."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.now_s = 0.0
        self.is_over = self.is_closed = False
        image = SimpleNamespace(
            metadata=np.zeros(2 * PART_BYTES + 4096, np.uint8),
            opening_offset=PART_BYTES + 8192,
        )
        self.layout: Any = SimpleNamespace(image=image, is_opening=False)

    def store_metadata(self, offset: int) -> None:
        if self.is_over:
            raise MountError("the mount has ended")
        assert not self.layout.is_opening
        self.done.append(offset // PART_BYTES)

    def close_root(self) -> None:
        self.done.append("root")

    def close(self) -> None:
        self.is_closed = True

    def run(self, *steps: Callable[[MetadataPush], Awaitable[None] | None]) -> list[object]:
        """What was pushed after all steps, each with its tasks."""

        async def main() -> None:
            pages: Any = self
            pushed_s: dict[int, float] = {}
            for step in steps:
                async with trio.open_nursery() as nursery:
                    limiter = trio.CapacityLimiter(1)
                    push = MetadataPush(self.layout, pages, nursery, limiter, lambda: self.now_s)
                    push._pushed_s = pushed_s
                    waits = step(push)
                    if waits is not None:
                        await waits

        trio.run(main)
        return self.done


def test_a_part_that_was_missed_is_pushed_once() -> None:
    rig = Rig()
    offset = PART_BYTES + 5000
    assert rig.run(lambda push: push.missed(offset), lambda push: push.missed(offset + 4096)) == [1]


def test_a_part_that_is_missed_again_later_is_pushed_again() -> None:
    rig = Rig()

    def later(push: MetadataPush) -> None:
        rig.now_s += PUSHED_AGAIN_S
        push.missed(0)

    assert rig.run(lambda push: push.missed(0), later, lambda push: push.missed(2 * PART_BYTES)) == [
        0,
        0,
        2,
    ]


def test_nothing_is_pushed_until_the_control_folder_is_mounted_on_and_the_root_is_first() -> None:
    rig = Rig()
    rig.layout.is_opening = True
    found = rig.run(lambda push: push.missed(0), lambda push: push.opened())
    assert found == [1, "root", 0, 2]
    assert not rig.layout.is_opening


def test_a_mount_that_has_ended_is_no_error() -> None:
    rig = Rig()
    rig.is_over = True
    assert rig.run(lambda push: push.missed(0), lambda push: push.opened()) == ["root"]
