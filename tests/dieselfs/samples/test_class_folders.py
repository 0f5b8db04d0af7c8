"""Samples and labels are those that `ImageFolder` finds by walking the same tree."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.samples.class_folders import Samples, find_samples
from dieselfs.samples.loading import IMAGE_EXTENSIONS
from dieselfs.snapshot.reader import Snapshot
from tests.support.dataset import pack_tree


def walked(root: Path, extensions: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """What torchvision documents: classes are the sorted sub-folders, samples come by sorted folder, then by name."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name)):
            for file in sorted(files):
                if file.lower().endswith(extensions):
                    yield os.path.join(folder, file), label


def shown(samples: Samples, snapshot: Snapshot, root: Path) -> list[tuple[str, int]]:
    paths = [str(root / os.fsdecode(snapshot.path(int(node)))) for node in samples.nodes]
    return list(zip(paths, samples.labels.tolist(), strict=True))


def write(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(path.encode())
    return root


def random_tree(root: Path, seed: int) -> Path:
    """Names that sort otherwise as paths than as names, extensions of all kinds, folders in folders."""
    numbers = random.Random(seed)
    parts = ["a", "a-b", "a.b", "b", "B", "é", "10", "9", "a b"]
    ends = [".jpg", ".JPG", ".jpeg", ".png", ".txt", "", ".jpg.gz", "jpg", ".Tiff"]
    for number in range(60):
        folders = [numbers.choice(parts) for _ in range(numbers.randrange(1, 4))]
        name = f"{numbers.choice(parts)}{number % 7}{numbers.choice(ends)}"
        write(root, "/".join(["data", *folders, name]))
    for part in os.listdir(root / "data"):
        write(root, f"data/{part}/one.png")
    return write(root, "data/in-no-class.jpg", "other/class/x.jpg", "data.jpg/class/x.jpg")


@pytest.mark.parametrize("seed", range(20))
def test_samples_are_those_of_image_folder(tmp_path: Path, seed: int) -> None:
    snapshot = pack_tree(random_tree(tmp_path, seed)).snapshot
    samples = find_samples(snapshot, b"data")
    assert shown(samples, snapshot, tmp_path) == list(walked(tmp_path / "data", IMAGE_EXTENSIONS))
    everything = find_samples(snapshot, b"data", extensions=None)
    assert shown(everything, snapshot, tmp_path) == list(walked(tmp_path / "data", ("",)))


def test_the_root_of_a_dataset_is_a_folder_as_any_other(tmp_path: Path) -> None:
    snapshot = pack_tree(write(tmp_path, "b/1.jpg", "a/2.jpg", "a/1.jpg", "readme.txt")).snapshot
    samples = find_samples(snapshot, b"")
    assert samples.classes == ("a", "b")
    assert shown(samples, snapshot, tmp_path) == list(walked(tmp_path, IMAGE_EXTENSIONS))


def test_extensions_may_be_chosen(tmp_path: Path) -> None:
    snapshot = pack_tree(write(tmp_path, "a/1.npy", "a/2.NPY", "a/3.jpg", "a/npy")).snapshot
    samples = find_samples(snapshot, b"", [".npy"])
    assert [os.fsdecode(snapshot.name(int(node))) for node in samples.nodes] == ["1.npy", "2.NPY"]
    for wrong in ("", "a/b"):
        with pytest.raises(InvalidInput, match="not a file extension"):
            find_samples(snapshot, b"", [wrong])


def test_a_class_without_samples_is_an_error_as_with_image_folder(tmp_path: Path) -> None:
    snapshot = pack_tree(write(tmp_path, "a/1.jpg", "b/readme.txt", "c/d/readme.txt")).snapshot
    with pytest.raises(NotFound, match=r"no sample in class b, c .*\.jpg"):
        find_samples(snapshot, b"")
    with pytest.raises(NotFound, match="no sub-folder, so there are no classes"):
        find_samples(snapshot, b"a")
    with pytest.raises(NotFound, match="no such file or folder"):
        find_samples(snapshot, b"nowhere")
    with pytest.raises(InvalidInput, match="not a folder"):
        find_samples(snapshot, b"a/1.jpg")


@pytest.mark.parametrize(
    ("link", "target", "is_refused"),
    [
        ("a/2.jpg", "1.jpg", True),
        ("a/linked", "../b", True),
        ("linked", "a", True),
        ("linked.jpg", "a/1.jpg", False),
        ("a/notes", "../nowhere", False),
    ],
)
def test_links_where_image_folder_would_follow_them(
    tmp_path: Path, link: str, target: str, is_refused: bool
) -> None:
    write(tmp_path, "a/1.jpg", "b/1.jpg")
    (tmp_path / link).symlink_to(target)
    snapshot = pack_tree(tmp_path).snapshot
    if is_refused:
        with pytest.raises(InvalidInput, match=f"{link} is a symbolic link"):
            find_samples(snapshot, b"")
    else:
        assert len(find_samples(snapshot, b"").nodes) == 2
