"""The connections that may stay: of clients that have proved a key, and of a few strangers, which have not yet. No I/O.

An address costs an attacker little, so strangers have places of their own: however many there are, known clients keep
theirs, and a newcomer displaces the stranger that has waited longest. A handshake takes milliseconds: a client that
needs longer than STRANGER_S_MIN while places are short has to come again.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from dieselfs.limits import CONNECTIONS_PER_PEER_MAX, KNOWN_ADDRESS_S, STRANGER_S_MIN, STRANGERS_MAX

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


@dataclass(eq=False)
class Place:
    """Of one connection. `displace` ends it; it still has to `leave`."""

    group: str
    entered_s: float
    displace: Callable[[], None]
    is_known: bool = field(default=False)


class Places:
    """For one thread. `clock` in seconds."""

    def __init__(
        self,
        clients_max: int,
        clock: Callable[[], float],
        strangers_max: int = STRANGERS_MAX,
        per_group_max: int = CONNECTIONS_PER_PEER_MAX,
    ) -> None:
        """`clients_max`: of proved clients, of which `per_group_max` from one address."""
        self._clients_max, self._strangers_max, self._per_group_max = (
            clients_max,
            strangers_max,
            per_group_max,
        )
        self._clock = clock
        self._strangers: dict[Place, None] = {}  # oldest first
        self._clients: Counter[str] = Counter()  # by group
        self._known_until_s: dict[str, float] = {}  # groups from which a client has proved itself
        self.displaced = 0
        """Strangers that had to go."""

    @property
    def count(self) -> int:
        """Connections in all."""
        return self._clients.total() + len(self._strangers)

    def enter(self, peer: str, displace: Callable[[], None], is_local: bool = False) -> Place | str:
        """A place for a stranger; why there is none otherwise. Another stranger may be displaced for it.

        `is_local`: over a Unix socket, whose folder is private; it is no stranger.
        """
        group, now_s = address_group(peer), self._clock()
        if self._clients.total() >= self._clients_max:
            return f"the limit of {self._clients_max} clients is reached"
        if self._clients[group] >= self._per_group_max:
            return f"{self._clients[group]} clients from {group} already, which is the limit"
        if len(self._strangers) >= self._strangers_max and not is_local:
            is_known = self._known_until_s.get(group, now_s) > now_s
            victim = self._victim(now_s, is_known)
            if victim is None:
                return f"{len(self._strangers)} connections have not proved a key yet, which is the limit"
            del self._strangers[victim]
            self.displaced += 1
            victim.displace()
        place = Place(group, now_s, displace)
        self._strangers[place] = None
        if is_local:
            self.prove(place)
        return place

    def _victim(self, now_s: float, is_for_known: bool) -> Place | None:
        """The oldest stranger that has waited long enough; for a known address the oldest of another one."""
        for place in self._strangers:
            if now_s - place.entered_s >= STRANGER_S_MIN:
                return place
            if is_for_known and self._known_until_s.get(place.group, now_s) <= now_s:
                return place
        return None

    def prove(self, place: Place) -> bool:
        """The client at this place has proved a key; False if it was displaced meanwhile, or there are too many."""
        if place not in self._strangers or self._clients.total() >= self._clients_max:
            return False
        del self._strangers[place]
        place.is_known = True
        self._clients[place.group] += 1
        if len(self._known_until_s) >= KNOWN_ADDRESSES_MAX:
            del self._known_until_s[min(self._known_until_s, key=self._known_until_s.__getitem__)]
        self._known_until_s[place.group] = self._clock() + KNOWN_ADDRESS_S
        return True

    def leave(self, place: Place) -> None:
        """The connection has ended."""
        self._strangers.pop(place, None)
        if place.is_known:
            place.is_known = False
            self._clients[place.group] -= 1
            self._clients += Counter()  # drops those at zero
