"""Rows of zarr arrays in place: equal to what zarr reads, and folders that lie."""

import json
from collections.abc import Callable
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import Damaged, InvalidInput
from dieselfs_tools.archives.importing import zarr_chunks
from dieselfs_tools.archives.importing.record import Record
from tests.support.importing import contents, read_all

zarr = pytest.importorskip("zarr", reason="the extra 'test' is not installed")
numcodecs = pytest.importorskip("numcodecs", reason="the extra 'import' is not installed")

IMAGES = np.random.default_rng(1).integers(0, 255, (13, 4, 6), np.uint8)


def made(folder: Path, data: Any = IMAGES, **options: Any) -> Any:
    options = {"compressors": None, "chunks": (3, *data.shape[1:]), **options}
    return zarr.create_array(folder, data=data, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 2},
        {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
        {"zarr_format": 3},
        {"zarr_format": 3, "chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"zarr_format": 3, "chunks": (2, 4, 6), "shards": (4, 4, 6)},
        {
            "zarr_format": 3,
            "chunks": (2, 4, 6),
            "shards": (8, 4, 6),
        },  # the last chunk of the last one is not there
        {"chunks": (2, 4, 6), "shards": {"shape": (4, 4, 6), "index_location": "start"}},
    ],
)
@pytest.mark.parametrize("data", [IMAGES, IMAGES.astype(np.float32), IMAGES > 100])
def test_rows_are_those_of_zarr(tmp_path: Path, options: dict[str, Any], data: Any) -> None:
    rows = made(tmp_path / "x.zarr", data, **options)[:]
    found = contents(tmp_path / "x.zarr", is_in_place=True)
    assert len(found) == len(rows)
    for row, value in enumerate(rows):
        assert found[f"x.zarr/{row:08}.4x6.{value.dtype}"] == value.tobytes()


@pytest.mark.parametrize("options", [{"zarr_format": 2}, {"zarr_format": 3}, {"shards": (6, 4, 6)}])
def test_rows_of_a_padded_chunk_are_those_of_zarr(tmp_path: Path, options: dict[str, Any]) -> None:
    for length in (0, 1, 2, 3, 7, 11, 13):
        folder = tmp_path / f"{length}"
        rows = made(folder, IMAGES[:length], **options)[:]
        assert contents(folder, is_in_place=True) == {
            f"{length}/{row:08}.4x6.uint8": value.tobytes() for row, value in enumerate(rows)
        }
    assert contents(tmp_path / "0", is_in_place=True, is_by_row=False) == {"0.0x4x6.uint8": b""}
    assert contents(tmp_path / "2", is_in_place=True, is_by_row=False) == {
        "2.2x4x6.uint8": IMAGES[:2].tobytes()
    }


@pytest.mark.parametrize("options", [{"zarr_format": 2}, {"zarr_format": 3}, {"shards": (6, 4, 6)}])
def test_a_padded_chunk_of_the_fill_value(tmp_path: Path, options: dict[str, Any]) -> None:
    data = IMAGES.copy()
    data[12:] = 7
    for is_stored in (True, False):
        folder = tmp_path / f"{is_stored}"
        made(folder, data, fill_value=7, config={"write_empty_chunks": is_stored}, **options)
    found = contents(tmp_path / "True", is_in_place=True)
    assert b"".join(found.values()) == data.tobytes()
    before: list[Record] = []
    with pytest.raises(Damaged, match="is missing: the numbers there are those of the fill value"):
        read_all(tmp_path / "False", is_in_place=True, into=before)
    assert len(before) == 12


@pytest.mark.parametrize("version", [2, 3])
def test_chunks_with_parts_of_rows_are_slices(tmp_path: Path, version: int) -> None:
    made(tmp_path / "x", chunks=(3, 2, 6), zarr_format=version)
    found = contents(tmp_path / "x", is_in_place=True)
    assert len(found) == 10
    for row in range(0, 13, 3):
        for column in (0, 2):
            part = IMAGES[row : row + 3, column : column + 2]
            assert found[f"x/{row:08}.{column:08}.00000000.{len(part)}x2x6.uint8"] == part.tobytes()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("chunks", [(3, 2, 6), (3, 3, 6), (5, 4, 4), (13, 3, 4), (1, 1, 1), (20, 9, 9)])
def test_rows_in_several_chunks_are_those_of_zarr(
    tmp_path: Path, version: int, chunks: tuple[int, ...]
) -> None:
    data = IMAGES.astype(np.int16)
    rows = made(tmp_path / "x", data, chunks=chunks, zarr_format=version)[:]
    assert contents(tmp_path / "x", is_in_place=True, is_by_row=True) == {
        f"x/{row:08}.4x6.int16": value.tobytes() for row, value in enumerate(rows)
    }


@pytest.mark.parametrize(
    ("chunks", "shards"),
    [
        ((3, 2, 6), (6, 4, 6)),
        ((3, 2, 4), (6, 4, 8)),  # the last column of a shard is padding
        ((2, 2, 3), (4, 2, 6)),
        ((2, 1, 2), (4, 3, 4)),
        ((13, 4, 4), (13, 4, 4)),
        ((3, 4, 6), (6, 8, 12)),  # a row is in one chunk, and others of the shard are not used
    ],
)
@pytest.mark.parametrize("place", ["start", "end"])
def test_rows_in_several_chunks_of_shards_are_those_of_zarr(
    tmp_path: Path, chunks: tuple[int, ...], shards: tuple[int, ...], place: str
) -> None:
    data = IMAGES.astype(np.int16)
    made(tmp_path / "x", data, chunks=chunks, shards={"shape": shards, "index_location": place})
    assert contents(tmp_path / "x", is_in_place=True, is_by_row=True) == {
        f"x/{row:08}.4x6.int16": value.tobytes() for row, value in enumerate(data)
    }


def test_chunks_of_shards_with_parts_of_rows_are_slices(tmp_path: Path) -> None:
    made(tmp_path / "x", chunks=(3, 2, 3), shards=(6, 2, 6))
    found = contents(tmp_path / "x", is_in_place=True)
    assert len(found) == 20
    for row, height, column in product(range(0, 13, 3), (0, 2), (0, 3)):
        part = IMAGES[row : row + 3, height : height + 2, column : column + 3]
        name = f"x/{row:08}.{height:08}.{column:08}.{len(part)}x2x3.uint8"
        assert found[name] == part.tobytes()


def test_a_padded_chunk_of_as_many_numbers_is_not_the_whole(tmp_path: Path) -> None:
    made(tmp_path / "x", IMAGES[:, :2, :5], chunks=(13, 5, 2))
    (record,) = read_all(tmp_path / "x", is_in_place=True, is_by_row=False)
    assert record.fault == "it is in several parts; store it with dlcmd import"


def test_a_scalar(tmp_path: Path) -> None:
    for version in (2, 3):
        made(tmp_path / f"{version}", np.array(2.5), chunks=(), zarr_format=version)
        assert contents(tmp_path / f"{version}", is_in_place=True) == {
            f"{version}.scalar.float64": np.array(2.5).tobytes()
        }


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("version", [2, 3])
def test_arrays_of_a_group(tmp_path: Path, version: int) -> None:
    group = zarr.open_group(tmp_path / "g", mode="w", zarr_format=version)
    group.create_array("a/b", data=IMAGES, chunks=(3, 4, 6), compressors=None)
    group.create_array("label", data=np.arange(5), compressors=None)
    with pytest.raises(InvalidInput, match="name an array, or run zarr"):
        read_all(tmp_path / "g", is_in_place=True)
    zarr.consolidate_metadata(tmp_path / "g")
    found = contents(tmp_path / "g", is_in_place=True, is_by_row=None)
    assert found == {f"a/b/{row:08}.4x6.uint8": value.tobytes() for row, value in enumerate(IMAGES)}
    records = read_all(tmp_path / "g", is_in_place=True, is_by_row=False)
    assert {record.name: record.fault for record in records} == {
        b"a/b": "it is in several parts; store it with dlcmd import",
        b"label.5.int64": "",
    }
    imported = contents(tmp_path / "g", is_by_row=False)
    assert {name: np.load(BytesIO(content)).tolist() for name, content in imported.items()} == {
        "a/b.npy": IMAGES.tolist(),
        "label.npy": [*range(5)],
    }


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"zarr_format": 2, "compressors": "auto"}, "it is compressed, or changed by a filter"),
        ({"compressors": "auto"}, "it is compressed, or changed by another codec"),
        (
            {"serializer": zarr.codecs.BytesCodec(endian="big")},
            "it is compressed, or changed by another codec",
        ),
        ({"zarr_format": 2, "order": "F"}, "it is in Fortran order"),
    ],
)
def test_arrays_that_are_not_attached(tmp_path: Path, options: dict[str, Any], fault: str) -> None:
    made(tmp_path / "x", IMAGES.astype(np.int32), **options)
    (record,) = read_all(tmp_path / "x", is_in_place=True)
    assert record.fault == f"{fault}; store it with dlcmd import"


def test_rows_in_too_many_pieces(tmp_path: Path) -> None:
    for height, fault in ((16, ""), (17, "its chunks have each row in 34 pieces, limit 32")):
        folder = tmp_path / f"{height}"
        for shards in (None, (6, height, 12)):
            data = np.ones((6, height, 8), np.int32)
            made(folder, data, chunks=(3, height, 6), shards=shards, overwrite=True)
            first, *_ = read_all(folder, is_in_place=True)
            assert first.fault == (fault and f"{fault}; store it with dlcmd import")


FLOATS = IMAGES.astype(np.float32)
FLOATS[:6] = 0  # such chunks are not stored


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compressors": "auto"},
        {"compressors": None, "shards": (6, 4, 6)},
        {"compressors": "auto", "shards": {"shape": (6, 4, 6), "index_location": "start"}},
        {"compressors": [zarr.codecs.BloscCodec(cname="lz4"), zarr.codecs.Crc32cCodec()]},
        {"compressors": zarr.codecs.GzipCodec(), "filters": [zarr.codecs.TransposeCodec(order=(2, 0, 1))]},
        {"serializer": zarr.codecs.BytesCodec(endian="big"), "fill_value": 7},
        {"zarr_format": 2, "compressors": "auto", "order": "F"},
        {"zarr_format": 2, "compressors": numcodecs.Blosc("zstd"), "filters": [numcodecs.Delta("f4")]},
        {"zarr_format": 2, "compressors": None, "fill_value": float("nan")},
    ],
)
def test_an_import_has_the_numbers_that_zarr_reads(tmp_path: Path, options: dict[str, Any]) -> None:
    given = {"compressors": None, "chunks": (3, 2, 6), **options}
    zarr.create_array(tmp_path / "x", data=FLOATS, **given)
    found = contents(tmp_path / "x")
    rows = zarr.open_array(tmp_path / "x")[:]
    assert sorted(found) == [f"x/{row:08}.npy" for row in range(13)]
    for value, row in zip(found.values(), rows, strict=True):
        loaded = np.load(BytesIO(value))
        assert loaded.dtype.newbyteorder("=") == row.dtype and np.array_equal(loaded, row, equal_nan=True)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda found: found.update(data_type="bfloat16"), "its type has no form as a file"),
        (
            lambda found: found.update(codecs=[{"name": "bytes"}, {"name": "pickle"}]),
            "its codec pickle is not read",
        ),
        (lambda found: found["chunk_grid"].update(name="own"), "its chunks have a form of their own"),
    ],
)
def test_arrays_that_are_not_imported(tmp_path: Path, change: Callable[[Any], None], fault: str) -> None:
    made(tmp_path / "x")
    change_metadata(change)(tmp_path / "x")
    (record,) = read_all(tmp_path / "x")
    assert record.fault == f"{fault}; store the folder with dlcmd put -r"


@pytest.mark.parametrize("shards", [None, (6, 4, 6)])
def test_chunks_that_are_cut_off_are_damaged(tmp_path: Path, shards: Any) -> None:
    made(tmp_path / "x", compressors="auto", shards=shards)
    chunk = tmp_path / "x/c/1/0/0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(Damaged, match="c/1/0/0 cannot be decoded"):
        read_all(tmp_path / "x")


def test_a_folder_that_claims_many_rows_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_chunks, "SPARSE_BYTES_MAX", 3 << 20)
    zarr.create_array(tmp_path / "x", shape=(1, 1 << 20), chunks=(1, 1 << 20), dtype="uint8")
    change_metadata(lambda found: found.update(shape=[1 << 60, 1 << 20]))(tmp_path / "x")
    with pytest.raises(Damaged, match="made to fill memory or disk"):
        read_all(tmp_path / "x")


def test_big_endian_numbers_of_version_2(tmp_path: Path) -> None:
    made(tmp_path / "x", IMAGES.astype(">i4"), zarr_format=2)
    (record,) = read_all(tmp_path / "x", is_in_place=True)
    assert record.fault == "its type has no form in place; store it with dlcmd import"


def cut_index(folder: Path) -> None:
    (folder / "c/0/0/0").write_bytes(b"1234")


def move_chunk(folder: Path) -> None:
    shard = folder / "c/0/0/0"
    content = bytearray(shard.read_bytes())
    content[-36:-28] = (1 << 63).to_bytes(8, "little")  # the offset of the first of two chunks
    shard.write_bytes(content)


def lengthen_chunk(folder: Path) -> None:
    shard = folder / "c/0/0/0"
    content = bytearray(shard.read_bytes())
    content[-28:-20] = (1 << 63).to_bytes(8, "little")
    shard.write_bytes(content)


def remove_shard(folder: Path) -> None:
    (folder / "c/1/0/0").unlink()


def change_metadata(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        metadata = json.loads((folder / "zarr.json").read_text())
        change(metadata)
        (folder / "zarr.json").write_text(json.dumps(metadata))

    return changed


@pytest.mark.parametrize(
    "change",
    [
        cut_index,
        move_chunk,
        lengthen_chunk,
        remove_shard,
        change_metadata(lambda found: found.update(shape=[1 << 60, 4, 6])),
        change_metadata(lambda found: found.update(shape=[-1, 4, 6])),
        change_metadata(lambda found: found.update(shape="abc")),
        change_metadata(lambda found: found["chunk_grid"]["configuration"].update(chunk_shape=[0, 4, 6])),
        change_metadata(
            lambda found: found["chunk_grid"]["configuration"].update(chunk_shape=[1 << 60, 4, 6])
        ),
        change_metadata(lambda found: found["codecs"][0].update(configuration=5)),
        change_metadata(lambda found: found.pop("codecs")),
    ],
)
@pytest.mark.parametrize("columns", [4, 2])
def test_folders_that_lie(tmp_path: Path, change: Callable[[Path], None], columns: int) -> None:
    made(tmp_path / "x", chunks=(2, columns, 6), shards=(4, columns, 6))
    change(tmp_path / "x")
    with pytest.raises(Damaged):
        read_all(tmp_path / "x", is_in_place=True)


@pytest.mark.parametrize("inner", [[3, 4, 6], [0, 4, 6], [2, 4], []])
def test_shards_of_another_form_are_refused(tmp_path: Path, inner: list[int]) -> None:
    made(tmp_path / "x", chunks=(2, 4, 6), shards=(4, 4, 6))
    change = change_metadata(lambda found: found["codecs"][0]["configuration"].update(chunk_shape=inner))
    change(tmp_path / "x")
    (record,) = read_all(tmp_path / "x", is_in_place=True)
    assert record.fault == "its shards have a form of their own; store it with dlcmd import"
