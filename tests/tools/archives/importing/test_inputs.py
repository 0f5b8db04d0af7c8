"""Sources: their labels, compression, times, and temporary files."""

import gzip
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from dieselfs.errors import Damaged, NotFound
from dieselfs_tools.archives.importing.inputs import label_of
from tests.support.http_files import web_file
from tests.support.importing import source_of


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("train-0001.tar.gz", "train-0001"),
        ("a.b.tar", "a.b"),
        ("x.tfrecord", "x"),
        (".tar", ".tar"),
        ("plain", "plain"),
        ("image.tar.jpg", "image.tar.jpg"),
    ],
)
def test_labels_for_templates(tmp_path: Path, name: str, label: str) -> None:
    assert label_of(str(tmp_path / name)) == label


def test_a_folder_and_what_is_missing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        folder = source_of(f"{tmp_path}/", stack)
        assert folder.is_folder and label_of(folder.name) == tmp_path.name and folder.file() == f"{tmp_path}/"
        with pytest.raises(NotFound, match="none: No such file"):
            source_of(str(tmp_path / "none"), stack)


def test_a_local_file_is_read_in_place_and_a_packed_one_from_a_temporary_file(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    with ExitStack() as stack:
        assert source_of(str(tmp_path / "a"), stack).file() == str(tmp_path / "a")
        place = Path(source_of(str(tmp_path / "a.gz"), stack).file())
        assert place.read_bytes() == content
    assert not place.exists()


def test_bytes_before_the_damage_come_first(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content)[:-500_000])
    with ExitStack() as stack:
        stream = source_of(str(tmp_path / "a.gz"), stack).stream()
        found = b""
        with pytest.raises(Damaged, match="cut off or damaged: Compressed file ended"):
            while part := stream.read(100_000):
                found += part
    assert len(found) > 2_000_000 and content.startswith(found)


def test_a_url_has_its_label_and_time() -> None:
    with web_file(b"x" * 5000, "train%201.tar.gz?a=b.tar") as file, ExitStack() as stack:
        source = source_of(file.url, stack)
        assert (label_of(source.name), source.mtime_ns) == ("train 1", 1_600_000_000 * 10**9)
        assert source.stream().read() == file.content
