from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import trio

from dieselfs.errors import MountError
from dieselfs_client.mount.views.image_pages import METADATA_PUSH_BYTES
from dieselfs_client.mount.views.metadata_push import PUSHED_AGAIN_S, MetadataPush


class Rig:
    """An image with three parts, the root in the second."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.now_s = 0.0
        self.is_over = False
        image = SimpleNamespace(
            metadata=np.zeros(2 * METADATA_PUSH_BYTES + 4096, np.uint8),
            opening_offset=METADATA_PUSH_BYTES + 8192,
        )
        self.layout: Any = SimpleNamespace(image=image, is_opening=False)

    def store_metadata(self, offset: int) -> None:
        if self.is_over:
            raise MountError("the mount has ended")
        assert not self.layout.is_opening
        self.done.append(offset // METADATA_PUSH_BYTES)

    def close_root(self) -> None:
        self.done.append("root")

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
    offset = METADATA_PUSH_BYTES + 5000
    assert rig.run(lambda push: push.missed(offset), lambda push: push.missed(offset + 4096)) == [1]


def test_a_part_that_is_missed_again_later_is_pushed_again() -> None:
    rig = Rig()

    def later(push: MetadataPush) -> None:
        rig.now_s += PUSHED_AGAIN_S
        push.missed(0)

    assert rig.run(lambda push: push.missed(0), later, lambda push: push.missed(2 * METADATA_PUSH_BYTES)) == [
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
