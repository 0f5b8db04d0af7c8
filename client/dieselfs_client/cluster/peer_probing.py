"""Pings avoided peers, and peers that may have failed, in the background."""

from collections.abc import Callable, Collection

import trio

from dieselfs.cluster.member import Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.limits import PEER_PINGS_AT_ONCE_MAX, PEER_PROBE_INTERVAL_S


async def keep_probing(peers: PeerClient, members: Callable[[], Collection[Member]]) -> None:
    """Ping avoided members when they are due, and silent members after a failure, until cancelled; pings in flight
    complete in their threads.
    """
    in_flight: set[str] = set()
    limiter = trio.CapacityLimiter(PEER_PINGS_AT_ONCE_MAX)

    async def ping(member: Member) -> None:
        await trio.to_thread.run_sync(peers.ping, member, abandon_on_cancel=True, limiter=limiter)
        in_flight.discard(member.node)

    async with trio.open_nursery() as nursery:
        while True:
            by_node = {member.node: member for member in members()}
            for node in [*peers.due(), *peers.silent()]:
                if node in by_node and node not in in_flight:
                    in_flight.add(node)
                    nursery.start_soon(ping, by_node[node])
            await trio.sleep(PEER_PROBE_INTERVAL_S)
