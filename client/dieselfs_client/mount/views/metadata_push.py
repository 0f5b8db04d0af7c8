"""Pushes the metadata area of the image: at the mount, and again where the kernel has reclaimed it.

EROFS reads metadata page by page, so each page that is not there is a request. The parts of the area that are needed
again are pushed whole.
"""

from collections.abc import Callable
from contextlib import suppress

import trio

from dieselfs.errors import MountError
from dieselfs_client.mount.views.image_layout import ImageLayout
from dieselfs_client.mount.views.image_pages import METADATA_PUSH_BYTES, ImagePages

PUSHED_AGAIN_S = 1.0
"""A part is not pushed again within this time: if the kernel reclaims pages at once, pushes have no benefit."""


class MetadataPush:
    """Used from one trio thread. Its tasks run in `nursery`; `pushing` is held while one uses `pages`."""

    def __init__(
        self,
        layout: ImageLayout,
        pages: ImagePages,
        nursery: trio.Nursery,
        pushing: trio.CapacityLimiter,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._layout = layout
        self._pages = pages
        self._nursery = nursery
        self._pushing = pushing
        self._clock = clock
        self._pushed_s: dict[int, float] = {}

    def missed(self, offset: int) -> None:
        """The kernel has read the metadata area at `offset`. While the image is opened, nothing is pushed: the block
        with the root changes.
        """
        part = offset // METADATA_PUSH_BYTES
        last_s = self._pushed_s.get(part)
        if self._layout.is_opening or (last_s is not None and self._clock() < last_s + PUSHED_AGAIN_S):
            return
        self._pushed_s[part] = self._clock()
        self._nursery.start_soon(self._push, part)

    async def opened(self) -> None:
        """The control folder of the image was mounted on: push the area, and make the kernel list the root again."""
        self._layout.is_opening = False
        root, parts = self._layout.image.opening_offset // METADATA_PUSH_BYTES, self._parts()
        await self._push(root)
        with suppress(MountError):
            await trio.to_thread.run_sync(self._pages.close_root, limiter=self._pushing)
        self._nursery.start_soon(self._push_all, [part for part in range(parts) if part != root])

    def _parts(self) -> int:
        return -(-len(self._layout.image.metadata) // METADATA_PUSH_BYTES)

    async def _push_all(self, parts: list[int]) -> None:
        for part in parts:
            await self._push(part)

    async def _push(self, part: int) -> None:
        self._pushed_s[part] = self._clock()
        offset = part * METADATA_PUSH_BYTES
        with suppress(MountError):  # the mount has ended; or the page helper, and reads go through the daemon
            await trio.to_thread.run_sync(self._pages.store_metadata, offset, limiter=self._pushing)
