"""Datasets of files that share a base name, in plain folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.samples.base_names import KEY, PairSamples


def write(root: Path, name: str, content: bytes = b"") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content or name.encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(4):
        name = f"train/{'ab'[number % 2]}/{number:03}"
        write(tmp_path, f"{name}.JPG")
        Image.new("L", (2, 1), number).save(tmp_path / f"{name}.mask.png")
        write(tmp_path, f"{name}.json", json.dumps({"number": number}).encode())
    write(tmp_path, "train/readme")
    write(tmp_path, "train/.hidden")
    return tmp_path


def test_files_of_a_base_name_are_one_sample(root: Path) -> None:
    with PairSamples(root / "train", loaders={".jpg": bytes}) as samples:
        assert samples.extensions == ["jpg", "json", "mask.png"] and len(samples) == 4
        assert samples.samples == ["a/000", "a/002", "b/001", "b/003"]
        item = samples[1]
        assert (item[KEY], item["jpg"], item["json"]) == ("a/002", b"train/a/002.JPG", {"number": 2})
        assert (item["mask.png"].mode, item["mask.png"].getpixel((0, 0))) == ("RGB", (2, 2, 2))
        assert [one["json"]["number"] for one in samples.__getitems__([3, 0, 3])] == [3, 0, 3]
        assert samples.path(0) == "a/000.JPG"


def test_chosen_extensions_and_a_transform(root: Path) -> None:
    def number(item: dict[str, Any]) -> int:
        assert item.keys() == {KEY, "json"}
        found: int = item["json"]["number"]
        return found

    with PairSamples(root, [".JSON"], number) as samples:
        assert samples.__getitems__(range(4)) == [0, 2, 1, 3]


def test_a_missing_file_is_named_and_samples_may_be_partial_on_request(root: Path) -> None:
    (root / "train/a/000.JPG").unlink()
    (root / "train/b/001.json").unlink()
    with pytest.raises(NotFound, match=r"2 files of 2 samples are missing: a/000\.jpg, b/001\.json; is_"):
        PairSamples(root / "train", loaders={"jpg": bytes})
    with PairSamples(
        root / "train", ["jpg", "json"], loaders={"jpg": bytes}, is_partial_allowed=True
    ) as samples:
        assert [sorted(item) for item in samples.__getitems__(range(4))] == [
            [KEY, "json"],
            [KEY, "jpg", "json"],
            [KEY, "jpg"],
            [KEY, "jpg", "json"],
        ]


def test_what_cannot_be(root: Path) -> None:
    with pytest.raises(NotFound, match="no file with the extension gif or tif"):
        PairSamples(root, ["gif", "tif"])
    with pytest.raises(InvalidInput, match="a loader for txt, but no such file"):
        PairSamples(root, ["json"], loaders={"txt": bytes})
    with pytest.raises(InvalidInput, match="not a file extension"):
        PairSamples(root, ["."])
    write(root, "train/a/000.jpg")
    with pytest.raises(InvalidInput, match="are the same part of one sample"):
        PairSamples(root, ["jpg"])
