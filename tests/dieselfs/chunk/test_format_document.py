"""`docs/reference/chunk-format.md` says what the code does."""

import re

import numpy as np

from dieselfs import limits
from dieselfs.chunk.format import (
    COLUMN_TYPES,
    MAGIC,
    PREAMBLE_BYTES,
    Op,
    decode_chunk,
    decode_preamble,
    decode_stored,
)
from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk.source import AttachedSource
from tests.support.chunks import (
    CHUNK_ID,
    DATASET_ID,
    FIRST_VERSION,
    MEOWS,
    attached_chunk,
    chunk_object,
    sample_chunk,
    sample_fields,
)
from tests.support.documents import DOCUMENTS, hex_dump, table

DOCUMENT = "reference/chunk-format.md"


def test_the_hex_dump_is_what_the_builder_makes() -> None:
    assert hex_dump(DOCUMENT).hex(" ") == sample_chunk().hex(" ")


def test_the_hex_dump_decodes_to_what_the_text_says() -> None:
    preamble, header, payload = decode_chunk(hex_dump(DOCUMENT), DOCUMENT, CHUNK_ID, DATASET_ID)
    assert chunk_name(preamble.chunk_id) in (DOCUMENTS / DOCUMENT).read_text(encoding="utf-8")
    assert header.dataset == "pets"
    assert header.paths == [b"train", b"train/cat.txt", b"train/empty", b"latest", b"train/dog.txt"]
    assert header.ops.tolist() == [Op.DIRECTORY, Op.FILE, Op.FILE, Op.SYMLINK, Op.DELETE]
    assert header.versions.tolist() == list(range(FIRST_VERSION, FIRST_VERSION + 5))
    assert (header.target(3), bytes(payload)) == (b"train/cat.txt", b"meow\n")
    assert header.digests[1].tobytes().hex() in (DOCUMENTS / DOCUMENT).read_text(encoding="utf-8")


def test_the_attached_example_is_what_the_builder_makes() -> None:
    assert hex_dump(DOCUMENT, 1).hex(" ") == attached_chunk().hex(" ")
    _, header = decode_stored(hex_dump(DOCUMENT, 1), DOCUMENT, CHUNK_ID, DATASET_ID)
    source = AttachedSource(b"/data/pets.tar", 10_240, "mtime_ns=1600000000000000000", 512)
    assert header.source == source
    assert header.paths == [b"train", b"train/cat.txt", b"train/dog.txt"]
    fields = [name.strip("`") for name, _, _ in table(DOCUMENT, "### Attached chunks")]
    assert fields == list(source.fields())


def test_the_compressed_example_decodes_to_what_the_text_says() -> None:
    data = hex_dump(DOCUMENT, 2)
    preamble, header = decode_stored(data, DOCUMENT, CHUNK_ID, DATASET_ID)
    frames = header.frames
    assert frames is not None and b"".join(frames.plain(data[preamble.payload_start :], DOCUMENT)) == MEOWS
    assert (preamble.payload_length, preamble.compressed_length) == (len(MEOWS), 21)
    fields = [name.strip("`") for name, _, _ in table(DOCUMENT, "### Compressed chunks")]
    assert fields == list(frames.fields())


def test_the_table_of_the_preamble() -> None:
    rows = [(int(offset), int(size)) for offset, size, _, _ in table(DOCUMENT, "### Preamble")]
    ends = [offset + size for offset, size in rows]
    assert [offset for offset, _ in rows] == [0, *ends[:-1]]
    assert ends[-1] == PREAMBLE_BYTES
    assert f"`{MAGIC.hex(' ')}`" in table(DOCUMENT, "### Preamble")[0][3]
    data = sample_chunk()
    preamble = decode_preamble(data, DOCUMENT)
    values = {
        name: data[int(at) : int(at) + int(size)] for at, size, name, _ in table(DOCUMENT, "### Preamble")
    }
    assert int.from_bytes(values["header length"], "little") == preamble.header_length
    assert int.from_bytes(values["payload length"], "little") == preamble.payload_length
    assert values["payload digest"] == preamble.payload_digest
    assert values["header digest"] == preamble.header_digest
    assert data[24:40] == preamble.chunk_id


def test_the_table_of_the_header() -> None:
    rows = table(DOCUMENT, "### Header")
    assert [name.strip("`") for name, _, _, _ in rows] == list(sample_fields())
    elements = {name.strip("`"): element for name, kind, element, _ in rows if kind == "column"}
    assert elements == {
        "path_ends": "u32",
        **{name: _element(dtype) for name, dtype in COLUMN_TYPES.items()},
    }
    decode_chunk(chunk_object(dict(reversed(sample_fields().items()))), "fields in any order")


def _element(dtype: np.dtype[np.generic]) -> str:
    return f"{dtype.itemsize} bytes" if dtype.kind == "V" else f"{dtype.kind}{8 * dtype.itemsize}"


def test_the_operations() -> None:
    (meaning,) = [meaning for name, _, _, meaning in table(DOCUMENT, "### Header") if name == "`ops`"]
    numbers = {word: int(number) for number, word in re.findall(r"(\d) (\w+)", meaning)}
    assert numbers == {"delete": Op.DELETE, "file": Op.FILE, "folder": Op.DIRECTORY, "symbolic": Op.SYMLINK}


def test_the_limits_are_those_of_the_code() -> None:
    stated = {name.strip("`"): int(value) for name, value, _ in table(DOCUMENT, "## Limits")}
    assert stated == {name: getattr(limits, name) for name in stated}
    in_code = {name for name in vars(limits) if name.startswith("CHUNK_")} - {"CHUNK_OBJECT_BYTES_MAX"}
    assert in_code <= set(stated)
