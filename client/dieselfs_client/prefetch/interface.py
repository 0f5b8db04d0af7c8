"""What the read path of a mount asks of a prefetcher, and one that does nothing. No I/O."""

from typing import Protocol

import trio


class ReadAhead(Protocol):
    """Used from one trio thread. `Prefetcher` is the one of a mount.

    `moved` is set and replaced when files were stored, a reader advances, or memory becomes free.
    """

    moved: trio.Event

    def noticed(self, node: int) -> None:
        """Note that a reader asks for a file."""

    def noticed_ahead(self, node: int) -> None:
        """Note that the kernel asks for a file for which no reader asks yet."""

    def held(self, node: int) -> memoryview | None:
        """All bytes of a file, if it is a tripwire that was fetched."""

    def is_starved(self, node: int) -> bool:
        """Whether the next files of the reader of this tripwire are in flight."""

    def keeps(self, chunk: int) -> bool:
        """Whether to fetch a chunk whole for a waiting reader, because it is pinned."""

    def expects(self, chunk: int) -> bool:
        """Whether a chunk is in flight or will be soon, so that a reader of one of its files waits for it."""

    def stays(self, chunk: int) -> bool:
        """Whether a chunk will stay in memory, because all chunks of the dataset will."""

    def has_room(self, chunk: int) -> bool:
        """Whether a chunk that is fetched now can be pinned."""

    def landed(self, chunk: int, payload: memoryview) -> None:
        """Take a chunk that was fetched for a reader."""


class NoReadAhead:
    """For reads without page push: nothing is held or stored, and every chunk is fetched whole."""

    def __init__(self) -> None:
        self.moved = trio.Event()

    def noticed(self, node: int) -> None:
        pass

    def noticed_ahead(self, node: int) -> None:
        pass

    def held(self, node: int) -> memoryview | None:
        return None

    def is_starved(self, node: int) -> bool:
        return False

    def keeps(self, chunk: int) -> bool:
        return True

    def expects(self, chunk: int) -> bool:
        return True

    def stays(self, chunk: int) -> bool:
        return False

    def has_room(self, chunk: int) -> bool:
        return False

    def landed(self, chunk: int, payload: memoryview) -> None:
        pass
