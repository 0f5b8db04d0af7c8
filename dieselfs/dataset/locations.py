"""Datasets that are opened by the location of a file in them (`dl://dataset@tag/path`), and kept open. This module
waits for sockets.
"""

import atexit
import io
import os
from functools import lru_cache
from threading import Lock
from typing import Any

from dieselfs.dataset.dataset import Dataset, connect
from dieselfs.errors import InvalidInput
from dieselfs.names import parse_location

OPTION_SETS_MAX = 16
"""Different options of `open_file` whose datasets stay open."""


class Locations:
    """Opens each dataset once, with the same options. Thread-safe; datasets work in forked processes."""

    def __init__(self, **options: Any) -> None:
        """`options`: those of `dieselfs.connect`."""
        self.options = options
        self._lock = Lock()  # guards the datasets
        self._datasets: dict[str, Dataset] = {}

    def dataset(self, state: str) -> Dataset:
        """The dataset `name` or `name@tag`, at the generation that it had when it was opened here first. Raises as
        `dieselfs.connect`.
        """
        with self._lock:
            if state not in self._datasets:
                self._datasets[state] = connect(state, **self.options)
            return self._datasets[state]

    def close(self) -> None:
        """Close all datasets. May be called again."""
        with self._lock:
            datasets, self._datasets = [*self._datasets.values()], {}
        for dataset in datasets:
            dataset.close()


@lru_cache(OPTION_SETS_MAX)
def _shared(**options: Any) -> Locations:
    locations = Locations(**options)
    atexit.register(locations.close)
    return locations


def open_file(
    location: str,
    *,
    server: str | None = None,
    key_file: str | None = None,
    home: str | os.PathLike[str] | None = None,
) -> io.BytesIO | io.BufferedReader:
    """A file of a dataset as a binary, seekable file object: `dieselfs.open("dl://imagenet@v3/train/cat/1.jpg")`.

    The dataset stays open for later calls, at the generation of the first one. The options are those of
    `dieselfs.connect`, and so are the errors; PathNotFound (a FileNotFoundError) if there is no such file.
    """
    place = parse_location(location)
    if not place.path:
        raise InvalidInput(
            f"{location} names a dataset, not a file: add a path, as in {location.rstrip('/')}/a.jpg"
        )
    own_home = None if home is None else os.fspath(home)
    return _shared(server=server, key_file=key_file, home=own_home).dataset(place.state).open(place.path)
