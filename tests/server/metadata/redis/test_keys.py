"""Keys that must be changed together lie together, names sort as they must, and the document lists every key."""

import re

from redis.crc import key_slot

from dieselfs_server.metadata.redis.values import (
    BUCKETS,
    BucketKeys,
    DatasetKeys,
    common_notes_keys,
    extent_name,
    extents_of_file,
    names_after,
    parse_extent_name,
    registry_keys,
)
from tests.support.documents import REPOSITORY

KEYS = DatasetKeys(b"dieselfs:", "pets", b"\1" * 8)


def keys_of(bucket: BucketKeys) -> list[bytes]:
    key_pair = bucket.folder(b"\x7f" * 16)
    return [*bucket.own_keys, key_pair.sorted_key, key_pair.hash_key]


def test_what_is_changed_together_is_on_one_node() -> None:
    assert len({key_slot(key) for key in KEYS.all_keys}) == 1
    for number in (0, 127, 255):
        assert len({key_slot(key) for key in keys_of(KEYS.bucket(number))}) == 1


def test_a_dataset_spreads_over_the_nodes_of_a_cluster() -> None:
    slots = [key_slot(KEYS.bucket(number).changes.key) for number in range(BUCKETS)]
    for nodes in (3, 16):
        shares = [sum(slot * nodes // 16384 == node for slot in slots) for node in range(nodes)]
        assert min(shares) > 0.3 * BUCKETS / nodes


def test_no_two_datasets_share_a_key() -> None:
    other = DatasetKeys(b"dieselfs:", "pets", b"\2" * 8)
    assert not set(KEYS.all_keys + keys_of(KEYS.bucket(1))) & set(other.all_keys + keys_of(other.bucket(1)))
    assert KEYS.folder_hash(b"a") != other.folder_hash(b"a")


def test_names_of_extents() -> None:
    name = extent_name(b"x/d\xff", 7, 1 << 60, 5, 1 << 31)
    assert parse_extent_name(name) == (b"x/d\xff", 7, 1 << 60, 5, 1 << 31)
    lowest, highest = extents_of_file(b"x/d\xff", 7, 1 << 60)
    assert lowest[1:] <= name < highest[1:]
    assert not lowest[1:] <= extent_name(b"x/d\xff", 8, 1 << 60, 5, 1) < highest[1:]
    assert extent_name(b"a", 1, 300, 2, 1) < extent_name(b"a", 1, 300, 256, 1)


def test_names_behind_a_name() -> None:
    lowest, _ = names_after(b"b")
    members = {name: name + b"\0value" for name in (b"a", b"b", b"b\1", b"b!", b"c")}
    assert [name for name, member in members.items() if member >= lowest[1:]] == [b"b\1", b"b!", b"c"]
    lowest, highest = names_after(b"", within=b"x")
    tree = {name: name + b"\0value" for name in (b"\0x", b"x\0a", b"x\0\xff", b"x/y\0a", b"w\0a")}
    assert [name for name, member in tree.items() if lowest[1:] <= member < highest[1:]] == [
        b"x\0a",
        b"x\0\xff",
    ]


def test_the_document_lists_every_key() -> None:
    text = (REPOSITORY / "docs" / "reference" / "metadata-keys.md").read_text("utf-8")
    documented = set(re.findall(r"^\| `(PREFIX[^`]*)`", text, re.MULTILINE))
    folder = b"\0" * 16
    made = [
        registry_keys(b"dieselfs:").key,
        common_notes_keys(b"dieselfs:").key,
        *KEYS.all_keys,
        *KEYS.bucket(0).own_keys,
    ]
    made += [KEYS.bucket(0).folder(folder).sorted_key, KEYS.bucket(0).folder(folder).hash_key]
    token = KEYS.token.hex()
    shown = {
        key.decode()
        .replace("dieselfs:", "PREFIX")
        .replace(f"{token}.00", "T.NN")
        .replace(token, "T")
        .replace(folder.hex(), "H")
        for key in made
    }
    assert documented == shown
