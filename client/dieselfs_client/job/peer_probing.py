"""Peers that are avoided get the chance to prove themselves, and those that may be lost are found out, in the
background.
"""

from collections.abc import Callable, Collection

import trio

from dieselfs.cache.member import Member
from dieselfs.limits import PEER_PINGS_AT_ONCE_MAX, PEER_PROBE_INTERVAL_S
from dieselfs.peers.client import PeerClient


async def keep_probing(peers: PeerClient, members: Callable[[], Collection[Member]]) -> None:
    """Ping the members that are avoided, each when it is due, and when one has failed those of whom nothing was heard
    lately, until cancelled; then pings end by themselves.
    """
    under_way: set[str] = set()
    limiter = trio.CapacityLimiter(PEER_PINGS_AT_ONCE_MAX)

    async def ping(member: Member) -> None:
        await trio.to_thread.run_sync(peers.ping, member, abandon_on_cancel=True, limiter=limiter)
        under_way.discard(member.node)

    async with trio.open_nursery() as nursery:
        while True:
            by_node = {member.node: member for member in members()}
            for node in [*peers.due(), *peers.unheard()]:
                if node in by_node and node not in under_way:
                    under_way.add(node)
                    nursery.start_soon(ping, by_node[node])
            await trio.sleep(PEER_PROBE_INTERVAL_S)
