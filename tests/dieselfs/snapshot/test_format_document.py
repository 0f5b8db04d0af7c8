"""`docs/reference/snapshot-format.md` says what the code does."""

import numpy as np
from xxhash import xxh3_64_intdigest

from dieselfs import limits
from dieselfs.snapshot.delta_format import COLUMN_TYPES
from dieselfs.snapshot.format import (
    HEADER_BYTES_MAX,
    MAGIC,
    PREAMBLE_BYTES,
    SECTION_TYPES,
    SnapshotHeader,
)
from dieselfs.snapshot.hash_index import hash_seed
from dieselfs.snapshot.reader import Snapshot
from tests.support.documents import DOCUMENTS, table
from tests.support.snapshots import DATASET_ID, SAMPLE, SOURCE, snapshot_bytes

DOCUMENT = "reference/snapshot-format.md"
DATA = snapshot_bytes(SAMPLE)
SNAPSHOT = Snapshot(DATA, SOURCE)


def test_the_table_of_the_preamble() -> None:
    rows = table(DOCUMENT, "### Preamble")
    places = {name: (int(offset), int(offset) + int(size)) for offset, size, name, _ in rows}
    ends = [end for _, end in places.values()]
    assert [start for start, _ in places.values()] == [0, *ends[:-1]]
    assert ends[-1] == PREAMBLE_BYTES
    assert f"`{MAGIC.hex(' ')}`" in rows[0][3]
    assert f"at most {HEADER_BYTES_MAX}" in rows[3][3]
    values = {name: int.from_bytes(DATA[start:end], "little") for name, (start, end) in places.items()}
    header_end = PREAMBLE_BYTES + values["header length"]
    assert values["file length"] == len(DATA)
    assert values["header checksum"] == xxh3_64_intdigest(DATA[PREAMBLE_BYTES:header_end])
    assert DATA[32:64] == SNAPSHOT.digest


def test_the_fields_of_the_header() -> None:
    fields = [name.strip("`") for name, _, _ in table(DOCUMENT, "### Header")]
    others = ("digest", "signer", "signature", "file_length", "is_encrypted")
    assert fields == [name for name in SnapshotHeader.__slots__ if name not in others]


def test_the_table_of_the_sections() -> None:
    rows = table(DOCUMENT, "### Sections")
    stated = {name.strip("`"): element for name, element, _, _ in rows}
    assert list(stated.items()) == [
        (name, f"{dtype.itemsize} bytes" if dtype.kind == "V" else f"{dtype.kind}{8 * dtype.itemsize}")
        for name, dtype in SECTION_TYPES.items()
    ]
    header = SNAPSHOT.header
    counts = {
        "nodes": header.nodes,
        "extents": header.extents,
        "links": header.links,
        "chunks": header.chunks,
        "16 * chunks": 16 * header.chunks,
    }
    for name, _, count, _ in rows:
        if count in counts:
            assert len(SNAPSHOT.column(name.strip("`"))) == counts[count]


def test_the_limits_are_those_of_the_code() -> None:
    for name, value, _ in table(DOCUMENT, "## Limits"):
        assert getattr(limits, name.strip("`")) == int(value)


def test_where_the_sections_of_the_example_lie() -> None:
    stated = [
        (name.strip("`"), int(offset), int(length))
        for name, offset, length in table(DOCUMENT, "### Where the sections lie")
    ]
    sections = SNAPSHOT.header.sections
    assert stated == [(name, sections[name].offset, sections[name].length) for name in SECTION_TYPES]


def test_the_nodes_of_the_example() -> None:
    columns = ("path_ends", "name_lengths", "parents", "modes", "sizes", "mtimes_ns", "firsts", "counts")
    rows = table(DOCUMENT, "### The nodes")
    assert len(rows) == len(SNAPSHOT)
    for row, (node, path, *numbers) in enumerate(rows):
        assert (int(node), path.strip("`").encode()) == (row, SNAPSHOT.path(row))
        for name, number in zip(columns, numbers, strict=True):
            assert int(number, 8 if name == "modes" else 10) == SNAPSHOT.column(name)[row]


def test_the_extents_of_the_example() -> None:
    columns = ("extent_chunks", "extent_offsets", "extent_lengths", "extent_places")
    rows = table(DOCUMENT, "### The extents")
    numbers = np.array([[int(cell) for cell in row[1:5]] for row in rows])
    assert numbers.T.tolist() == [SNAPSHOT.column(name).tolist() for name in columns]
    digests = [bytes.fromhex(row[5].strip("`")) for row in rows]
    assert digests == SNAPSHOT.column("extent_digests").tolist()


def test_the_slots_of_the_example() -> None:
    slots = SNAPSHOT.column("hash_slots").tolist()
    stated = {int(slot): content.strip("`") for slot, content, _, _ in table(DOCUMENT, "### The taken slots")}
    assert stated == {slot: f"{content:016x}" for slot, content in enumerate(slots) if content}
    for slot, content, node, digest in table(DOCUMENT, "### The taken slots"):
        expected = xxh3_64_intdigest(SNAPSHOT.path(int(node)), hash_seed(DATASET_ID))
        assert digest.strip("`") == f"{expected:016x}"
        assert content.strip("`") == f"{expected:016x}"[8:] + f"{int(node) + 1:08x}"
        assert int(slot) >= expected >> (64 - SNAPSHOT.header.hash_bits)


def test_the_columns_of_deltas() -> None:
    words = {"u8": 1, "u32": 4, "u64": 8, "i64": 8, "16 bytes": 16, "32 bytes": 32}
    stated = {name.strip("`"): words[element] for name, element, *_ in _delta_columns()}
    assert stated == {name: dtype.itemsize for name, dtype in COLUMN_TYPES.items()}


def _delta_columns() -> list[list[str]]:
    """The second table below the heading: the first one is the preamble."""
    text = (DOCUMENTS / DOCUMENT).read_text(encoding="utf-8").partition("\n## Deltas\n")[2]
    lines = text.partition("| Column |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_digest_of_the_example() -> None:
    text = (DOCUMENTS / DOCUMENT).read_text(encoding="utf-8")
    assert f"\n    {SNAPSHOT.digest.hex()}\n" in text
