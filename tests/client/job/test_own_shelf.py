"""A node's own shelf, asked from threads: what it does not have, others may."""

import trio

from dieselfs.cache.segment import Segment
from dieselfs.errors import NoRoom, Unavailable
from dieselfs.limits import MIB
from dieselfs.peers.asking import Wanted
from dieselfs.peers.source import Found
from dieselfs_client.job.own_shelf import OwnShelf
from dieselfs_client.shelf import Shelf
from tests.support.dataset import TreeEntry, pack_entries


def found(error: Exception) -> Found:
    """What comes of a chunk that cannot be fetched for this reason."""
    snapshot = pack_entries([TreeEntry(b"a", 0o100644, 0, bytes(1000))]).snapshot

    def fetch(chunk: int) -> Segment:
        raise error

    async def main() -> Found:
        async with trio.open_nursery() as nursery:
            own = OwnShelf(Shelf(snapshot, fetch, MIB, MIB, nursery), trio.lowlevel.current_trio_token())
            ((_, what),) = await trio.to_thread.run_sync(lambda: [*own.find([Wanted.whole(snapshot, 0)])])
            nursery.cancel_scope.cancel()
        return what

    return trio.run(main)


def test_what_has_no_room_here_is_to_be_had_elsewhere() -> None:
    assert found(NoRoom("no room for a chunk: Too many open files")) is None


def test_what_no_server_has_given_is_not_asked_for_again() -> None:
    assert isinstance(found(Unavailable("no server answers")), Unavailable)
