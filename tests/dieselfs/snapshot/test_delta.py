"""Deltas: applied to the old snapshot, they give the new one byte for byte, or fail with one clear error."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs import digests
from dieselfs.chunk.format import Op
from dieselfs.errors import Damaged
from dieselfs.limits import PATH_BYTES_MAX
from dieselfs.snapshot import block_starts, hash_index, splicing
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.check import Part
from dieselfs.snapshot.delta import apply_delta, delta_between
from dieselfs.snapshot.delta_format import COLUMN_TYPES, Delta, decode_delta, encode_delta
from dieselfs.snapshot.files import write_aside
from dieselfs.snapshot.hash_index import hash_slots
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.datasets.snapshots import signed
from tests.dieselfs.snapshot.test_builder import trees
from tests.support.identity import IDENTITY
from tests.support.snapshots import (
    DATASET_ID,
    SAMPLE,
    SOURCE,
    Entry,
    Tree,
    entry_table,
    file_of,
    with_columns,
    with_delta,
)

CHUNKS = 3


def snapshot_of(tree: Tree, generation: int, chunks: range = range(CHUNKS)) -> Snapshot:
    """A signed snapshot that has only some chunks of the tree's table."""
    table = entry_table(tree, chunks.stop)
    record = table.dataset._replace(generation=generation, updated_ns=10**18 + generation)
    table = replace(
        table,
        dataset=record,
        chunk_table=[table.chunk_table[chunk] for chunk in chunks],
        chunks=np.where(table.chunks < 0, -1, table.chunks - chunks.start),
        extents=replace(table.extents, chunks=table.extents.chunks - chunks.start),
    )
    return Snapshot(signed(build_snapshot(table), IDENTITY), SOURCE)


def carried(base: Snapshot, new: Snapshot) -> bytes:
    """What a client makes of `base` and the delta to `new`."""
    delta = delta_between(base, new)
    assert delta is not None
    return with_delta(base, decode_delta(encode_delta(delta), "delta"))


changes = st.tuples(trees, st.sets(st.integers(0, 24)), st.booleans())


@settings(max_examples=150)
@given(trees, changes, st.sampled_from([1, 2, 5, splicing.BLOCK_NODES]))
def test_a_delta_gives_the_new_snapshot_to_the_byte(
    tree: dict[bytes, Entry], change: tuple[dict[bytes, Entry], set[int], bool], at_once: int
) -> None:
    added, removed, is_longer = change
    kept = {path: entry for number, (path, entry) in enumerate(tree.items()) if number not in removed}
    base = snapshot_of(tree, 7)
    new = snapshot_of({**kept, **added}, 8, range(CHUNKS + is_longer))
    with pytest.MonkeyPatch.context() as small:
        small.setattr(splicing, "BLOCK_NODES", at_once)
        small.setattr(splicing, "CHANGED_NODES", 2)
        assert carried(base, new) == bytes(new.content)
        assert carried(new, base) == bytes(base.content)


@settings(max_examples=50)
@given(st.integers(1, 400), st.integers(0, 400), st.integers(1, 7))
def test_long_runs_of_the_index_are_right(many: int, more: int, step: int) -> None:
    old = {b"d%d/f%05d" % (number % 3, number): file_of((0, 0, 5)) for number in range(many)}
    kept = dict(list(old.items())[::step])
    new = {**kept, **{b"d1/g%05d" % number: file_of((1, 0, 5)) for number in range(more)}}
    base, changed = snapshot_of(old, 7), snapshot_of(new, 8)
    assert carried(base, changed) == bytes(changed.content)


def test_a_file_is_written_while_its_digest_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "LARGE_BYTES", 1000)
    monkeypatch.setattr(splicing, "BLOCK_NODES", 64)
    monkeypatch.setattr(splicing, "CHANGED_NODES", 8)
    kinds = [file_of(), file_of((0, 0, 5)), file_of((0, 5, 5), (1, 0, 9)), SAMPLE[b"latest"]]
    tree = {b"d%02d/f%05d" % (number % 40, number): kinds[number % 4] for number in range(3000)}
    removed = {path: entry for path, entry in tree.items() if path != b"d13/f00213"}
    more = {
        b"d07/new": kinds[1],
        b"d00": Entry(Op.DIRECTORY, 0o700),
        b"e/f": kinds[3],
        b"d31/f00031": kinds[2],
    }
    base = snapshot_of(tree, 7)
    for path, changed in ((tmp_path / "more", {**tree, **more}), (tmp_path / "fewer", removed)):
        new = snapshot_of(changed, 8)
        delta = delta_between(base, new)
        assert delta is not None
        parts = write_aside(path, partial(apply_delta, base, delta, "delta"))
        assert path.read_bytes() == bytes(new.content)
        assert sum(part.nodes.stop - part.nodes.start for part in parts) < len(new) / 4
        Snapshot.open(path).verify(parts)


def test_one_more_file_is_a_delta_of_less_than_a_kilobyte() -> None:
    tree = {b"d%02d/f%05d" % (number % 40, number): file_of((0, number, 1)) for number in range(8000)}
    base, new = snapshot_of(tree, 7), snapshot_of({**tree, b"d07/new": file_of((1, 0, 9))}, 8)
    delta = delta_between(base, new)
    assert delta is not None and len(encode_delta(delta)) < 1024


def test_chunks_that_are_gone_are_removed() -> None:
    tree = {b"a": file_of((2, 0, 5)), b"b": file_of((2, 5, 5))}
    base, new = snapshot_of(tree, 7), snapshot_of(tree, 8, range(1, 4))
    assert carried(base, new) == bytes(new.content)


def test_snapshots_of_two_datasets_have_no_delta() -> None:
    table = entry_table(SAMPLE)
    other = replace(table, dataset=table.dataset._replace(name="others"))
    base, new = (Snapshot(build_snapshot(each), SOURCE) for each in (table, other))
    assert delta_between(base, new) is None


def test_a_delta_for_another_snapshot_is_refused() -> None:
    base, new = snapshot_of(SAMPLE, 7), snapshot_of({}, 8)
    delta = delta_between(base, new)
    assert delta is not None
    with pytest.raises(Damaged, match="delta: it is for another snapshot"):
        with_delta(new, delta)


def test_targets_of_links_whose_sum_overflows_are_refused() -> None:
    base = snapshot_of({}, 7)
    new = snapshot_of({b"l%d" % number: SAMPLE[b"latest"] for number in range(3)}, 8)
    delta = delta_between(base, new)
    assert delta is not None
    sizes = delta.columns["sizes"].copy()
    links = np.flatnonzero(delta.columns["modes"] & 0o170000 == 0o120000)
    sizes[links] = [2**63 - 1, 2**63 - 1, len(delta.columns["links"]) + 2]
    with pytest.raises(Damaged, match="column 'sizes': a target is too long"):
        with_delta(base, replace(delta, columns={**delta.columns, "sizes": sizes}))


def test_extents_of_a_folder_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would belong to no file, and no other number tells: the folder is the last of its block."""
    monkeypatch.setattr(splicing, "BLOCK_NODES", 2)
    base = snapshot_of({b"a": Entry(Op.DIRECTORY, 0o755), b"f": file_of()}, 7)
    new = snapshot_of({b"a": Entry(Op.DIRECTORY, 0o700), b"f": file_of((0, 0, 5))}, 8)
    delta = delta_between(base, new)
    assert delta is not None and delta.columns["nodes"].tolist() == [1, 2]
    counts, sizes = np.array([1, 0], np.uint32), np.zeros(2, np.uint64)
    wrong = replace(delta, columns={**delta.columns, "extent_counts": counts, "sizes": sizes})
    with pytest.raises(Damaged, match="column 'extent_counts': not a file"):
        with_delta(base, wrong)


NAMES = (b"a", b"b", b"c")
ENTRIES = (
    SAMPLE[b"latest"],
    Entry(Op.SYMLINK, 0o777, target=b"x"),
    Entry(Op.DIRECTORY, 0o755),
    file_of(),
    file_of((0, 0, 5)),
    file_of((1, 0, 9), (2, 0, 9)),
)
LISTS = ("removed", "removed_chunks", "links", "paths")
LIMITS = (0, 1, 2, 3, 8, 0o040755, 0o100644, 0o120777, PATH_BYTES_MAX, 1 << 31)


def changed_tree(chance: Random, tree: Tree, most: int) -> Tree:
    changed = dict(tree)
    for _ in range(chance.randint(0, most)):
        changed[b"/".join(chance.choices(NAMES, k=chance.randint(1, 3)))] = chance.choice(ENTRIES)
    for path in chance.sample(sorted(changed), min(len(changed), chance.randint(0, most // 2))):
        del changed[path]
    return changed


def with_misplaced_slots(chance: Random, snapshot: Snapshot) -> Snapshot:
    """Each node is in the index once, as `verify` asks, but anywhere."""
    slots = snapshot.column("hash_slots")
    entries, places = slots[slots != 0], np.zeros(len(slots) + chance.randint(0, 4), np.uint64)
    places[chance.sample(range(len(places) - 1), len(entries))] = entries
    return Snapshot(with_columns(bytes(snapshot.content), hash_slots=places), SOURCE)


def mutated(chance: Random, delta: Delta) -> Delta:
    """With up to two changes: elements that are lost, replaced, or exchanged, so that sums stay."""
    columns = {name: column.copy() for name, column in delta.columns.items()}
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        name = chance.choice([name for name, column in columns.items() if len(column) or name == "removed"])
        column = columns[name]
        if name == "removed":
            columns[name] = np.array(sorted({*column.tolist(), chance.randint(0, 12)}), column.dtype)
        elif column.dtype.kind == "V":
            continue
        elif (name in LISTS and chance.random() < 0.5) or chance.random() < 0.05:
            columns[name] = np.delete(column, chance.randrange(len(column)))
        elif chance.random() < 0.5:
            limit = np.iinfo(column.dtype).max
            column[chance.randrange(len(column))] = chance.choice([*LIMITS, limit]) % (limit + 1)
        else:
            one, other = chance.choices(range(len(column)), k=2)
            column[[one, other]] = column[[other, one]]
    return replace(delta, columns=columns)


def hostile_deltas(chance: Random) -> Iterator[tuple[Snapshot, Delta, bool]]:
    """Bases that `verify` accepts, and what a hostile server could sign for them: deltas of other bases, whose parts
    agree with each other, and mutated ones. Also whether the index of the base is that of its paths.
    """
    while True:
        tree = changed_tree(chance, {}, 14)
        base, new = snapshot_of(tree, 7), snapshot_of(changed_tree(chance, tree, 5), 8)
        other = base if chance.random() < 0.4 else snapshot_of(changed_tree(chance, tree, 4), 7)
        is_right = chance.random() < 0.7
        base = base if is_right else with_misplaced_slots(chance, base)
        delta = delta_between(other, new)
        assert delta is not None
        for _ in range(4):
            yield base, mutated(chance, replace(delta, base_digest=base.digest)), is_right


def test_the_changed_parts_fail_where_the_whole_snapshot_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """No delta makes a snapshot that `verify` accepts by its changed parts and refuses as a whole, nor another index
    than that of its paths.
    """
    chance, outcomes = Random(20_261_128), Counter[str]()
    for base, delta, is_right in islice(hostile_deltas(chance), 800):
        monkeypatch.setattr(splicing, "BLOCK_NODES", chance.choice([1, 2, 3, 5, 64]))
        monkeypatch.setattr(splicing, "CHANGED_NODES", chance.choice([1, 2, 64]))
        monkeypatch.setattr(block_starts, "_SCANNED", chance.choice([1, 2, 64]))
        monkeypatch.setattr(hash_index, "WINDOW_SLOTS", chance.choice([1, 2, 5, 64]))
        monkeypatch.setattr(hash_index, "WINDOW_SLOTS_MAX", chance.choice([1, 3, 64]))
        monkeypatch.setattr(hash_index, "BLOCK_SLOTS", chance.choice([1, 3, 64]))
        file = BytesIO()
        try:
            parts = apply_delta(base, delta, "delta", file)
            made = Snapshot(file.getvalue(), SOURCE)
        except Damaged:
            outcomes["do not fit"] += 1
            continue
        is_refused = _is_refused(made, parts)
        assert _is_refused(made, None) == is_refused
        outcomes["refused" if is_refused else "accepted"] += 1
        if is_right and not is_refused:
            paths = [made.path(node) for node in range(len(made))]
            assert np.array_equal(made.column("hash_slots"), hash_slots(paths, DATASET_ID))
    assert min(outcomes.values()) > 50 and len(outcomes) == 3, outcomes


def _is_refused(snapshot: Snapshot, parts: Sequence[Part] | None) -> bool:
    try:
        snapshot.verify(parts)
    except Damaged:
        return True
    return False


@settings(max_examples=120)
@given(st.sampled_from(sorted(COLUMN_TYPES)), st.integers(0, 200), st.integers(0, 1 << 64), st.booleans())
def test_a_wrong_column_is_an_error_or_another_digest(
    name: str, place: int, value: int, is_cut: bool
) -> None:
    tree = {**SAMPLE, b"link": SAMPLE[b"latest"]}
    new = snapshot_of({**tree, b"train/dog": file_of((1, 0, 9), (2, 0, 9)), b"l2": SAMPLE[b"latest"]}, 8)
    base = snapshot_of(tree, 7, range(2))
    delta = delta_between(base, new)
    assert delta is not None
    raw = bytearray(np.ascontiguousarray(delta.columns[name], COLUMN_TYPES[name]).tobytes())
    size = COLUMN_TYPES[name].itemsize
    if is_cut or not raw:
        raw = raw[:-size] if raw else bytearray(size)
    else:
        raw[place % len(raw)] ^= 1 + value % 255
    wrong = replace(delta, columns={**delta.columns, name: np.frombuffer(bytes(raw), COLUMN_TYPES[name])})
    try:
        content = with_delta(base, wrong)
        made = Snapshot(content, SOURCE)
    except Damaged as error:  # of a header too, such as that of files which are too large together
        assert str(error).startswith(("delta: ", f"{SOURCE}: "))
    else:
        assert made.digest != delta.digest or content == bytes(new.content)
