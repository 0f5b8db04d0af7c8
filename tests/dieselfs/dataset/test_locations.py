"""Files by their location, over a real server."""

import io
import os

import numpy as np
import pytest

import dieselfs
from dieselfs.dataset import Dataset
from dieselfs.dataset.locations import Locations
from dieselfs.errors import InvalidInput, NotFound, PathNotFound
from tests.support.server import RunningServer


def options(server: RunningServer) -> dict[str, str | None]:
    settings = server.settings()
    return {"server": settings.server, "key_file": settings.key_file}


def test_a_small_and_a_large_file_are_opened_by_location(data: Dataset, server: RunningServer) -> None:
    array = np.arange(2_000_000)
    stream = io.BytesIO()
    np.save(stream, array)
    data.put("folder/array.npy", stream.getvalue())
    data.put("small.txt", b"two\nlines\n")
    data.flush()
    with dieselfs.open(f"dl://{data.name}/small.txt", **options(server)) as file:
        assert file.readlines() == [b"two\n", b"lines\n"]
    with dieselfs.open(f"dl://{data.name}/folder/array.npy", **options(server)) as file:
        file.seek(-8, os.SEEK_END)
        assert np.frombuffer(file.read(), np.int64) == [1_999_999]
        file.seek(0)
        assert (np.load(file) == array).all()


def test_missing_and_bad_locations_are_refused(data: Dataset, server: RunningServer) -> None:
    data.put("file", b"1")
    data.flush()
    with pytest.raises(PathNotFound, match="no such file"):
        dieselfs.open(f"dl://{data.name}/missing", **options(server))
    with pytest.raises(FileNotFoundError):
        dieselfs.open(f"dl://{data.name}/missing", **options(server))
    with pytest.raises(NotFound):
        dieselfs.open("dl://there-is-none/file", **options(server))
    with pytest.raises(InvalidInput, match="names a dataset, not a file"):
        dieselfs.open(f"dl://{data.name}", **options(server))
    with pytest.raises(InvalidInput, match="not a dataset location"):
        dieselfs.open(data.name, **options(server))


def test_a_dataset_is_opened_once_and_closed_with_the_locations(data: Dataset, server: RunningServer) -> None:
    data.put("file", b"1")
    data.flush()
    locations = Locations(**options(server))
    opened = locations.dataset(data.name)
    assert locations.dataset(data.name) is opened
    locations.close()
    with pytest.raises(InvalidInput, match="closed"):
        opened.get("file")
    again = locations.dataset(data.name)
    assert again is not opened and again.get("file") == b"1"
    locations.close()
