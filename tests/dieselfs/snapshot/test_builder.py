"""Building snapshots: the same content gives the same bytes, and numbers depend on nothing but paths."""

import os
import random
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from dieselfs.chunk.format import Op
from dieselfs.digests import NO_DIGEST
from dieselfs.errors import Damaged
from dieselfs.names import split_path
from dieselfs.snapshot import builder as module
from dieselfs.snapshot import spill
from dieselfs.snapshot.builder import SnapshotBuilder, build_snapshot
from dieselfs.snapshot.hash_index import hash_bits_for, hash_seed
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from tests.support.snapshots import (
    DATASET_ID,
    PAYLOAD_BYTES,
    SAMPLE,
    SOURCE,
    Entry,
    Tree,
    entry_table,
    file_of,
    snapshot_bytes,
    visible,
)

parts = st.sampled_from([b"a", b"b", b"a-", b"a.b", b"...", b"\xff\xfe", b"\n", b"A", b"long" * 60])
paths = st.lists(parts, min_size=1, max_size=4).map(b"/".join)
times_ns = st.integers(-(1 << 62), 1 << 62)
modes = st.integers(0, 0o7777)
extents = st.tuples(st.integers(0, 2), st.integers(0, 1000), st.integers(1, 1000))
files = st.lists(extents, max_size=3).flatmap(
    lambda chosen: st.builds(
        lambda mode, mtime_ns: file_of(*chosen, mode=mode, mtime_ns=mtime_ns), modes, times_ns
    )
)
folders = st.builds(Entry, st.just(Op.DIRECTORY), modes, times_ns)
links = st.builds(
    lambda mode, mtime_ns, target: Entry(Op.SYMLINK, mode, mtime_ns, target=target),
    modes,
    times_ns,
    st.binary(min_size=1, max_size=20).map(lambda target: target.replace(b"\0", b"0")),
)
trees = st.dictionaries(paths, st.one_of(files, folders, links), max_size=25)
roots = st.one_of(st.none(), folders)


def build(tree: Tree) -> Snapshot:
    snapshot = Snapshot(snapshot_bytes(tree, chunks=3), SOURCE)
    snapshot.verify()
    return snapshot


def shown(snapshot: Snapshot) -> dict[bytes, Entry]:
    """Everything that a snapshot says, in the order of its nodes, in the form of the model. Extents have the number of
    their chunk in the table, which is in its ID.
    """
    op_by_type = {stat.S_IFREG: Op.FILE, stat.S_IFDIR: Op.DIRECTORY, stat.S_IFLNK: Op.SYMLINK}
    entries = {}
    for node in range(len(snapshot)):
        said = snapshot.stat(node)
        op = op_by_type[stat.S_IFMT(said.mode)]
        target = snapshot.target(node) if op is Op.SYMLINK else b""
        assert said.size == (
            len(target) if op is Op.SYMLINK else sum(extent.length for extent in snapshot.extents(node))
        )
        extents = tuple(
            extent._replace(chunk=int.from_bytes(snapshot.chunk_id(extent.chunk), "big") - 1)
            for extent in snapshot.extents(node)
        )
        entries[snapshot.path(node)] = Entry(op, stat.S_IMODE(said.mode), said.mtime_ns, extents, target)
    return entries


@settings(max_examples=150)
@given(trees, roots)
def test_a_snapshot_shows_what_the_model_says(tree: dict[bytes, Entry], root: Entry | None) -> None:
    if root is not None:
        tree[b""] = root
    snapshot = build(tree)
    expected = visible(tree)
    assert list(shown(snapshot).items()) == list(expected.items())
    contents = [entry for entry in expected.values() if entry.op is Op.FILE]
    assert snapshot.header.files == len(contents)
    assert snapshot.header.total_bytes == sum(extent.length for entry in contents for extent in entry.extents)
    needed = {extent.chunk for entry in contents for extent in entry.extents}
    assert snapshot.chunk_count == len(needed), "chunks without an extent are not listed"


@settings(max_examples=50)
@given(trees)
def test_numbers_depend_on_nothing_but_paths(tree: dict[bytes, Entry]) -> None:
    """Neither on where the bytes lie, nor on whether somebody made the folders, nor on modes and times."""
    snapshot = build(tree)
    numbers = {snapshot.path(node): node for node in range(len(snapshot))}
    everything = dict(shown(snapshot))
    moved = {
        path: file_of(*((2 - extent.chunk, extent.offset + 7, extent.length) for extent in entry.extents))
        if entry.op is Op.FILE
        else Entry(entry.op, 0o111, 42, target=entry.target)
        for path, entry in everything.items()
    }
    other = build(moved)
    assert {other.path(node): node for node in range(len(other))} == numbers


@settings(max_examples=50)
@given(trees)
def test_the_same_content_gives_the_same_bytes(tree: dict[bytes, Entry]) -> None:
    assert snapshot_bytes(dict(reversed(tree.items())), 3) == snapshot_bytes(tree, 3)


def test_any_difference_gives_another_digest() -> None:
    digests = {Snapshot(snapshot_bytes(SAMPLE), SOURCE).digest}
    changes: dict[bytes, Entry] = {
        b"train/cat.txt": file_of((0, 0, 6)),
        b"latest": Entry(Op.SYMLINK, 0o777, -1, target=b"train/cat.tx_"),
        b"new": Entry(Op.DIRECTORY),
        b"train": Entry(Op.DIRECTORY, 0o755, 5),
    }
    for path, entry in changes.items():
        digests.add(Snapshot(snapshot_bytes({**SAMPLE, path: entry}), SOURCE).digest)
    assert len(digests) == 1 + len(changes)


def test_an_empty_dataset_is_its_root() -> None:
    snapshot = build({})
    assert len(snapshot) == 1
    assert snapshot.stat(0) == (1, stat.S_IFDIR | 0o755, 0, 0)
    assert list(snapshot.children(0)) == []
    assert (snapshot.find(b""), snapshot.find(b"a")) == (0, -1)


def test_outer_folders_come_first_each_by_name() -> None:
    """`a-` sorts between `a` and `a/x` as bytes, but not as names."""
    snapshot = build({b"a/x": file_of(), b"a-/x": file_of(), b"a/b/c": file_of(), b"b": file_of()})
    assert [snapshot.path(node) for node in range(len(snapshot))] == [
        b"",
        b"a",
        b"a-",
        b"b",
        b"a/b",
        b"a/x",
        b"a-/x",
        b"a/b/c",
    ]


def test_a_folder_hides_the_file_in_its_place() -> None:
    snapshot = build(
        {b"a": file_of((0, 0, 5)), b"a/b": file_of((0, 5, 3)), b"l": file_of(), b"l/m/n": file_of()}
    )
    assert [snapshot.path(node) for node in snapshot.walk()] == [b"a", b"a/b", b"l", b"l/m", b"l/m/n"]
    assert snapshot.stat(snapshot.find(b"a")).is_folder
    assert (snapshot.header.files, snapshot.header.total_bytes, snapshot.header.extents) == (2, 3, 1)


def test_folders_that_nobody_made_have_the_newest_time_in_them() -> None:
    tree = {b"a/b/c": file_of(mtime_ns=5), b"a/d": file_of(mtime_ns=3), b"e/f": file_of(mtime_ns=-9)}
    snapshot = build(tree)
    times_ns = {path: snapshot.stat(snapshot.find(path)).mtime_ns for path in (b"", b"a", b"a/b", b"e")}
    assert times_ns == {b"": 5, b"a": 5, b"a/b": 5, b"e": 0}


def test_many_folders_that_nobody_made() -> None:
    snapshot = build({b"class%05d/file" % number: file_of() for number in range(20_000)})
    assert len(snapshot) == 40_001
    assert len(snapshot.children(0)) == 20_000
    assert snapshot.path(snapshot.find(b"class19999/file")) == b"class19999/file"


def test_extents_may_come_in_any_order() -> None:
    table = entry_table(SAMPLE)
    extents = table.extents
    backwards = type(extents)(*(getattr(extents, name)[::-1] for name in extents.__dataclass_fields__))
    again = build_snapshot(type(table)(**{**vars(table), "extents": backwards}))
    assert again == build_snapshot(table)


@pytest.mark.parametrize(
    "extents",
    [
        pytest.param((ExtentRef(0, 0, 0, 10, NO_DIGEST), ExtentRef(11, 1, 0, 10, NO_DIGEST)), id="gap"),
        pytest.param((ExtentRef(0, 0, 0, 10, NO_DIGEST), ExtentRef(9, 1, 0, 10, NO_DIGEST)), id="overlap"),
        pytest.param(
            (ExtentRef(1, 0, 0, 10, NO_DIGEST), ExtentRef(11, 1, 0, 10, NO_DIGEST)), id="no beginning"
        ),
        pytest.param(
            (ExtentRef(0, 0, PAYLOAD_BYTES - 9, 10, NO_DIGEST), ExtentRef(10, 1, 0, 10, NO_DIGEST)),
            id="past its chunk",
        ),
    ],
)
def test_extents_that_do_not_tile_their_file_are_found_by_verify(extents: tuple[ExtentRef, ...]) -> None:
    with pytest.raises(Damaged, match="snapshot 7: offset "):
        build({b"f": Entry(Op.FILE, extents=extents)})


@pytest.mark.parametrize("nodes", [1, 2, 3, 10, 1000, 1 << 20, (1 << 32) - 1])
def test_a_third_to_two_thirds_of_the_slots_are_taken(nodes: int) -> None:
    assert 1 / 3 <= nodes / (1 << hash_bits_for(nodes)) <= 2 / 3


def test_each_path_is_where_its_hash_says_or_behind_with_no_gap_between() -> None:
    snapshot = build({b"file%d" % number: file_of() for number in range(500)})
    slots = snapshot.column("hash_slots")
    places = {int(entry & np.uint64(0xFFFF_FFFF)) - 1: place for place, entry in enumerate(slots) if entry}
    hashes = []
    for node, place in sorted(places.items(), key=lambda item: item[1]):
        digest = xxh3_64_intdigest(snapshot.path(node), hash_seed(DATASET_ID))
        first = digest >> (64 - snapshot.header.hash_bits)
        assert first <= place
        assert slots[first : place + 1].all()
        assert int(slots[place]) >> 32 == digest & 0xFFFF_FFFF
        hashes.append(digest)
    assert hashes == sorted(hashes)
    assert len(places) == len(snapshot)
    assert slots[-1] == 0


@settings(max_examples=60)
@given(trees, roots, st.randoms(use_true_random=False))
def test_blocks_of_any_size_on_disk_give_the_same_bytes(
    tree: dict[bytes, Entry], root: Entry | None, chance: random.Random
) -> None:
    """Folders come in any order, and one may continue in the next block."""
    if root is not None:
        tree[b""] = root
    folders = sorted({split_path(path)[0] for path in tree}, key=lambda _: chance.random())
    with TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as small:
        small.setattr(module, "BLOCK_NODES", chance.randint(1, 9))
        small.setattr(module, "INDEX_ENTRIES", chance.randint(1, 9))
        small.setattr(spill, "IN_MEMORY_BYTES", chance.randint(0, 99))
        builder = SnapshotBuilder(scratch)
        builder.add(entry_table({}, 3))
        for folder in folders:
            paths = [path for path in sorted(tree) if split_path(path)[0] == folder]
            while paths:
                count = chance.randint(1, 5)
                builder.add(entry_table({path: tree[path] for path in paths[:count]}, 3))
                paths = paths[count:]
        builder.dataset = entry_table(tree, 3).dataset
        with (Path(scratch) / "snapshot").open("w+b") as file:
            digest = builder.write(file)
        made = (Path(scratch) / "snapshot").read_bytes()
        assert os.listdir(scratch) == ["snapshot"], "what is spilled has no name"
    assert made == snapshot_bytes(tree, 3)
    assert digest == Snapshot(made, SOURCE).digest
