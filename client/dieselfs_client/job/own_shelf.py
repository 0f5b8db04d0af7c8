"""A node's own shelf, for threads: it lives in a trio thread, and sources are asked in others."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import trio

from dieselfs.errors import DieselfsError, NoRoom, Unavailable
from dieselfs.limits import FETCHES_AT_ONCE_MAX, PEER_PATIENCE_S
from dieselfs.peers.asking import Wanted
from dieselfs.peers.source import Found
from dieselfs_client.shelf import Shelf

Result = TypeVar("Result")


class OwnShelf:
    """Blocks; safe to use from many threads, but not from that of trio. `token`: of the trio run of the shelf."""

    def __init__(
        self, shelf: Shelf, token: trio.lowlevel.TrioToken, patience_s: float = PEER_PATIENCE_S
    ) -> None:
        """A chunk that is not there after `patience_s` is waited for no longer, as that of a peer."""
        self._shelf = shelf
        self._token = token
        self._patience_s = patience_s

    def find(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Found]]:
        """The payload of the chunk of each; what is not on the shelf is fetched, a few ahead of whoever takes it.

        A chunk that is wanted whole is always fetched. What comes back is verified, and stays readable. None for what
        is not worth it, or has no room in this process, or is still on its way when it was waited for long enough: many
        others may have come before.
        """
        missing = []
        for each in wanted:
            payload = self._shelf.kept(each.chunk)
            if payload is None:
                missing.append(each)
            else:
                yield each, payload
        try:
            are_worth = self._run(self._are_worth, missing) if missing else []
        except Unavailable as error:
            yield from ((each, error) for each in missing)
            return
        yield from ((each, None) for each, is_worth in zip(missing, are_worth, strict=True) if not is_worth)
        missing = [each for each, is_worth in zip(missing, are_worth, strict=True) if is_worth]
        for place, each in enumerate(missing):
            try:
                yield each, self._run(self._fetch, each, missing[place + 1 : place + FETCHES_AT_ONCE_MAX])
            except NoRoom:  # which is no reason for a reader to go without
                yield each, None
            except DieselfsError as error:
                yield each, error

    def _run(self, function: Callable[..., Awaitable[Result]], *arguments: object) -> Result:
        try:
            return trio.from_thread.run(function, *arguments, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise Unavailable("this node is stopping") from None

    async def _are_worth(self, wanted: Sequence[Wanted]) -> list[bool]:
        return [
            not each.extents or self._shelf.is_worth_fetching(each.chunk, each.length_bytes, each.is_common)
            for each in wanted
        ]

    async def _fetch(self, wanted: Wanted, ahead: Sequence[Wanted]) -> memoryview | None:
        """A chunk if it comes in time, and word that those are wanted next."""
        for each in ahead:
            self._shelf.start(each.chunk)
        payload = None
        with trio.move_on_after(self._patience_s):
            payload = await self._shelf.payload(wanted.chunk)
        if payload is not None and wanted.extents:
            ranges = [(extent.offset, extent.length) for extent in wanted.extents]
            self._shelf.handed_out(wanted.chunk, np.array(ranges, np.int64))
        return payload
