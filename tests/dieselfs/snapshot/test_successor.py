"""The next snapshot, made from the last one and the live entries of the paths that changed, is that of all entries."""

from contextlib import closing, suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dieselfs.chunk.format import Op
from dieselfs.errors import Damaged
from dieselfs.snapshot import splicing
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.delta import delta_along
from dieselfs.snapshot.delta_format import Delta, decode_delta, encode_delta
from dieselfs.snapshot.encoding import unsigned
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.successor import NextSnapshot, with_folders
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from tests.support.metadata_chunks import DATASET, DATASET_ID, Put, apply, chunk_id
from tests.support.snapshots import SOURCE, in_memory, with_delta

_names = st.sampled_from([b"a", b"b", b"b!", b"c", b"z"])
_paths = st.lists(_names, max_size=4).map(b"/".join)
_times_ns = st.integers(-3, 9)


@st.composite
def puts(draw: st.DrawFn) -> Put:
    path, time_ns = draw(_paths), draw(_times_ns)
    kind = (
        draw(st.sampled_from(["file", "file", "file", "folder", "link", "delete", "delete"]))
        if path
        else "folder"
    )
    if kind == "folder":
        return Put(path, 0, Op.DIRECTORY, mode=draw(st.sampled_from([0o755, 0o700])), mtime_ns=time_ns)
    if kind == "link":
        return Put(path, 0, Op.SYMLINK, target=b"t" * draw(st.integers(1, 9)), mtime_ns=time_ns)
    if kind == "delete":
        return Put(path, 0, Op.DELETE)
    return Put(path, 0, size=draw(st.sampled_from([0, 1, 7])), mtime_ns=time_ns)


chunks = st.lists(
    st.lists(puts(), min_size=1, max_size=6, unique_by=lambda put: put.path), min_size=1, max_size=5
)


def store(metadata: SqliteMetadata, numbered: list[list[Put]], first: int) -> None:
    for number, of_chunk in enumerate(numbered, first):
        versioned = [
            Put(
                put.path,
                100 * number + place,
                put.op,
                put.size,
                mode=put.mode,
                mtime_ns=put.mtime_ns,
                target=put.target,
            )
            for place, put in enumerate(of_chunk, 1)
        ]
        apply(metadata, versioned, chunk_id(number))


def of_all(metadata: SqliteMetadata) -> bytes:
    return build_snapshot(metadata.entry_table(DATASET_ID))


def since(metadata: SqliteMetadata, base: Snapshot, changed: list[list[Put]]) -> tuple[bytes, Delta]:
    paths = with_folders(put.path for of_chunk in changed for put in of_chunk)
    live = {path: metadata.lookup(DATASET_ID, path) for path in paths}
    made = NextSnapshot(base, metadata.dataset(DATASET), metadata.chunks(DATASET_ID), live)
    written = in_memory(lambda file: made.write(file, unsigned))
    delta = decode_delta(encode_delta(made.delta(Snapshot(written, SOURCE))), "delta")
    assert with_delta(base, delta) == written
    return written, delta


@settings(max_examples=150)
@given(chunks, chunks)
@example([[Put(b"a", 0, size=3)]], [[Put(b"a/b/c", 0, size=1)]])  # folders hide a file
@example([[Put(b"a", 0, size=3), Put(b"a/b/c", 0, size=1)]], [[Put(b"a/b/c", 0, Op.DELETE)]])  # it comes back
@example(
    [[Put(b"a/z", 0), Put(b"b!/a", 0), Put(b"c", 0, Op.DIRECTORY)]], [[Put(b"b/x/y", 0), Put(b"c/d", 0)]]
)
def test_it_is_that_of_all_entries_to_the_byte(before: list[list[Put]], after: list[list[Put]]) -> None:
    with closing(SqliteMetadata(":memory:")) as metadata:
        metadata.create_dataset(DATASET, DATASET_ID)
        store(metadata, before, 1)
        base = Snapshot(of_all(metadata), SOURCE)
        store(metadata, after, 1 + len(before))
        made, _ = since(metadata, base, after)
        with pytest.MonkeyPatch.context() as small:
            small.setattr(splicing, "BLOCK_NODES", 3)
            small.setattr(splicing, "_EXTENTS_AT_ONCE", 2)
            assert since(metadata, base, after)[0] == made
        Snapshot(made, SOURCE).verify()
        assert made == of_all(metadata)


@settings(max_examples=100)
@given(chunks, st.lists(chunks, min_size=2, max_size=4))
@example(
    [[Put(b"a/b", 0, size=3)]], [[[Put(b"a/b", 0, Op.DELETE)]], [[Put(b"a/b", 0, size=3), Put(b"c", 0)]]]
)
def test_a_delta_along_several_generations_leads_to_the_last(
    before: list[list[Put]], generations: list[list[list[Put]]]
) -> None:
    """Added, removed, renamed to and fro: what comes back is removed and added."""
    with closing(SqliteMetadata(":memory:")) as metadata:
        metadata.create_dataset(DATASET, DATASET_ID)
        store(metadata, before, 1)
        number = 1 + len(before)
        base = last = Snapshot(of_all(metadata), SOURCE)
        steps = []
        for changed in generations:
            store(metadata, changed, number)
            number += len(changed)
            made, step = since(metadata, last, changed)
            assert made == of_all(metadata)
            steps.append(step.columns)
            last = Snapshot(made, SOURCE)
        delta = encode_delta(delta_along(base, steps, last))
        assert with_delta(base, decode_delta(delta, "delta")) == last.content
        with suppress(Damaged):
            delta_along(base, steps[1:], last)


def test_changes_that_do_not_fit_are_refused() -> None:
    with closing(SqliteMetadata(":memory:")) as metadata:
        metadata.create_dataset(DATASET, DATASET_ID)
        store(metadata, [[Put(b"a/b", 0, size=5)]], 1)
        base = Snapshot(of_all(metadata), SOURCE)
        live = {path: metadata.lookup(DATASET_ID, path) for path in with_folders([b"a/b"])}
        with pytest.raises(Damaged, match="do not fit"):
            NextSnapshot(base, metadata.dataset(DATASET), [], live)


def test_the_folders_above() -> None:
    assert with_folders([b"a/b/c", b"a/d"]) == {b"", b"a", b"a/b", b"a/b/c", b"a/d"}
    assert with_folders([]) == {b""}
