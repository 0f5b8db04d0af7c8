"""Samples of MDS, as MosaicML Streaming wrote them."""

import gzip
import io
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing.bucket_files import INDEX
from dieselfs_tools.archives.importing.sample_shards import INDEX_BYTES_MAX, read_index
from tests.support.documents import REPOSITORY
from tests.support.importing import contents, read_all, source_of

SAMPLES = REPOSITORY / "tests/samples"


def loaded(content: bytes) -> Any:
    return np.load(io.BytesIO(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLES / "mosaicml", tmp_path / "mds")
    return tmp_path / "mds"


@pytest.mark.parametrize("name", ["mosaicml", "mosaicml-zstd"])
def test_samples_of_mosaicml(name: str) -> None:
    if name.endswith("zstd"):
        pytest.importorskip("zstandard", reason="the extra 'import' is not installed")
    found = contents(SAMPLES / name)
    for n in range(4):
        key = f"0000000{n}"
        image = found.pop(f"{key}.image.jpg")  # which MosaicML encoded again
        assert (image[:3], image[-2:]) == (b"\xff\xd8\xff", b"\xff\xd9")
        assert found.pop(f"{key}.raw") == bytes([n]) * n
        assert found.pop(f"{key}.caption.txt") == f"ä {n}".encode()
        assert json.loads(found.pop(f"{key}.meta.json")) == {"n": n, "list": [1, 2]}
        label, weight = loaded(found.pop(f"{key}.label.npy")), loaded(found.pop(f"{key}.weight.npy"))
        assert (label.dtype, label.shape, int(label)) == (np.int64, (), n - 1)
        assert (weight.dtype, weight.shape) == (np.float32, ()) and weight == np.float32(n / 3)
        box, anything = loaded(found.pop(f"{key}.box.npy")), loaded(found.pop(f"{key}.any.npy"))
        assert box.dtype == np.float32 and box.tolist() == [n, n + 1, n + 2, n + 3]
        assert anything.dtype == np.int64 and anything.tolist() == (np.arange(6).reshape(2, 3) + n).tolist()
    assert not found


def test_texts_and_numbers_are_fields() -> None:
    fields = read_all(SAMPLES / "mosaicml")[0].fields
    assert fields == {"caption": "ä 0", "label": "-1", "weight": "0.0"}


def test_a_flipped_bit_in_any_shard_is_noticed(folder: Path) -> None:
    shard = folder / "shard.00001.mds"
    whole = shard.read_bytes()
    for place in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        shard.write_bytes(damaged)
        with pytest.raises(Damaged):
            read_all(folder)


def test_shards_that_are_cut_off_or_missing(folder: Path) -> None:
    shard = folder / "shard.00001.mds"
    whole = shard.read_bytes()
    for length in range(0, len(whole), 97):
        shard.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            read_all(folder)
    shard.unlink()
    with pytest.raises(Damaged, match=r"shard.00001.mds is missing, which index.json names"):
        read_all(folder)


@pytest.mark.parametrize("name", ["../mds/shard.00000.mds", "/etc/passwd", "", 5])
def test_an_index_names_only_what_is_beside_it(folder: Path, name: object) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = name
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(Damaged, match="no name of a shard"):
        read_all(folder)


@pytest.mark.parametrize("index", ['{"shards": [{}]}', '{"shards": {}}', '{"shards": [5]}'])
def test_an_index_that_makes_no_sense(folder: Path, index: str) -> None:
    (folder / "index.json").write_text(index)
    with pytest.raises(Damaged, match=r"index.json: "):
        read_all(folder)


def test_a_small_file_that_is_a_large_index_does_not_fill_memory(folder: Path) -> None:
    (folder / INDEX).write_bytes(gzip.compress(bytes(INDEX_BYTES_MAX + 1), 1))
    with ExitStack() as stack, pytest.raises(Damaged, match=f"more than {INDEX_BYTES_MAX} bytes"):
        read_index(source_of(str(folder), stack))
