"""Datasets for fsspec, and for what reads through it: pandas, pyarrow, dask, zarr, Hugging Face datasets. This module
waits for sockets.

    pandas.read_csv("dl://tables@v2/train.csv")
    fsspec.filesystem("dl", server="tcp://storage-1:7070").ls("imagenet/train")

The package's entry point registers the protocol `dl`.
"""

import errno
import os
from datetime import UTC, datetime
from typing import Any, NoReturn

from fsspec.spec import AbstractFileSystem

from dieselfs.dataset import Dataset
from dieselfs.dataset.locations import Locations
from dieselfs.errors import NotFound
from dieselfs.limits import LIBRARY_MEMORY_BYTES
from dieselfs.names import SCHEME, Location, parse_location, printable
from dieselfs.rpc.client import ServerClient
from dieselfs.settings import Settings
from dieselfs.snapshot.reader import Stat
from dieselfs.snapshot.subtree import listed_children

_NS = 1_000_000_000


class DieselFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Reads datasets. A path is `dataset[@tag]/path`; the root lists the datasets. Each dataset stays at the generation
    with which it was opened first; `invalidate_cache` opens the newest. Changes are refused with EROFS: `dlcmd put` and
    `dieselfs.connect` make them.

    Raises FileNotFoundError for a missing dataset or path, else DieselfsError.
    """

    protocol = "dl"
    root_marker = ""

    def __init__(
        self,
        server: str | None = None,
        key_file: str | None = None,
        home: str | None = None,
        memory_bytes: int = LIBRARY_MEMORY_BYTES,
        **storage_options: Any,
    ) -> None:
        """The first four are those of `dieselfs.connect`; `storage_options`: those of all fsspec filesystems."""
        super().__init__(**storage_options)
        self._settings = server, key_file, home
        self._locations = Locations(server=server, key_file=key_file, home=home, memory_bytes=memory_bytes)

    @property
    def fsid(self) -> str:
        return "dl" + "_".join(str(option) for option in self._settings if option)

    # -- names -------------------------------------------------------------------------------------------

    def _at(self, path: str) -> tuple[Dataset, Location]:
        """Raises FileNotFoundError if there is no such dataset."""
        location = parse_location(SCHEME + self._strip_protocol(path))
        try:
            return self._locations.dataset(location.state), location
        except NotFound as error:
            raise FileNotFoundError(errno.ENOENT, str(error), path) from error

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """The entry of a path; for a link, of its target. A broken link has the type "link". `mtime` is in seconds."""
        path = self._strip_protocol(path)
        if not path:
            return {"name": "", "size": 0, "type": "directory"}
        data, location = self._at(path)
        node = data.snapshot.find(location.path)  # -1 behind a link to a folder
        return self._entry_of(path, data, node if node >= 0 else data.snapshot.follow(location.path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        entries = [self.info(path)] if path else self._datasets()
        if path and entries[0]["type"] == "directory":
            data, location = self._at(path)
            snapshot = data.snapshot
            prefix = path + "/"
            entries = [
                self._entry_of(prefix + os.fsdecode(snapshot.name(node)), data, node)
                for node in listed_children(snapshot, snapshot.follow(location.path))
            ]
        return entries if detail else [entry["name"] for entry in entries]

    def _entry_of(self, path: str, data: Dataset, node: int) -> dict[str, Any]:
        snapshot = data.snapshot
        status = snapshot.stat(node)
        if not status.is_link:
            return _entry(path, status)
        try:
            return _entry(path, snapshot.stat(snapshot.follow(snapshot.path(node))), is_link=True)
        except NotFound:  # a broken link is listed as what it is
            return _entry(path, status, is_link=True) | {"type": "link", "size": 0}

    def _datasets(self) -> list[dict[str, Any]]:
        server, key_file, home = self._settings
        client = ServerClient(Settings.load(server, key_file, home=home))
        try:
            return [
                {"name": record.name, "size": 0, "type": "directory", "generation": record.generation}
                for record in client.datasets()
            ]
        finally:
            client.close()

    def invalidate_cache(self, path: str | None = None) -> None:
        """The next access opens each dataset at its newest generation."""
        self._locations.close()
        super().invalidate_cache(path)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def ukey(self, path: str) -> str:
        """Changes whenever the file may have changed."""
        data, location = self._at(path)
        return f"{data.snapshot.digest.hex()}-{data.snapshot.follow(location.path)}"

    checksum = ukey

    # -- bytes -------------------------------------------------------------------------------------------

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode != "rb":
            _refuse(path)
        data, location = self._at(path)
        if data.snapshot.stat(data.snapshot.follow(location.path)).is_folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return data.open(location.path)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """As a slice: negative positions count from the end."""
        data, location = self._at(path)
        if start is None and end is None:
            return data.get(location.path)
        size = data.snapshot.size(data.snapshot.follow(location.path))
        start, end, _step = slice(start, end).indices(size)
        return data.get_range(location.path, start, end)

    # -- changes -----------------------------------------------------------------------------------------

    def _refused(self, path: Any = "", *_: Any, **__: Any) -> Any:
        """Raises OSError."""
        _refuse(path)

    mkdir = makedirs = rmdir = touch = pipe_file = put_file = cp_file = mv = rm = rm_file = _rm = _refused


def _entry(path: str, status: Stat, is_link: bool = False) -> dict[str, Any]:
    return {
        "name": path,
        "size": 0 if status.is_folder else status.size,
        "type": "directory" if status.is_folder else "file",
        "mode": status.mode,
        "mtime": status.mtime_ns / _NS,
        "ino": status.inode,
        "islink": is_link,
    }


def _refuse(path: Any) -> NoReturn:
    place = path if isinstance(path, str) else ", ".join(map(str, path))
    reason = "datasets are read-only through fsspec; change them with `dlcmd put` or dieselfs.connect"
    raise OSError(errno.EROFS, reason, printable(os.fsencode(place)))
