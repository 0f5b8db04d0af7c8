"""The connections that may stay: authenticated ones, and a few that have not proved a key yet. No I/O.

An address costs an attacker little, so unauthenticated connections have slots of their own: however many there are,
clients with a key keep theirs, and a newcomer displaces the unauthenticated one that has waited longest. A handshake
takes milliseconds: a client that needs longer than UNAUTHENTICATED_S_MIN while slots are short has to come again.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from dieselfs.limits import (
    CONNECTIONS_PER_PEER_MAX,
    KNOWN_ADDRESS_S,
    UNAUTHENTICATED_MAX,
    UNAUTHENTICATED_S_MIN,
)

_IPV6_PREFIX_BITS = 64
KNOWN_ADDRESSES_MAX = 4096


def address_group(peer: str) -> str:
    """The address that limits count: of IPv6 the /64, which belongs to one user; `peer` itself if it is no address."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if not isinstance(address, IPv6Address):
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    shift = address.max_prefixlen - _IPV6_PREFIX_BITS
    return f"{IPv6Address(int(address) >> shift << shift)}/{_IPV6_PREFIX_BITS}"


def part_of(limit: int, share: int) -> int:
    """What one of `share` processes has of a limit of all of them: an equal part, rounded up."""
    return -(-limit // share)


@dataclass(eq=False)
class ConnectionSlot:
    """The slot of one connection. `displace` ends the connection, which still has to `leave`."""

    group: str
    entered_s: float
    displace: Callable[[], None]
    is_known: bool = False


class ConnectionSlots:
    """For one thread. `clock` in seconds."""

    def __init__(
        self,
        clients_max: int,
        clock: Callable[[], float],
        unauthenticated_max: int = UNAUTHENTICATED_MAX,
        per_group_max: int = CONNECTIONS_PER_PEER_MAX,
    ) -> None:
        """`clients_max`: of proved clients, of which `per_group_max` from one address."""
        self._clients_max, self._per_group_max = clients_max, per_group_max
        self._unauthenticated_max = unauthenticated_max
        self._clock = clock
        self._unauthenticated: dict[ConnectionSlot, None] = {}  # oldest first
        self._clients: Counter[str] = Counter()  # by group
        self._known_until_s: dict[str, float] = {}  # groups from which a client has proved itself
        self.displaced = 0
        """Unauthenticated connections that were ended for others."""

    @property
    def count(self) -> int:
        """Connections in all."""
        return self._clients.total() + len(self._unauthenticated)

    def enter(self, peer: str, displace: Callable[[], None], is_local: bool = False) -> ConnectionSlot | str:
        """A slot for a new connection; otherwise, why there is none. Another unauthenticated one may be displaced.

        `is_local`: over a Unix socket, whose folder is private; it counts as authenticated.
        """
        group, now_s = address_group(peer), self._clock()
        if self._clients.total() >= self._clients_max:
            return f"the limit of {self._clients_max} clients is reached"
        if self._clients[group] >= self._per_group_max:
            return f"{self._clients[group]} clients from {group} already, which is the limit"
        if len(self._unauthenticated) >= self._unauthenticated_max and not is_local:
            is_known = self._known_until_s.get(group, now_s) > now_s
            victim = self._victim(now_s, is_known)
            if victim is None:
                return (
                    f"{len(self._unauthenticated)} connections have not proved a key yet, which is the limit"
                )
            del self._unauthenticated[victim]
            self.displaced += 1
            victim.displace()
        slot = ConnectionSlot(group, now_s, displace)
        self._unauthenticated[slot] = None
        if is_local:
            self.prove(slot)
        return slot

    def _victim(self, now_s: float, is_for_known: bool) -> ConnectionSlot | None:
        """The oldest unauthenticated slot, if it waited long enough; for a known address, the oldest of another one."""
        for slot in self._unauthenticated:
            if now_s - slot.entered_s >= UNAUTHENTICATED_S_MIN:
                return slot
            if is_for_known and self._known_until_s.get(slot.group, now_s) <= now_s:
                return slot
        return None

    def prove(self, slot: ConnectionSlot) -> bool:
        """The client at this slot has proved a key; False if it was displaced meanwhile, or there are too many."""
        if slot not in self._unauthenticated or self._clients.total() >= self._clients_max:
            return False
        del self._unauthenticated[slot]
        slot.is_known = True
        self._clients[slot.group] += 1
        if len(self._known_until_s) >= KNOWN_ADDRESSES_MAX:
            del self._known_until_s[min(self._known_until_s, key=self._known_until_s.__getitem__)]
        self._known_until_s[slot.group] = self._clock() + KNOWN_ADDRESS_S
        return True

    def leave(self, slot: ConnectionSlot) -> None:
        """The connection has ended."""
        self._unauthenticated.pop(slot, None)
        if slot.is_known:
            slot.is_known = False
            self._clients[slot.group] -= 1
            self._clients += Counter()  # drops those at zero
