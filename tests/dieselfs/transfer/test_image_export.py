"""Exports to EROFS images: the right bytes, each chunk once, and no half-written file."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dieselfs.dataset import Dataset
from dieselfs.errors import AlreadyExists, Damaged, DieselfsError, StorageFull
from dieselfs.snapshot.erofs_image import ImageOwner, ImagePlan
from dieselfs.transfer.image_export import ImageExport
from dieselfs.transfer.spreading import in_threads
from dieselfs.transfer.upload import TreeUpload, walk_source
from tests.dieselfs.transfer.test_download import WatchedReader, assert_same, files_tree, upload
from tests.support.dataset import TreeEntry
from tests.support.erofs import fsck, mounted_image, needs_fsck
from tests.support.random_trees import random_trees
from tests.support.small_disk import small_disk
from tests.support.trees import described, odd_tree, write_tree


@needs_fsck
def test_an_export_mounts_as_the_tree_that_was_uploaded(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    source, image = odd_tree(tmp_path / "tree"), tmp_path / "image.erofs"
    upload(data, source, chunk_bytes=100_000)
    export = ImageExport(data.chunks, str(image))
    report = export.run()
    assert image.stat().st_size == export.size_bytes
    assert report.done_files == report.found_files and report.done_bytes == report.found_bytes
    assert fsck(image) == ""
    with mounted_image(image, tmp_path / "mounted") as mounted:
        assert_same(source, mounted)


@needs_fsck
@given(trees=st.lists(random_trees(), min_size=10, max_size=10))
@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_an_export_of_random_trees_is_what_was_uploaded(
    data: Dataset, tmp_path: Path, trees: list[dict[bytes, TreeEntry]]
) -> None:
    """Each example is a folder of its own in the dataset, exported alone."""
    folder = tmp_path / f"{len(os.listdir(tmp_path))}"
    source, image, name = folder / "tree", folder / "image.erofs", os.fsencode(folder.name)
    for number, tree in enumerate(trees):
        write_tree(tree, source / f"{number}")
    TreeUpload(data.client, data.create(), None, jobs=1, chunk_bytes=50_000).run(
        lambda failed: walk_source(os.fsencode(source), name, failed)
    )
    data.refresh()
    ImageExport(data.chunks, str(image), data.snapshot.require(name)).run()
    assert fsck(image) == ""
    with mounted_image(image, folder / "mounted") as mounted:
        assert described(mounted) == described(source)


def test_each_chunk_is_fetched_once_and_the_image_is_the_same_again(data: Dataset, tmp_path: Path) -> None:
    upload(data, files_tree(tmp_path / "tree"))
    reader = WatchedReader(data)
    ImageExport(reader, str(tmp_path / "one.erofs"), spread=partial(in_threads, jobs=4)).run()
    assert set(reader.fetched) == set(range(data.snapshot.chunk_count))
    assert set(reader.fetched.values()) == {1}
    ImageExport(data.chunks, str(tmp_path / "two.erofs"), spread=partial(in_threads, jobs=1)).run()
    assert (tmp_path / "one.erofs").read_bytes() == (tmp_path / "two.erofs").read_bytes()


def test_between_files_are_zeros(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(30):
        (tmp_path / f"tree/{number}").write_bytes(b"x")
    upload(data, tmp_path / "tree")
    path, image = tmp_path / "image.erofs", ImagePlan(data.snapshot, ImageOwner(0, 0)).write()
    ImageExport(data.chunks, str(path)).run()
    content = np.fromfile(path, np.uint8)
    for node, start in zip(image.nodes.tolist(), image.starts.tolist(), strict=True):
        content[start : start + data.snapshot.size(node)] = 0
    assert len(image.nodes) == 30 and not content[len(image.metadata) :].any()


def test_a_dataset_without_files(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "tree/empty").mkdir(parents=True)
    upload(data, tmp_path / "tree")
    report = ImageExport(data.chunks, str(tmp_path / "image.erofs")).run()
    assert report.done_files == report.found_files
    with mounted_image(tmp_path / "image.erofs", tmp_path / "mounted") as mounted:
        assert_same(tmp_path / "tree", mounted)


def test_an_existing_file_is_replaced_only_on_request(data: Dataset, tmp_path: Path) -> None:
    upload(data, files_tree(tmp_path / "tree", files=3))
    image = tmp_path / "image.erofs"
    image.write_text("something else")
    with pytest.raises(AlreadyExists, match="give -f to replace it"):
        ImageExport(data.chunks, str(image)).run()
    assert image.read_text() == "something else"
    ImageExport(data.chunks, str(image)).run(is_forced=True)
    assert image.stat().st_size > 100_000


def test_damage_leaves_no_file(data: Dataset, tmp_path: Path) -> None:
    upload(data, files_tree(tmp_path / "tree"))
    (tmp_path / "out").mkdir()
    export = ImageExport(
        WatchedReader(data, bad=[1]), str(tmp_path / "out/image.erofs"), spread=partial(in_threads, jobs=2)
    )
    with pytest.raises(Damaged, match="chunk 1"):
        export.run()
    assert os.listdir(tmp_path / "out") == []


def test_a_full_disk_and_a_missing_folder_are_named(data: Dataset, tmp_path: Path) -> None:
    upload(data, files_tree(tmp_path / "tree"))
    with small_disk(tmp_path / "disk", "2m") as disk:
        with pytest.raises(
            StorageFull, match=r"image\.erofs: No space left on device: the image needs up to"
        ):
            ImageExport(data.chunks, str(disk / "image.erofs")).run()
        assert os.listdir(disk) == []
    with pytest.raises(DieselfsError, match=r"missing/image\.erofs: cannot be written: No such file"):
        ImageExport(data.chunks, str(tmp_path / "missing/image.erofs")).run()
