"""A node's own shelf, for threads: it lives in a trio thread, and sources are asked in others."""

from collections.abc import Iterator, Sequence

import trio

from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.limits import FETCHES_AT_ONCE_MAX
from dieselfs.peers.asking import Wanted
from dieselfs.peers.source import Found
from dieselfs_client.shelf import Shelf


class OwnShelf:
    """Blocks; safe to use from many threads, but not from that of trio. `token`: of the trio run of the shelf."""

    def __init__(self, shelf: Shelf, token: trio.lowlevel.TrioToken) -> None:
        self._shelf = shelf
        self._token = token

    def find(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Found]]:
        """The payload of the chunk of each; what is not on the shelf is fetched, a few at a time.

        A chunk that is wanted whole is always fetched. What comes back is verified, and stays readable.
        """
        missing = []
        for each in wanted:
            payload = self._shelf.kept(each.chunk)
            if payload is None:
                missing.append(each)
            else:
                yield each, payload
        for first in range(0, len(missing), FETCHES_AT_ONCE_MAX):
            batch = missing[first : first + FETCHES_AT_ONCE_MAX]
            yield from zip(batch, self._fetch(batch), strict=True)

    def _fetch(self, wanted: Sequence[Wanted]) -> list[Found]:
        try:
            return trio.from_thread.run(self._gather, wanted, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            return [Unavailable("this node is stopping")] * len(wanted)

    async def _gather(self, wanted: Sequence[Wanted]) -> list[Found]:
        found: list[Found] = [None] * len(wanted)

        async def fetch(place: int, chunk: int) -> None:
            try:
                found[place] = await self._shelf.payload(chunk)
            except DieselfsError as error:
                found[place] = error

        async with trio.open_nursery() as nursery:
            for place, each in enumerate(wanted):
                is_whole = not each.extents
                if is_whole or self._shelf.is_worth_fetching(each.chunk, each.length_bytes, each.is_common):
                    nursery.start_soon(fetch, place, each.chunk)
        return found
