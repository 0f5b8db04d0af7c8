"""The scripts, in a real Redis, which knows them by their names: read, swap all or nothing, scan within a limit."""

from collections.abc import Iterator

import pytest

from dieselfs_server.metadata.redis.client import RedisClient, parse_redis_url
from dieselfs_server.metadata.redis.fields import (
    READ,
    SCAN,
    SWAP,
    Change,
    Command,
    Range,
    Swapped,
    execute,
    read_all_call,
    read_call,
    remove_call,
    remove_field_call,
    scan_call,
    split_member,
    swap_call,
)
from dieselfs_server.metadata.redis.values import KeyPair, seal
from tests.support.redis import RedisProcess, needs_redis

pytestmark = needs_redis


@pytest.fixture
def client(redis_url: str) -> Iterator[RedisClient]:
    client = RedisClient(parse_redis_url(redis_url))
    yield client
    client.close()


@pytest.fixture
def both(redis_url: str) -> KeyPair:
    base = redis_url.rpartition("=")[2].encode()
    return KeyPair("dl://pets", base + b"{t}:sorted", base + b"{t}:hash")


def put(
    key_pair: KeyPair, name: bytes, body: bytes, expected: bytes | None = None, in_hash: bool = False
) -> Command[Swapped]:
    change = Change(key_pair)
    change.add(name, seal(key_pair, name, body) if body else b"", expected, in_hash)
    return swap_call([change])


def read(client: RedisClient, key_pair: KeyPair, *names: bytes) -> list[bytes | None]:
    return execute(client, [read_call([(key_pair, names)])])[0][0]


def test_a_field_is_in_one_of_the_two_keys(client: RedisClient, both: KeyPair) -> None:
    for name in (b"", b"a", b"a\xff\n", b"a" * 255):
        first, second = (seal(both, name, body) for body in (b"1", b"2"))
        assert not execute(client, [put(both, name, b"1")])[0].stale
        assert read(client, both, name, b"other") == [first, None]
        assert not execute(client, [put(both, name, b"2", first, in_hash=True)])[0].stale
        assert read(client, both, name) == [second]
        assert execute(client, [read_all_call(both)])[0] == {name: second}
        assert not execute(client, [put(both, name, b"1", second)])[0].stale
        assert execute(client, [read_all_call(both)])[0] == {}
        assert execute(client, [scan_call([Range(both)], 10)])[0] == [[name + b"\0" + first]]
        assert not execute(client, [put(both, name, b"", first)])[0].stale
        assert read(client, both, name) == [None]


def test_a_swap_is_done_whole_or_not_at_all(client: RedisClient, both: KeyPair) -> None:
    alone = KeyPair("dl://pets", hash_key=both.hash_key + b"2")
    execute(client, [put(both, b"b", b"old")])
    old = seal(both, b"b", b"old")
    changes = [Change(both), Change(alone)]
    changes[0].add(b"a", seal(both, b"a", b"1"), None)
    changes[0].add(b"b", seal(both, b"b", b"1"), None)
    changes[1].add(b"c", seal(alone, b"c", b"1"), seal(alone, b"c", b"0"))
    counter = (KeyPair("dl://pets", hash_key=both.hash_key + b"3"), b"changes")
    swapped = execute(client, [swap_call(changes, counter)])[0]
    assert (swapped.changes, swapped.stale) == (0, [(both, b"b", old), (alone, b"c", None)])
    assert read(client, both, b"a", b"b") == [None, old]
    changes[0].expected, changes[1].expected = {1: old}, {}
    assert [execute(client, [swap_call(changes, counter)])[0].changes, read(client, alone, b"c")] == [
        1,
        [changes[1].values[0]],
    ]
    assert execute(client, [swap_call(changes, counter)])[0].changes == 1  # stale by now


def test_constant_fields_may_be_there_already(client: RedisClient, both: KeyPair) -> None:
    change = Change(both, is_constant=True)
    change.add(b"a", seal(both, b"a", b"1"), None)
    for _ in range(2):
        assert not execute(client, [swap_call([change])])[0].stale
    change.values = [seal(both, b"a", b"2")]
    assert execute(client, [swap_call([change])])[0].stale


def test_thousands_of_fields_at_once(client: RedisClient, both: KeyPair) -> None:
    names = [b"%05d" % number for number in range(10_000)]
    change = Change(both)
    for number, name in enumerate(names):
        change.add(name, seal(both, name, b"x"), None, in_hash=number % 3 == 0)
    assert not execute(client, [swap_call([change])])[0].stale
    assert len(execute(client, [swap_call([change])])[0].stale) == 10_000
    assert read(client, both, *names) == change.values


def test_a_scan_ends_at_its_limit(client: RedisClient, both: KeyPair) -> None:
    other = KeyPair("dl://pets", sorted_key=both.sorted_key + b"2")
    execute(client, [put(key_pair, name, b"1") for key_pair in (both, other) for name in (b"a", b"b", b"c")])

    def names(limit: int) -> list[list[bytes]]:
        lists = execute(client, [scan_call([Range(both, b"[b"), Range(other)], limit)])[0]
        return [[split_member(member)[0] for member in members] for members in lists]

    assert names(9) == [[b"b", b"c"], [b"a", b"b", b"c"]]
    assert names(3) == [[b"b", b"c"], [b"a"]]
    assert names(2) == [[b"b", b"c"]]


def test_removal(client: RedisClient, both: KeyPair) -> None:
    execute(client, [put(both, b"a", b"1", in_hash=True), put(both, b"b", b"1")])
    execute(client, [remove_field_call(both, b"a", lineage=0), remove_field_call(both, b"a", lineage=0)])
    assert read(client, both, b"a", b"b") == [None, seal(both, b"b", b"1")]
    execute(client, [remove_call([both.sorted_key, both.hash_key], 0), remove_call([both.sorted_key], 0)])
    assert read(client, both, b"b") == [None]


def test_redis_knows_them_by_the_names_that_we_give(redis_server: RedisProcess) -> None:
    with redis_server.client() as client:
        for script in (READ, SWAP, SCAN):
            assert client.execute_command("SCRIPT LOAD", script.text) in (
                script.digest,
                script.digest.decode(),
            )
            assert script.text.isascii()
