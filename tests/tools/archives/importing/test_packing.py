"""Which ranges of sources become chunks: every byte of a record is in one, and chunks keep their size."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.attached.local_file import LocalFile
from dieselfs.chunk.builder import SealedChunk
from dieselfs.chunk.cost import check_cost
from dieselfs.chunk.format import decode_chunk, decode_stored
from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing.attach import GAP_BYTES_MAX, Attaching, Piece, runs
from dieselfs_tools.archives.importing.record import COPIED_BYTES_MAX, FOLDER_MODE, Place, Range, Record
from tests.support.chunks import CHUNK_ID, DATASET_ID

CONTENT = os.urandom(300_000)
CHUNK_BYTES = 50_000


def record(name: bytes, offset: int, size: int, crc: int | None = None) -> Record:
    made = Record(name, 5, size, place=Place("a.tar", offset, crc))
    made.path = name
    return made


class Rig:
    """Attaches ranges of a file, and has the chunks that come of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "a.tar"
        self.file.write_bytes(CONTENT)
        self.chunks: list[SealedChunk] = []
        self.failures: list[tuple[bytes, str, bool]] = []
        self.sources: dict[str, LocalFile] = {}
        self.attaching = Attaching(
            lambda chunk: self.chunks.append(chunk) if chunk.entries else None,
            lambda count: 77,
            self.opened,
            lambda source, reason, is_damaged=False: self.failures.append((source, reason, is_damaged)),
            CHUNK_BYTES,
        )

    def opened(self, name: str) -> LocalFile:
        if name not in self.sources:
            self.sources[name] = LocalFile(os.fsencode(self.file.parent / name), lambda _: None)
        return self.sources[name]

    def close(self) -> None:
        for source in self.sources.values():
            source.close()

    def attach(self, *records: Record) -> dict[bytes, bytes]:
        """What the chunks have of each path, with the payloads from where the chunks say that they are."""
        self.attaching.add(records)
        self.attaching.finish()
        found: dict[bytes, bytes] = {}
        for chunk in self.chunks:
            head, payload = chunk.encode(CHUNK_ID, "pets", DATASET_ID, 1)
            if chunk.source is not None:
                assert payload == b""
                payload = CONTENT[chunk.source.offset :][: len(chunk.payload)]
            _, header, content = decode_chunk(head + payload, "made")
            for path, offset, length in zip(header.paths, header.offsets, header.lengths, strict=True):
                found[path] = found.get(path, b"") + bytes(content[offset : offset + length])
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 250_000), st.integers(1, 60_000)), max_size=40)
)
def test_every_record_lies_in_its_run(rows: list[tuple[str, int, int]]) -> None:
    placed = [
        Piece(record(b"%d" % number, offset, size), Range(file, offset, size))
        for number, (file, offset, size) in enumerate(rows)
    ]
    seen = []
    for run in runs(placed, CHUNK_BYTES):
        assert run.end - run.begin <= 2 * CHUNK_BYTES + GAP_BYTES_MAX or len(run.pieces) == 1
        end = run.begin
        for one, where, *_ in run.pieces:
            assert where.file == run.file and run.begin <= where.offset <= end + GAP_BYTES_MAX
            end = max(end, where.offset + where.length)
            seen.append(one.name)
        assert end == run.end
    assert sorted(seen) == sorted(piece.record.name for piece in placed)


def test_members_with_the_bytes_between_them(rig: Rig) -> None:
    members = [record(b"%03d" % n, 512 + n * 1024, 700) for n in range(200)]
    found = rig.attach(*reversed(members))
    assert found == {one.path: CONTENT[512 + n * 1024 :][:700] for n, one in enumerate(members)}
    assert len(rig.chunks) == 4 and all(chunk.source for chunk in rig.chunks)


def test_overlaps_and_large_gaps(rig: Rig) -> None:
    found = rig.attach(
        record(b"a", 0, 5000), record(b"b", 1000, 100), record(b"c", 1000, 100), record(b"far", 200_000, 10)
    )
    assert found == {
        b"a": CONTENT[:5000],
        b"b": CONTENT[1000:1100],
        b"c": CONTENT[1000:1100],
        b"far": CONTENT[200_000:200_010],
    }
    assert [chunk.source.offset for chunk in rig.chunks if chunk.source] == [0, 200_000]


def test_records_that_share_bytes_are_in_chunks_that_servers_take(rig: Rig) -> None:
    """As the hard links of a tar file do."""
    found = rig.attach(*(record(b"%d" % number, 1000, 5000) for number in range(5)))
    assert found == {b"%d" % number: CONTENT[1000:6000] for number in range(5)}
    for chunk in rig.chunks:
        data = chunk.encode(CHUNK_ID, "pets", DATASET_ID, 1)[0]
        check_cost(*decode_stored(data, "made"), "made")
    assert [len(chunk.entries) for chunk in rig.chunks] == [2, 2, 1]


def test_a_record_larger_than_a_chunk_spans_several(rig: Rig) -> None:
    crc = crc32(CONTENT[1000:161_000])
    found = rig.attach(record(b"big", 1000, 160_000, crc), record(b"small", 170_000, 10))
    assert found == {b"big": CONTENT[1000:161_000], b"small": CONTENT[170_000:170_010]}
    assert [len(chunk.payload) for chunk in rig.chunks] == [50_000, 50_000, 50_000, 10_000, 10]


def test_records_in_several_pieces(rig: Rig) -> None:
    """Of a grid of 3 chunks with 2 rows each; the chunks of the first row are larger than those of the dataset."""
    (rig.file.parent / "b").write_bytes(CONTENT[::-1])
    made = []
    for row in range(2):
        places = [
            Range("b", row * 60_000, 60_000),
            Range("a.tar", 5000 + row * 20, 20),
            Range("b", 200_000, 5),
        ]
        made.append(Record(b"%d" % row, 5, 60_025, pieces=places))
        made[-1].path = made[-1].name
    rig.attaching.add([record(b"whole", 4990, 10), *made])
    rig.attaching.finish()
    found: dict[bytes, list[tuple[int, int, bytes]]] = {}
    for chunk in rig.chunks:
        for path, _, _, _, size, place, offset, length, _, version in chunk.entries:
            found.setdefault(path, []).append((place, version, chunk.payload[offset : offset + length]))
            assert size == (10 if path == b"whole" else 60_025)
    assert found.pop(b"whole") == [(0, 0, CONTENT[4990:5000])]
    for row, (path, pieces) in enumerate(sorted(found.items())):
        assert path == made[row].path and {version for _, version, _ in pieces} == {77 + row}
        content = b""
        for place, _, part in sorted(pieces):
            assert place == len(content)
            content += part
        expected = CONTENT[::-1][row * 60_000 :][:60_000] + CONTENT[5000 + row * 20 :][:20]
        assert content == expected + CONTENT[::-1][200_000:200_005]


def test_checksums_of_the_source_are_compared(rig: Rig) -> None:
    wrong = record(b"wrong", 1000, 160_000, 7)
    found = rig.attach(record(b"good", 0, 100, crc32(CONTENT[:100])), record(b"bad", 200, 100, 1), wrong)
    assert found == {b"good": CONTENT[:100], b"wrong": CONTENT[1000:151_000]}  # never complete
    assert [(name, is_damaged) for name, _, is_damaged in rig.failures] == [
        (b": bad", True),
        (b": wrong", True),
    ]


def test_what_no_range_has_is_copied_if_it_is_small(rig: Rig) -> None:
    small, large = bytes(COPIED_BYTES_MAX), bytes(COPIED_BYTES_MAX + 1)
    rows = [Record.of(b"small", small, 5), Record.of(b"large", large, 5), Record.of(b"empty", b"", 5)]
    rows += [Record(b"folder", 5, mode=FOLDER_MODE), Record(b"packed", 5, 10)]
    for row in rows:
        row.path = row.name
    assert rig.attach(*rows) == {b"small": small, b"empty": b"", b"folder": b""}
    assert [name for name, _, _ in rig.failures] == [b": large", b": packed"]
    assert all("dlcmd import" in reason for _, reason, _ in rig.failures)


def test_a_source_that_changes_meanwhile_ends_it(rig: Rig) -> None:
    rig.attaching.add([record(b"a", 0, 100)])
    os.utime(rig.file, ns=(0, 1))
    with pytest.raises(Damaged, match="changed while it was read"):
        rig.attaching.finish()
