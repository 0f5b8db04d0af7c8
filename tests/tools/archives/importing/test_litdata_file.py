"""Samples of LitData, as LitData wrote them."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import Damaged, InvalidInput
from dieselfs_tools.archives.importing.sample_shards import file_of
from tests.support.documents import REPOSITORY
from tests.support.importing import contents, read_all

SAMPLES = REPOSITORY / "tests/samples"


def loaded(content: bytes) -> Any:
    return np.load(io.BytesIO(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLES / "litdata", tmp_path / "litdata")
    return tmp_path / "litdata"


def test_samples_of_litdata() -> None:
    found = contents(SAMPLES / "litdata")
    for n in range(4):
        key = f"0000000{n}"
        image = found.pop(f"{key}.image.jpg")  # which LitData encoded again
        assert (image[:3], image[-2:]) == (b"\xff\xd8\xff", b"\xff\xd9")
        assert found.pop(f"{key}.raw") == bytes([n]) * n
        assert found.pop(f"{key}.caption.txt") == f"ä {n}".encode()
        assert json.loads(found.pop(f"{key}.nested.a.json")) == [n, "x"]
        scalars = [loaded(found.pop(f"{key}.{name}.npy")) for name in ("label", "weight", "flag")]
        assert [one.dtype for one in scalars] == [np.int64, np.float64, np.bool_]
        assert [one.item() for one in scalars] == [n - 1, n / 3, n % 2 == 0]
        array, tensor = loaded(found.pop(f"{key}.array.npy")), loaded(found.pop(f"{key}.tensor.npy"))
        assert array.dtype == np.int16 and array.tolist() == (np.arange(6).reshape(2, 3) + n).tolist()
        assert tensor.dtype == np.int64 and tensor.tolist() == [n, n + 1, n + 2]
    assert not found
    assert read_all(SAMPLES / "litdata")[0].fields["caption"] == "ä 0"


def test_rows_that_litdata_stores_with_arrow(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra 'import' is not installed")
    found = contents(SAMPLES / "litdata-arrow")
    assert [*found] == [f"0000000{n}.json" for n in range(4)]
    for n, text in enumerate(found.values()):
        assert json.loads(text) == {
            "text": f"ä {n}",
            "label": n - 1,
            "meta": {"tags": ["x", str(n)], "score": n / 4},
            "words": [{"w": "a", "n": n}],
        }
    assert read_all(SAMPLES / "litdata-arrow")[3].fields == {"text": "ä 3", "label": "2"}
    shutil.copytree(SAMPLES / "litdata-arrow", tmp_path / "cut")
    whole = (tmp_path / "cut/chunk-0-1.bin").read_bytes()
    for length in (10, 100, len(whole) - 12, len(whole) - 1):
        (tmp_path / "cut/chunk-0-1.bin").write_bytes(whole[:length])
        with pytest.raises(Damaged):
            read_all(tmp_path / "cut")


def test_chunks_that_cannot_be_read_say_why(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="chunks that are compressed in batches of LitData cannot be read"):
        read_all(SAMPLES / "litdata-zstd")
    for name, value, match in [
        ("encryption", "fernet", "encrypted chunks"),
        ("item_loader", "TokensLoader", "chunks for TokensLoader"),
    ]:
        index = json.loads((SAMPLES / "litdata/index.json").read_text())
        index["config"][name] = value
        (folder / "index.json").write_text(json.dumps(index))
        with pytest.raises(InvalidInput, match=match):
            read_all(folder)


def test_chunks_that_are_cut_off_or_missing(folder: Path) -> None:
    chunk = folder / "chunk-0-1.bin"
    whole = chunk.read_bytes()
    for length in range(0, len(whole), 97):
        chunk.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            read_all(folder)
    chunk.unlink()
    with pytest.raises(Damaged, match=r"chunk-0-1.bin is missing"):
        read_all(folder)


def test_an_index_that_makes_no_sense(folder: Path) -> None:
    for config in (
        {},
        {"data_format": ["int"], "data_spec": "[1, 5]"},
        {"data_format": [], "data_spec": "[1, null]"},
    ):
        (folder / "index.json").write_text(json.dumps({"chunks": [], "config": config}))
        with pytest.raises(Damaged, match="no proper config"):
            read_all(folder)


@pytest.mark.parametrize(
    ("value", "file"),
    [
        (b"[1]", (".json", b"[1]")),
        (b"\0\3\0\0\0[1]", (".json", b"[1]")),
        (b"\0\4\0\0\0[1]", (".nested", b"\0\4\0\0\0[1]")),
        (b"\x0b", (".nested", b"\x0b")),
        (b"", (".nested", b"")),
    ],
)
def test_lists_and_dictionaries(value: bytes, file: tuple[str, bytes]) -> None:
    assert file_of("json", value) == file
