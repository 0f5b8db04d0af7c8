"""Tables that several processes share: keys, places, and what gives way."""

import os
import struct
from itertools import count

from dieselfs_server.shared_table import PLACES, SharedTable, key_of, least

_NUMBER = struct.Struct("<Q")


def number(value: bytes | None) -> int:
    return 0 if value is None else int(_NUMBER.unpack(value)[0])


def added(table: SharedTable, key: bytes, more: int = 1) -> None:
    table.change(key, lambda found: _NUMBER.pack(number(found) + more), least(number))


def test_values_are_found_by_their_keys_until_they_are_removed() -> None:
    table = SharedTable(64, _NUMBER.size)
    keys = [key_of("a", "bc"), key_of("ab", "c"), key_of("abc")]
    for more, key in enumerate(keys, 1):
        assert table.get(key) is None
        added(table, key, more)
        added(table, key, more)
    assert [number(table.get(key)) for key in keys] == [2, 4, 6]
    table.change(keys[0], lambda _: None, least(number))
    assert table.get(keys[0]) is None and number(table.get(keys[1])) == 4


def test_of_a_full_table_what_is_worth_least_gives_way() -> None:
    table = SharedTable(PLACES, _NUMBER.size)
    for value in range(1, PLACES + 1):
        added(table, key_of(str(value)), value)
    added(table, key_of("new"), 100)
    found = {value for value in range(1, PLACES + 1) if table.get(key_of(str(value))) is not None}
    assert found == set(range(2, PLACES + 1)) and number(table.get(key_of("new"))) == 100


def test_no_change_of_two_processes_is_lost() -> None:
    table, key, changes = SharedTable(64, _NUMBER.size), key_of("counter"), 2000
    child = os.fork()
    if not child:
        for _ in range(changes):
            added(table, key)
        os._exit(0)
    for _ in range(changes):
        added(table, key)
    assert os.waitpid(child, 0)[1] == 0
    assert number(table.get(key)) == 2 * changes


def test_a_process_that_dies_with_the_lock_holds_up_nobody() -> None:
    table, key = SharedTable(64, _NUMBER.size), key_of("counter")
    child = os.fork()
    if not child:
        with table._locked():
            os._exit(0)
    os.waitpid(child, 0)
    added(table, key)
    assert number(table.get(key)) == 1


def test_one_that_was_stopped_with_the_lock_holds_up_others_for_a_moment() -> None:
    table, key = SharedTable(64, _NUMBER.size), key_of("counter")
    ready, told = os.pipe()
    over, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        with table._locked():
            os.write(told, b"x")
            os.read(over, 1)
        os._exit(0)
    os.read(ready, 1)
    for more in count(1):
        added(table, key)
        if more == 3:
            break
    for descriptor in (ready, told, over, end):
        os.close(descriptor)
    os.waitpid(child, 0)
    assert number(table.get(key)) == 3
