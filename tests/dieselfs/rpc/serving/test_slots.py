"""Unauthenticated connections displace each other, and never a client that has proved its key."""

import pytest

from dieselfs.limits import UNAUTHENTICATED_S_MIN
from dieselfs.rpc.serving.slots import ConnectionSlot, ConnectionSlots, address_group


class Crowd:
    """Slots for 4 clients, 2 of one address, and 3 without a key."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slots = ConnectionSlots(4, lambda: self.now_s, unauthenticated_max=3, per_group_max=2)
        self.displaced: list[str] = []

    def enter(self, name: str, peer: str = "10.0.0.1", is_local: bool = False) -> ConnectionSlot | str:
        return self.slots.enter(peer, lambda: self.displaced.append(name), is_local)

    def user(self, name: str, peer: str) -> ConnectionSlot:
        slot = self.enter(name, peer)
        assert isinstance(slot, ConnectionSlot) and self.slots.prove(slot)
        return slot


def test_a_newcomer_displaces_the_oldest_one_without_a_key() -> None:
    crowd = Crowd()
    for name in "abc":
        assert isinstance(crowd.enter(name), ConnectionSlot)
        crowd.now_s += 0.1
    assert "not proved a key" in str(crowd.enter("d"))  # all have just come
    crowd.now_s += UNAUTHENTICATED_S_MIN
    for name in "de":
        assert isinstance(crowd.enter(name), ConnectionSlot)
    assert crowd.displaced == ["a", "b"] and crowd.slots.count == 3


def test_a_proved_client_is_never_displaced_and_takes_no_slot_of_others() -> None:
    crowd = Crowd()
    user = crowd.user("user", "10.0.0.2")
    for name in "abcdef":
        crowd.now_s += UNAUTHENTICATED_S_MIN
        crowd.enter(name)
    assert crowd.displaced == ["a", "b", "c"] and user.is_known and crowd.slots.count == 4


def test_a_known_address_comes_first_among_unauthenticated() -> None:
    crowd = Crowd()
    crowd.slots.leave(crowd.user("user", "10.0.0.2"))
    for name in "abc":
        crowd.enter(name)
    assert isinstance(crowd.enter("again", "10.0.0.2"), ConnectionSlot)  # at once
    assert crowd.displaced == ["a"]
    assert isinstance(crowd.enter("d", "10.0.0.3"), str)


def test_somebody_who_was_displaced_cannot_prove_a_key_any_more() -> None:
    crowd = Crowd()
    slots = [crowd.enter(name) for name in "abc"]
    crowd.now_s += UNAUTHENTICATED_S_MIN
    crowd.enter("d")
    first, second, _ = slots
    assert isinstance(first, ConnectionSlot) and not crowd.slots.prove(first)
    assert isinstance(second, ConnectionSlot) and crowd.slots.prove(second)
    crowd.slots.leave(first)
    crowd.slots.leave(second)
    assert crowd.slots.count == 2


def test_clients_are_limited_in_all_and_for_each_address() -> None:
    crowd = Crowd()
    users = [crowd.user("a", "10.0.0.1"), crowd.user("b", "10.0.0.1")]
    assert "2 clients from 10.0.0.1" in str(crowd.enter("c", "10.0.0.1"))
    users += [crowd.user("d", "10.0.0.2"), crowd.user("e", "10.0.0.3")]
    assert "limit of 4 clients" in str(crowd.enter("f", "10.0.0.4"))
    for slot in users:
        crowd.slots.leave(slot)
    assert crowd.slots.count == 0 and isinstance(crowd.enter("c", "10.0.0.1"), ConnectionSlot)


def test_on_a_unix_socket_everybody_is_authenticated() -> None:
    crowd = Crowd()
    for name in "abc":
        crowd.enter(name)
    local = crowd.enter("admin", "local user 0", is_local=True)
    assert isinstance(local, ConnectionSlot) and local.is_known


@pytest.mark.parametrize(
    ("peer", "group"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("local user 0", "local user 0"),
    ],
)
def test_an_ipv6_network_is_one_address(peer: str, group: str) -> None:
    assert address_group(peer) == group
