"""Datasets through fsspec: its own tests for reading, and the libraries that read through it, over a real server."""

import errno
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import fsspec
import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
from fsspec.tests.abstract import AbstractFixtures, AbstractGetTests

from dieselfs.dataset import Dataset
from dieselfs.filesystem import DieselFileSystem
from tests.support.server import RunningServer


class Writable(DieselFileSystem):
    """Makes the scenarios of fsspec's tests, which begin with writes."""

    data: Dataset

    def _place(self, path: str) -> str:
        self.invalidate_cache()
        return str(self._strip_protocol(path)).removeprefix(self.data.name + "/")

    def makedirs(self, path: str = "", *_: Any, **__: Any) -> None:
        self.data.writer.put_folder(self._place(path).encode(), 0o40755, 0)
        self.data.flush()

    mkdir = makedirs

    def pipe(self, path: str = "", value: bytes = b"", *_: Any, **__: Any) -> None:
        self.data.put(self._place(path), value)
        self.data.flush()

    touch = pipe

    def rm(self, path: str = "", *_: Any, **__: Any) -> None:
        """Each test has a dataset of its own."""


def options_of(server: RunningServer) -> dict[str, Any]:
    settings = server.settings()
    return {"server": settings.server, "key_file": settings.key_file, "skip_instance_cache": True}


class TestGet(AbstractFixtures, AbstractGetTests):  # type: ignore[misc]  # fsspec has no types
    """fsspec's tests of downloads."""

    @pytest.fixture
    def fs(self, server: RunningServer, data: Dataset) -> Iterator[DieselFileSystem]:
        filesystem = Writable(**options_of(server))
        filesystem.data = data
        yield filesystem
        filesystem.invalidate_cache()

    @pytest.fixture
    def fs_path(self, data: Dataset) -> str:
        return data.name

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)


@pytest.fixture
def fs(server: RunningServer) -> Iterator[DieselFileSystem]:
    filesystem = fsspec.filesystem("dl", **options_of(server))
    yield filesystem
    filesystem.invalidate_cache()


@pytest.fixture
def tree(data: Dataset) -> str:
    """The path of a small tree with a large file and links."""
    data.put("a/one.txt", b"one", mtime_ns=1_500_000_000_000_000_000)
    data.put("a/b/large.bin", bytes(range(250)) * 40_000)
    data.writer.put_link(b"link", b"a/one.txt", 0o120777, 0)
    data.writer.put_link(b"broken", b"missing", 0o120777, 0)
    data.flush()
    return data.name


def test_listings_and_entries(fs: DieselFileSystem, tree: str) -> None:
    assert tree in fs.ls("", detail=False)
    assert fs.ls(tree, detail=False) == [f"{tree}/{name}" for name in ("a", "broken", "link")]
    assert [entry["type"] for entry in fs.ls(f"dl://{tree}/")] == ["directory", "link", "file"]
    entry = fs.info(f"dl://{tree}/link")
    assert (entry["size"], entry["type"], entry["islink"], entry["mtime"]) == (3, "file", True, 1.5e9)
    assert fs.find(tree) == [f"{tree}/a/b/large.bin", f"{tree}/a/one.txt", f"{tree}/broken", f"{tree}/link"]
    assert fs.glob(f"{tree}/a/*.txt") == [f"{tree}/a/one.txt"]
    assert fs.isdir(f"{tree}/a") and fs.isfile(f"{tree}/link") and not fs.exists(f"{tree}/no")
    assert not fs.exists("there-is-no-dataset/x")
    assert fs.du(tree) == 10_000_003 + 3
    assert fs.modified(f"{tree}/a/one.txt").timestamp() == 1.5e9


def test_contents_whole_and_in_ranges(fs: DieselFileSystem, tree: str) -> None:
    large = bytes(range(250)) * 40_000
    place = f"dl://{tree}/a/b/large.bin"
    assert fs.cat(f"{tree}/a/one.txt") == b"one"
    assert fs.cat_file(place, 4_194_000, 4_195_000) == large[4_194_000:4_195_000]
    assert fs.cat_file(place, -10) == large[-10:]
    assert fs.cat_file(place, 20, 10) == b""
    assert fs.cat_ranges([place, place], [0, 9_999_990], [7, 20_000_000]) == [large[:7], large[-10:]]
    with fsspec.open(place, **fs.storage_options) as file:
        file.seek(5_000_000)
        assert file.read(1_000) == large[5_000_000:5_001_000]
    assert fs.head(place, 5) == large[:5] and fs.tail(place, 5) == large[-5:]


def test_a_filesystem_pickles_for_workers(fs: DieselFileSystem, tree: str) -> None:
    again = ForkingPickler.loads(ForkingPickler.dumps(fs))
    assert again.cat(f"{tree}/a/one.txt") == b"one"
    again.invalidate_cache()


def test_what_was_stored_later_is_seen_after_invalidation(
    fs: DieselFileSystem, data: Dataset, tree: str
) -> None:
    before = fs.ukey(f"{tree}/a/one.txt")
    assert not fs.exists(f"{tree}/new")
    data.put("new", b"1")
    data.flush()
    assert not fs.exists(f"{tree}/new")
    fs.invalidate_cache()
    assert fs.cat(f"{tree}/new") == b"1"
    assert fs.ukey(f"{tree}/a/one.txt") != before


@pytest.mark.parametrize(
    "change",
    [
        lambda fs, path: fs.pipe(path, b"1"),
        lambda fs, path: fs.open(path, "wb"),
        lambda fs, path: fs.rm(path, recursive=True),
        lambda fs, path: fs.mkdir(path),
        lambda fs, path: fs.touch(path),
        lambda fs, path: fs.mv(path, path + "2"),
    ],
)
def test_changes_are_refused(fs: DieselFileSystem, tree: str, change: Callable[[Any, str], None]) -> None:
    with pytest.raises(OSError, match="read-only through fsspec") as raised:
        change(fs, f"{tree}/a/one.txt")
    assert raised.value.errno == errno.EROFS
    assert fs.cat(f"{tree}/a/one.txt") == b"one"


def test_missing_files_and_folders(fs: DieselFileSystem, tree: str) -> None:
    with pytest.raises(FileNotFoundError):
        fs.open(f"{tree}/no")
    with pytest.raises(FileNotFoundError):
        fs.ls("there-is-no-dataset")
    with pytest.raises(IsADirectoryError):
        fs.open(f"{tree}/a")


def test_pandas_and_pyarrow_read_through_it(fs: DieselFileSystem, data: Dataset, tmp_path: Path) -> None:
    table = pyarrow.table({"x": list(range(1000)), "y": [str(number) for number in range(1000)]})
    for part in range(2):
        pyarrow.parquet.write_table(table, tmp_path / f"{part}.parquet", row_group_size=100)
        data.put(f"tables/{part}.parquet", (tmp_path / f"{part}.parquet").read_bytes())
    data.put("table.csv", b"x,y\n1,2\n3,4\n")
    data.flush()
    options = fs.storage_options
    frame = pandas.read_csv(f"dl://{data.name}/table.csv", storage_options=options)
    assert frame.to_numpy().tolist() == [[1, 2], [3, 4]]
    frame = pandas.read_parquet(f"dl://{data.name}/tables/1.parquet", storage_options=options)
    assert frame["x"].sum() == sum(range(1000))
    parts = pyarrow.dataset.dataset(f"{data.name}/tables", filesystem=fs, format="parquet")
    assert parts.to_table(filter=pyarrow.dataset.field("x") == 7)["y"].to_pylist() == ["7", "7"]
