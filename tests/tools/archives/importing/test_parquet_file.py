"""Rows of Parquet, as `pyarrow` and Hugging Face `datasets` write them."""

import base64
import datetime
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.raw_array import raw_form
from dieselfs_tools.archives.importing.naming import Template
from dieselfs_tools.archives.importing.parquet_file import BATCH_ROWS, rows_at_once
from tests.support.documents import REPOSITORY
from tests.support.importing import contents, read_all

pyarrow = pytest.importorskip("pyarrow", reason="the extra 'import' is not installed")

IMAGES = [(REPOSITORY / f"tests/samples/images/{n}.jpg").read_bytes() for n in range(4)]


def write(path: Path, columns: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    import pyarrow.parquet

    table = pyarrow.table(columns).replace_schema_metadata(metadata)
    pyarrow.parquet.write_table(table, path, row_group_size=3)
    return path


def test_images_of_hugging_face(tmp_path: Path) -> None:
    features = {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}, "image": {"_type": "Image"}}
    images = [{"bytes": content, "path": f"{n}.JPEG" if n else None} for n, content in enumerate(IMAGES)]
    path = write(
        tmp_path / "train.parquet",
        {"image": images, "label": [0, 1, 1, None], "text": ["a", "ä", None, ""]},
        {"huggingface": json.dumps({"info": {"features": features}})},
    )
    found = contents(path)
    assert found.pop("00000000.jpg") == IMAGES[0]
    assert [found.pop(f"0000000{n}.JPEG") for n in (1, 2, 3)] == IMAGES[1:]
    assert json.loads(found.pop("00000001.json")) == {"label": 1, "text": "ä"}
    assert len(found) == 3
    template = Template("{label}/{path}")
    beside = next(record for record in read_all(path) if record.name == b"00000001.json")
    assert beside.fields["path"] == "1.json"
    record = next(record for record in read_all(path) if record.name == b"00000001.JPEG")
    assert template.fill(record.name, b"", 0, record.fields) == b"dog/1.JPEG"


@pytest.mark.parametrize(
    "options", [{"use_dictionary": False}, {}, {"data_page_size": 100, "data_page_version": "2.0"}]
)
def test_values_are_found_in_the_file(tmp_path: Path, options: dict[str, Any]) -> None:
    import pyarrow.parquet

    values = [*IMAGES, None, IMAGES[0], b"", *IMAGES]
    table = pyarrow.table({"a": values, "b": values[::-1], "n": [*range(len(values))]})
    pyarrow.parquet.write_table(
        table, tmp_path / "x.parquet", row_group_size=6, compression="none", **options
    )
    imported = contents(tmp_path / "x.parquet")
    records = read_all(tmp_path / "x.parquet", is_in_place=True)  # with the content at their places
    assert {record.name.decode(): record.content for record in records} == imported
    assert all(record.place is not None or record.name.endswith(b".json") for record in records)


def test_what_is_not_attached(tmp_path: Path) -> None:
    import pyarrow.parquet

    path = write(tmp_path / "x.parquet", {"image": IMAGES})
    with pytest.raises(
        InvalidInput,
        match=r"no column of bytes is uncompressed; .* or attach its numbers with --whole",
    ):
        read_all(path, is_in_place=True)
    table, form = pyarrow.table({"image": IMAGES}), {"image": "DELTA_BYTE_ARRAY"}
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False, column_encoding=form)
    assert [record.place for record in read_all(path, is_in_place=True)] == [None] * len(IMAGES)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_numbers_in_place_are_those_of_pyarrow(tmp_path: Path, version: str) -> None:
    import pyarrow.parquet

    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {
        "seen": rng.integers(-9, 9, 3000),
        "label": rng.integers(0, 9, 3000, np.uint32),
        "score": rng.random(3000),
        "half": rng.random(3000).astype(np.float16),
        "text": [*map(str, range(3000))],
    }
    table, path = pyarrow.table(columns), tmp_path / "x.parquet"
    fields = [field.with_nullable(field.name != "label") for field in table.schema]
    pyarrow.parquet.write_table(
        table.cast(pyarrow.schema(fields)),
        path,
        row_group_size=2000,
        data_page_size=4000,
        data_page_version=version,
        compression="none",
        use_dictionary=False,
    )
    found = contents(path, is_in_place=True, is_by_row=False)
    assert json.loads(found.pop("00000007.json")) == {"text": "7"}
    for name, values in pyarrow.parquet.read_table(path).drop(["text"]).to_pydict().items():
        parts = sorted(part for part in found if part.startswith(f"{name}/"))
        assert len(parts) > 2 or name == "half"
        row = 0
        for part in parts:
            dtype, (length,) = raw_form(part)
            assert part.startswith(f"{name}/{row:08}.") and dtype == columns[name].dtype
            assert np.frombuffer(found[part], dtype).tolist() == values[row : row + length]
            row += length
        assert row == 3000


def lists(values: Any, *sizes: int) -> Any:
    """Lists of fixed sizes, the innermost first."""
    made = pyarrow.array(values)
    for size in sizes:
        made = pyarrow.FixedSizeListArray.from_arrays(made, size)
    return made


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_lists_of_fixed_sizes_in_place_are_those_of_pyarrow(tmp_path: Path, version: str) -> None:
    import pyarrow.parquet

    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {
        "point": lists(rng.random(9000).astype(np.float32), 3),
        "one": lists(rng.integers(0, 9, 3000), 1),
        "patch": lists(rng.random(36000).astype(np.float16), 3, 2, 2),
        "large": lists(rng.integers(0, 9, 3000 * 500, np.int32), 500),
        "text": [*map(str, range(3000))],
    }
    kind = pyarrow.list_(pyarrow.field("element", pyarrow.float64(), False), 5)
    columns["whole"] = pyarrow.array(rng.random((3000, 5)).tolist(), kind)
    table, path = pyarrow.table(columns), tmp_path / "x.parquet"
    fields = [field.with_nullable(field.name != "whole") for field in table.schema]
    pyarrow.parquet.write_table(
        table.cast(pyarrow.schema(fields)),
        path,
        row_group_size=2000,
        data_page_size=9000,
        data_page_version=version,
        compression="none",
        use_dictionary=False,
    )
    found = contents(path, is_in_place=True, is_by_row=False)
    assert json.loads(found.pop("00000007.json")) == {"text": "7"}
    shapes = {"point": (3,), "one": (1,), "patch": (2, 2, 3), "large": (500,), "whole": (5,)}
    for name, values in pyarrow.parquet.read_table(path).drop(["text"]).to_pydict().items():
        parts = sorted(part for part in found if part.startswith(f"{name}/"))
        assert len(parts) > 2
        row = 0
        for part in parts:
            dtype, (length, *shape) = raw_form(part)
            assert part.startswith(f"{name}/{row:08}.") and tuple(shape) == shapes[name]
            part_values = np.frombuffer(found[part], dtype).reshape(length, *shape)
            assert part_values.tolist() == values[row : row + length]
            row += length
        assert row == 3000


def test_lists_whose_sizes_lie(tmp_path: Path) -> None:
    """The levels say lists of 2 and 4 numbers, the schema of Arrow lists of 3, or of a billion."""
    import pyarrow.parquet

    path = tmp_path / "x.parquet"
    stored = pyarrow.table({"n": [[0.0, 1.0], [2.0, 3.0, 4.0, 5.0]]})

    def claim(size: int, **more: int) -> None:
        kind = pyarrow.list_(pyarrow.float64(), size)
        schema = base64.b64encode(pyarrow.schema({"n": kind}).serialize()).decode()
        options = {"compression": "none", "use_dictionary": False, "store_schema": False, **more}
        with pyarrow.parquet.ParquetWriter(path, stored.schema, **options) as writer:
            writer.write_table(stored)
            writer.add_key_value_metadata({"ARROW:schema": schema})
        assert pyarrow.parquet.read_schema(path).field("n").type == kind

    claim(3)
    with pytest.raises(Damaged, match="n in row group 0: its lists are not of the size that the file says"):
        read_all(path, is_in_place=True, is_by_row=False)
    claim(1 << 30)
    (record,) = read_all(path, is_in_place=True, is_by_row=False)
    assert record.fault.startswith("it has rows without a value")
    claim(3, data_page_size=1, write_batch_size=1)  # a page for each row
    (record,) = read_all(path, is_in_place=True, is_by_row=False)
    assert record.fault.startswith("a row is in two pages")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"compression": "zstd"}, "it is compressed"),
        ({"use_dictionary": True}, "its numbers are in a dictionary"),
        ({"column_encoding": "BYTE_STREAM_SPLIT"}, "its numbers are encoded"),
        ({"column_encoding": "BYTE_STREAM_SPLIT", "data_page_version": "2.0"}, "its numbers are encoded"),
        ({"values": [1.5, None]}, "it has rows without a value"),
        ({"values": [[1.5], [2.5]]}, "it is nested"),
        ({"values": [[[1.5]], [[2.5]]], "kind": [None, 1]}, "it is nested"),
        ({"values": [[1.5, 2.5], None], "kind": [2]}, "it has rows without a value"),
        ({"values": [[1.5, None], [1.5, 2.5]], "kind": [2]}, "it has rows without a value"),
        ({"values": [[[1.5], None], [[1.5], [2.5]]], "kind": [1, 2]}, "it has rows without a value"),
        (
            {"values": [[1.5, None]] * 2, "kind": [2], "data_page_version": "2.0"},
            "it has rows without a value",
        ),
        ({"values": [[1.5, 2.5]], "kind": [2], "compression": "zstd"}, "it is compressed"),
        ({"values": np.zeros(2, np.int8)}, "its type has no form in place"),
    ],
)
def test_numbers_that_are_not_attached(tmp_path: Path, options: dict[str, Any], fault: str) -> None:
    import pyarrow.parquet

    values, path = options.pop("values", [1.5, 2.5]), tmp_path / "x.parquet"
    if sizes := options.pop("kind", []):
        kind = pyarrow.float64()
        for size in sizes:  # the innermost first
            kind = pyarrow.list_(kind, size or -1)
        values = pyarrow.array(values, kind)
    options = {"compression": "none", "use_dictionary": False, **options}
    pyarrow.parquet.write_table(pyarrow.table({"n": values}), path, **options)
    (record,) = read_all(path, is_in_place=True, is_by_row=False)
    assert (record.name, record.fault) == (b"n", f"{fault}; store its rows with dlcmd import")


@pytest.mark.parametrize("values", [np.arange(1000), lists(np.arange(1000), 2, 5)], ids=["flat", "lists"])
def test_pages_that_lie(tmp_path: Path, values: Any) -> None:
    import pyarrow.parquet

    path = tmp_path / "x.parquet"
    table = pyarrow.table({"n": values})
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    for place in range(4, 120):  # the header of the page, and levels
        for lie in (bytes([whole[place] ^ 255]), b"\xff" * 9 + b"\x01"):  # the second: a number of 64 bits
            path.write_bytes(whole[:place] + lie + whole[place + len(lie) :])
            with suppress(Damaged):
                for record in read_all(path, is_in_place=True, is_by_row=False):
                    assert record.fault or len(record.content or b"") <= 8000


def test_as_datasets_writes_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra 'huggingface' is not installed")
    features = datasets.Features(
        {"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"image": [{"bytes": content, "path": None} for content in IMAGES], "label": [0, 1, 0, 1]}
    datasets.Dataset.from_dict(rows, features).to_parquet(str(tmp_path / "x.parquet"))
    records = [record for record in read_all(tmp_path / "x.parquet") if record.name.endswith(b".jpg")]
    assert [record.content for record in records] == IMAGES
    assert [record.fields["label"] for record in records] == ["cat", "dog", "cat", "dog"]


def test_several_columns_of_bytes_and_other_types(tmp_path: Path) -> None:
    when = datetime.datetime(2020, 9, 13, 12, 26, 40)
    columns = {"a": [b"1", None], "b": [b"2", IMAGES[0]], "when": [when, None], "list": [[1], []]}
    found = contents(write(tmp_path / "x", columns))
    assert json.loads(found.pop("00000000.json")) == {"when": "2020-09-13T12:26:40", "list": [1]}
    assert found.pop("00000001.json") == b'{"when": null, "list": []}'
    assert found == {"00000000.a": b"1", "00000000.b": b"2", "00000001.b.jpg": IMAGES[0]}


def test_an_image_that_is_elsewhere(tmp_path: Path) -> None:
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    column = pyarrow.array([{"bytes": None, "path": "/data/a.jpg"}], kind)
    records = read_all(write(tmp_path / "x", {"image": column}))
    assert [record.fault for record in records] == ["the image is not in the file, but at /data/a.jpg"]


def test_files_that_are_damaged(tmp_path: Path) -> None:
    path = write(tmp_path / "x", {"a": [b"1" * 1000, b"2" * 1000]})
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], whole[:-8] + bytes(8)):
        path.write_bytes(content)
        with pytest.raises(Damaged, match="cannot be read as Parquet"):
            read_all(path)


def test_what_a_small_file_claims_is_not_read(tmp_path: Path) -> None:
    import pyarrow.parquet

    rows = pyarrow.table({"content": [bytes(80 << 20)] * 4})
    pyarrow.parquet.write_table(rows, tmp_path / "x.parquet", compression="zstd")
    assert (tmp_path / "x.parquet").stat().st_size < 40_000
    with pytest.raises(Damaged, match=r"row group 0 has 8388\d+ bytes in \d+: made to fill memory or disk"):
        read_all(tmp_path / "x.parquet")


def test_a_large_value_that_is_there_once_is_read_for_few_rows_at_once(tmp_path: Path) -> None:
    import pyarrow.parquet

    rows = pyarrow.table({"content": [bytes(30 << 20)] * 10})
    pyarrow.parquet.write_table(rows, tmp_path / "x.parquet", compression="zstd")
    group = pyarrow.parquet.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0)
    assert rows_at_once(group, 0) == 2
    plain = pyarrow.table({"label": [1, 2, 3] * 100})
    pyarrow.parquet.write_table(plain, tmp_path / "y.parquet")
    assert (
        rows_at_once(pyarrow.parquet.ParquetFile(tmp_path / "y.parquet").metadata.row_group(0), 0)
        == BATCH_ROWS
    )
