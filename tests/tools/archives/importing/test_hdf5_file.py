"""Rows of HDF5, as `h5py` wrote them."""

import gzip
import io
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing.hdf5_file import DEPTH_MAX
from dieselfs_tools.archives.importing.reader import Readers
from tests.support.documents import REPOSITORY
from tests.support.importing import QUIET, contents, read_all

h5py = pytest.importorskip("h5py", reason="the extra 'import' is not installed")

IMAGE = (REPOSITORY / "tests/samples/images/0.jpg").read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        train = file.create_group("train")
        train["images"] = rng.integers(0, 255, (50, 4, 6), np.uint8)
        train.create_dataset(
            "floats", data=rng.random((50, 3)).astype(">f4"), chunks=(7, 3), compression="gzip"
        )
        train["labels"] = np.arange(50, dtype=np.int16)
        train["large"] = np.zeros((3, 2 << 20), np.uint8) + np.arange(3, dtype=np.uint8)[:, None]
        file["scalar"] = 3.5
        file["text"] = "ä"
        file["names"] = ["a", "ä", ""]
        file["fixed"] = np.array([b"ab", b"c"])
        jpegs = file.create_dataset("jpegs", 2, h5py.vlen_dtype(np.uint8))
        jpegs[0], jpegs[1] = np.frombuffer(IMAGE, np.uint8), np.arange(3, dtype=np.uint8)
        file.create_group("empty")
        file["none"] = np.zeros((0, 3))
        file["null"] = h5py.Empty("f")
        file["references"] = np.array([train.ref], h5py.ref_dtype)
        file["soft"] = h5py.SoftLink("/train")
        file["pairs"] = np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")])
    return tmp_path / "x.h5"


def loaded(content: bytes) -> Any:
    return np.load(io.BytesIO(content))


def test_rows_are_arrays(path: Path) -> None:
    found = contents(path, is_by_row=True)
    with h5py.File(path) as file:
        for name in ("train/images", "train/floats", "train/labels", "train/large", "pairs"):
            for row, value in enumerate(file[name]):
                array = loaded(found.pop(f"{name}/{row:08}.npy"))
                assert array.dtype == value.dtype and array.shape == value.shape
                assert array.tobytes() == value.tobytes()
    assert loaded(found.pop("scalar.npy")) == 3.5
    assert [loaded(found.pop(f"fixed/0000000{row}.npy")) for row in range(2)] == [b"ab", b"c"]
    assert loaded(found.pop("jpegs/00000001.npy")).tolist() == [0, 1, 2]
    assert found == {
        "text.txt": "ä".encode(),
        "names/00000000.txt": b"a",
        "names/00000001.txt": "ä".encode(),
        "names/00000002.txt": b"",
        "jpegs/00000000.jpg": IMAGE,
    }


def test_a_compressed_file(path: Path) -> None:
    """Which `dlcmd` keeps in a file without a name."""
    packed = path.with_suffix(".h5.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with closing(Readers(QUIET)) as readers, readers.read(str(packed)) as source:
        found = {record.name: record.content for record in source if record.content}
    assert found[b"jpegs/00000000.jpg"] == IMAGE and len(found) > 50


def test_bytes_of_one_dimension_are_a_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a/0"], file["a/1"] = np.frombuffer(IMAGE, np.uint8), np.arange(3, dtype=np.uint8)
    found = contents(tmp_path / "x.h5")
    assert found.keys() == {"a/0.jpg", "a/1.npy"} and found["a/0.jpg"] == IMAGE
    assert loaded(found["a/1.npy"]).tolist() == [0, 1, 2]
    assert len(contents(tmp_path / "x.h5", is_by_row=True)) == len(IMAGE) + 3


def test_tiny_rows_need_an_option(path: Path) -> None:
    faults = {record.name.decode(): record.fault for record in read_all(path) if record.fault}
    assert faults["train/labels"] == (
        "it has 50 rows of 2 bytes: --whole makes one file of it, --rows a file of each row"
    )
    assert {"train/floats", "fixed", "pairs"} < faults.keys()
    found = contents(path, is_by_row=False)
    with h5py.File(path) as file:
        for name in ("train/images", "train/floats", "train/labels", "train/large", "pairs", "none"):
            assert loaded(found[f"{name}.npy"]).tobytes() == file[name][()].tobytes()
    assert found["names/00000000.txt"] == b"a"


def test_places_behind_a_user_block(tmp_path: Path) -> None:
    rows = np.arange(600, dtype=np.int32).reshape(10, 60)
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=1024) as file:
        file["whole"] = rows
        file.create_dataset("chunked", data=rows, chunks=(3, 60))
        file.create_dataset("slices", data=rows, chunks=(3, 20))
    found = contents(tmp_path / "x.h5", "hdf5", is_in_place=True)
    assert len(found) == 20 + 12
    for row in range(0, 10, 3):
        for column in (0, 20, 40):
            part = rows[row : row + 3, column : column + 20]
            assert found[f"slices/{row:08}.{column:08}.{len(part)}x20.int32"] == part.tobytes()
    for row, value in enumerate(rows):
        assert found[f"whole/{row:08}.60.int32"] == found[f"chunked/{row:08}.60.int32"] == value.tobytes()


@pytest.mark.parametrize("libver", ["earliest", "latest"])  # they have other indexes of chunks
def test_rows_of_a_padded_chunk_are_those_of_h5py(tmp_path: Path, libver: str) -> None:
    rows = np.arange(1, 481, dtype=np.int32).reshape(8, 60)
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        for length in (0, 1, 2, 3, 7, 8):
            file.create_dataset(f"{length}", data=rows[:length], chunks=(3, 60), maxshape=(None, 60))
        file.create_dataset("shrunk", data=rows, chunks=(3, 60), maxshape=(8, 60)).resize(4, axis=0)
        file.create_dataset("filled", data=np.full((4, 60), 7), chunks=(3, 60), fillvalue=7)
    found = contents(tmp_path / "x.h5", "hdf5", is_in_place=True)
    wholes = contents(tmp_path / "x.h5", "hdf5", is_in_place=True, is_by_row=False)
    with h5py.File(tmp_path / "x.h5") as file:
        values = {name: file[name][()] for name in file}
    assert found == {
        f"{name}/{row:08}.60.{value.dtype}": value.tobytes()
        for name, array in values.items()
        for row, value in enumerate(array)
    }
    assert wholes == {f"{n}.{n}x60.int32": rows[:n].tobytes() for n in range(4)}  # of one chunk, or none


def test_rows_in_several_chunks_are_those_of_h5py(tmp_path: Path) -> None:
    rows = np.arange(1, 961, dtype=np.int32).reshape(8, 12, 10)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for chunks in ((3, 5, 10), (3, 12, 6), (2, 7, 10), (8, 12, 20)):
            name = "x".join(map(str, chunks))
            file.create_dataset(name, data=rows[:, :5], chunks=chunks, maxshape=(None, None, None))
            file[name].resize(rows.shape)
            file[name][:] = rows
    found = contents(tmp_path / "x.h5", "hdf5", is_in_place=True, is_by_row=True)
    assert len(found) == 4 * len(rows)
    for name, content in found.items():
        row = int(name.partition("/")[2].partition(".")[0])
        assert content == rows[row].tobytes()


def test_what_is_not_attached_says_why(tmp_path: Path) -> None:
    rows = np.arange(600, dtype=np.int32).reshape(10, 60)
    with h5py.File(tmp_path / "x.h5", "w", track_order=True) as file:
        file.create_dataset("packed", data=rows, chunks=(3, 60), compression="gzip")
        file.create_dataset("parts", data=rows.reshape(10, 20, 3), chunks=(3, 20, 2))
        file.create_dataset("unwritten", (10, 60), np.int32, chunks=(3, 60))[0] = 1
        file.create_dataset("big-endian", data=rows.astype(">i4"))
        file["scalar"], file["text"] = 3.5, "ä"
        file["jpeg"] = np.frombuffer(IMAGE, np.uint8)
    records = {record.name.decode(): record for record in read_all(tmp_path / "x.h5", is_in_place=True)}
    assert {name: record.fault for name, record in records.items() if record.fault} == {
        "packed": "it is compressed, or changed by another filter; store it with dlcmd import",
        "parts": "its chunks have each row in 40 pieces, limit 32; store it with dlcmd import",
        "unwritten": "some of its chunks were not written; store it with dlcmd import",
        "big-endian": "its type has no form in place; store it with dlcmd import",
    }
    assert records["jpeg.jpg"].place is not None and records["jpeg.jpg"].content == IMAGE
    assert records["scalar.npy"].place is None and records["text.txt"].content == "ä".encode()


def test_groups_are_folders_and_the_rest_is_named(path: Path) -> None:
    records = read_all(path, is_by_row=True)
    assert {record.name for record in records if record.is_folder} == {b"empty", b"train"}
    faults = {record.name.decode(): record.fault for record in records if record.fault}
    assert faults.keys() == {"null", "references", "soft"}
    assert faults["soft"] == "a link of HDF5, which is not followed; import the place /train"


def test_files_that_are_damaged(path: Path) -> None:
    whole = path.read_bytes()
    for length in (100, 1000, len(whole) // 2):
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged, match="cannot be read as HDF5"):
            read_all(path)


def test_storage_in_other_files_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a key")
    with h5py.File(tmp_path / "target.h5", "w") as file:
        file["rows"] = np.arange(5)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("external", (5,), np.uint8, external=[(str(secret), 0, 5)])
        layout = h5py.VirtualLayout((5,), np.int64)
        layout[:] = h5py.VirtualSource(str(tmp_path / "target.h5"), "rows", (5,))
        file.create_virtual_dataset("virtual", layout)
        file["link"] = h5py.ExternalLink("target.h5", "/rows")
    faults = {record.name: record.fault for record in read_all(tmp_path / "x.h5")}
    assert faults.keys() == {b"external", b"virtual", b"link"} and all(faults.values())
    assert faults[b"external"].startswith("its content is in other files")


def test_groups_in_each_other_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        outer = file.create_group("outer")
        outer["self"], outer["root"], file["twice"] = outer, file["/"], outer
        outer["rows"] = np.zeros((1, 2))
    records = {record.name: record.fault for record in read_all(tmp_path / "x.h5")}
    assert {name for name, fault in records.items() if fault} == {b"outer/self", b"outer/root", b"twice"}
    assert records[b"outer/rows/00000000.npy"] == ""
    with h5py.File(tmp_path / "deep.h5", "w") as file:
        file.create_group("/".join("g" * DEPTH_MAX))
    with pytest.raises(Damaged, match="more than 64 groups"):
        read_all(tmp_path / "deep.h5")


def test_what_a_small_file_claims_is_not_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("rows", (1 << 20, 1 << 10), np.uint8)  # of no byte
        file.create_dataset("row", (1, 2 << 30), np.uint8)
        file.create_dataset("chunk", (2 << 30,), np.uint8, chunks=(2 << 30,))
        file.create_dataset("small", (2, 16), np.uint8)
    assert (tmp_path / "x.h5").stat().st_size < 10_000
    records = read_all(tmp_path / "x.h5")
    faults = {record.name: record.fault for record in records if record.fault}
    assert faults == {
        b"rows": "1073741824 bytes in 0: a file made to fill memory or disk",
        b"row": "a row of it has 2147483648 bytes, limit 1073741824",
        b"chunk": "a chunk of it has 2147483648 bytes, limit 1073741824",
    }
    assert len(records) == 5
