"""The scripts, in a real Redis: read, swap all or nothing, scan within a limit."""

from collections.abc import Iterator

import pytest

from dieselfs_server.metadata.redis_cells import (
    Change,
    Range,
    Read,
    ReadAll,
    Remove,
    RemoveField,
    Scan,
    Swap,
    split_member,
)
from dieselfs_server.metadata.redis_keys import Drawer
from dieselfs_server.metadata.redis_link import RedisLink, ask
from dieselfs_server.metadata.redis_url import parse_redis_url
from dieselfs_server.metadata.redis_values import seal
from tests.support.redis import needs_redis

pytestmark = needs_redis


@pytest.fixture
def link(redis_url: str) -> Iterator[RedisLink]:
    link = RedisLink(parse_redis_url(redis_url))
    yield link
    link.close()


@pytest.fixture
def both(redis_url: str) -> Drawer:
    base = redis_url.rpartition("=")[2].encode()
    return Drawer("dl://pets", base + b"{t}:sorted", base + b"{t}:hash")


def put(
    drawer: Drawer, name: bytes, body: bytes, expected: bytes | None = None, in_hash: bool = False
) -> Swap:
    change = Change(drawer)
    change.add(name, seal(drawer, name, body) if body else b"", expected, in_hash)
    return Swap([change])


def read(link: RedisLink, drawer: Drawer, *names: bytes) -> list[bytes | None]:
    return ask(link, [Read([(drawer, names)])])[0][0]


def test_a_cell_is_in_one_of_the_two_keys(link: RedisLink, both: Drawer) -> None:
    for name in (b"", b"a", b"a\xff\n", b"a" * 255):
        first, second = (seal(both, name, body) for body in (b"1", b"2"))
        assert not ask(link, [put(both, name, b"1")])[0].stale
        assert read(link, both, name, b"other") == [first, None]
        assert not ask(link, [put(both, name, b"2", first, in_hash=True)])[0].stale
        assert read(link, both, name) == [second]
        assert ask(link, [ReadAll(both)])[0] == {name: second}
        assert not ask(link, [put(both, name, b"1", second)])[0].stale
        assert ask(link, [ReadAll(both)])[0] == {}
        assert ask(link, [Scan([Range(both)], 10)])[0] == [[name + b"\0" + first]]
        assert not ask(link, [put(both, name, b"", first)])[0].stale
        assert read(link, both, name) == [None]


def test_a_swap_is_done_whole_or_not_at_all(link: RedisLink, both: Drawer) -> None:
    alone = Drawer("dl://pets", hash_key=both.hash_key + b"2")
    ask(link, [put(both, b"b", b"old")])
    old = seal(both, b"b", b"old")
    changes = [Change(both), Change(alone)]
    changes[0].add(b"a", seal(both, b"a", b"1"), None)
    changes[0].add(b"b", seal(both, b"b", b"1"), None)
    changes[1].add(b"c", seal(alone, b"c", b"1"), seal(alone, b"c", b"0"))
    counter = (Drawer("dl://pets", hash_key=both.hash_key + b"3"), b"changes")
    swapped = ask(link, [Swap(changes, counter)])[0]
    assert (swapped.changes, swapped.stale) == (0, [(both, b"b", old), (alone, b"c", None)])
    assert read(link, both, b"a", b"b") == [None, old]
    changes[0].expected, changes[1].expected = {1: old}, {}
    assert [ask(link, [Swap(changes, counter)])[0].changes, read(link, alone, b"c")] == [
        1,
        [changes[1].values[0]],
    ]
    assert ask(link, [Swap(changes, counter)])[0].changes == 1  # stale by now


def test_constant_cells_may_be_there_already(link: RedisLink, both: Drawer) -> None:
    change = Change(both, is_constant=True)
    change.add(b"a", seal(both, b"a", b"1"), None)
    for _ in range(2):
        assert not ask(link, [Swap([change])])[0].stale
    change.values = [seal(both, b"a", b"2")]
    assert ask(link, [Swap([change])])[0].stale


def test_thousands_of_cells_at_once(link: RedisLink, both: Drawer) -> None:
    names = [b"%05d" % number for number in range(10_000)]
    change = Change(both)
    for number, name in enumerate(names):
        change.add(name, seal(both, name, b"x"), None, in_hash=number % 3 == 0)
    assert not ask(link, [Swap([change])])[0].stale
    assert len(ask(link, [Swap([change])])[0].stale) == 10_000
    assert read(link, both, *names) == change.values


def test_a_scan_ends_at_its_limit(link: RedisLink, both: Drawer) -> None:
    other = Drawer("dl://pets", sorted_key=both.sorted_key + b"2")
    ask(link, [put(drawer, name, b"1") for drawer in (both, other) for name in (b"a", b"b", b"c")])

    def names(limit: int) -> list[list[bytes]]:
        lists = ask(link, [Scan([Range(both, b"[b"), Range(other)], limit)])[0]
        return [[split_member(member)[0] for member in members] for members in lists]

    assert names(9) == [[b"b", b"c"], [b"a", b"b", b"c"]]
    assert names(3) == [[b"b", b"c"], [b"a"]]
    assert names(2) == [[b"b", b"c"]]


def test_removal(link: RedisLink, both: Drawer) -> None:
    ask(link, [put(both, b"a", b"1", in_hash=True), put(both, b"b", b"1")])
    ask(link, [RemoveField(both, b"a"), RemoveField(both, b"a")])
    assert read(link, both, b"a", b"b") == [None, seal(both, b"b", b"1")]
    ask(link, [Remove([both.sorted_key, both.hash_key]), Remove([both.sorted_key])])
    assert read(link, both, b"b") == [None]
