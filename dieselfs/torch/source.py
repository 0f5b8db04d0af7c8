"""Where the bytes of samples come from: the library, or a mount. This module opens files and waits for sockets."""

import json
import os
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import quote

from dieselfs.dataset import Dataset, connect
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.limits import LIBRARY_MEMORY_BYTES, NAME_BYTES_MAX
from dieselfs.meta.snapshot import Snapshot
from dieselfs.names import SCHEME, is_location, parse_location, user_path
from dieselfs.shuffle.plan import Share

CONTROL_FOLDER = ".dieselfs"
"""In the root of every mount, and in no listing."""


class Source(Protocol):
    """Files of one snapshot by their nodes. Survives fork and pickle, so it can travel to workers."""

    @property
    def snapshot(self) -> Snapshot: ...

    def read_many(self, nodes: Sequence[int]) -> list[bytes]:
        """All bytes of each file, in this order. Raises DieselfsError, or OSError on a mount."""
        ...

    def expect_plan(self) -> None:
        """All reads will follow a plan: the rest of a chunk is wanted soon, by this process or by another."""
        ...

    def declare(self, share: Share) -> None:
        """Say what will be read, so that it can be fetched ahead."""
        ...

    def close(self) -> None: ...


class LibrarySource:
    """Reads through `dieselfs.Dataset`."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._is_planned = False  # travels to workers, which begin later

    @property
    def snapshot(self) -> Snapshot:
        return self.dataset.snapshot

    def read_many(self, nodes: Sequence[int]) -> list[bytes]:
        return self.dataset.get_nodes(nodes, is_common=self._is_planned)

    def expect_plan(self) -> None:
        self._is_planned = True

    def declare(self, share: Share) -> None:
        """Nobody fetches ahead for the library: what a batch needs is asked for together."""

    def close(self) -> None:
        self.dataset.close()


class MountSource:
    """Reads files on a mount, whose snapshot this process maps too: no folder is ever listed."""

    def __init__(self, mountpoint: str, snapshot: Snapshot) -> None:
        self._mountpoint = mountpoint
        self._prefix = os.fsencode(mountpoint) + b"/"
        self.snapshot = snapshot

    def read_many(self, nodes: Sequence[int]) -> list[bytes]:
        snapshot, prefix = self.snapshot, self._prefix
        return [_read_file(prefix + snapshot.path(node), snapshot.size(node)) for node in nodes]

    def expect_plan(self) -> None:
        """The mount hears of the plan itself."""

    def declare(self, share: Share) -> None:
        """Reading the list of a share declares it; one byte is enough. Raises OSError, EINVAL if the mount says no.

        What no name has room for (many skips, in a deep folder) is read all the same, but not ahead.
        """
        name = shuffle_name(share)
        if len(name) <= NAME_BYTES_MAX:
            path = os.path.join(self._mountpoint, CONTROL_FOLDER, "shuffle", name)
            with open(path, "rb", buffering=0) as file:
                file.read(1)

    def close(self) -> None:
        """Nothing is held but the mapped snapshot."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _same_mount, (self._mountpoint, self.snapshot.source)


def shuffle_name(share: Share) -> str:
    """The name that a share has on a mount, in `.dieselfs/shuffle/`."""
    keys = {
        "cursor": share.plan.cursor(share.start),
        "folder": quote(share.plan.folder, safe=""),
        "rank": share.rank,
        "world": share.world,
        "batch": share.batch,
        "drop_last": int(share.end < len(share.plan)),
        "null": 1,  # no path is then without a line that can hold it
    }
    return ",".join(f"{key}={value}" for key, value in keys.items() if value != "")


def _same_mount(mountpoint: str, snapshot_file: str) -> MountSource:
    return MountSource(mountpoint, Snapshot.open(snapshot_file))


def _read_file(path: bytes, size: int) -> bytes:
    """A whole file with the plain system calls: no `fstat`, and no question whether it is a terminal."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, size)
        while len(content) < size:  # one read gives at most 2 GiB
            more = os.read(descriptor, size - len(content))
            if not more:
                raise Damaged(f"{os.fsdecode(path)}: ends after {len(content)} of {size} bytes")
            content += more
        return content
    finally:
        os.close(descriptor)


def open_source(
    root: str | os.PathLike[str],
    *,
    server: str | None = None,
    key_file: str | None = None,
    home: str | os.PathLike[str] | None = None,
    memory_bytes: int | None = None,
    job: str | None = None,
    job_secret: str | os.PathLike[str] | None = None,
) -> tuple[Source, bytes]:
    """What `root` names, and the folder in it: `imagenet@v3/train` in a dataset, `/mnt/imagenet/train` on a mount.

    A text that begins with `/` or `.`, and any `Path`, is a path on a mount; the options are for datasets, as those of
    `dieselfs.connect`, and raise what it raises. Raises InvalidInput if nothing of dieselfs is mounted there.
    """
    if not isinstance(root, str) or root.startswith(("/", ".")):
        if server or key_file or home or memory_bytes or job or job_secret:
            raise InvalidInput(
                f"{os.fspath(root)}: the options of a connection are for datasets, not for mounts"
            )
        return _mounted(os.path.realpath(root))
    location = parse_location(root if is_location(root) else SCHEME + root)
    memory_bytes = LIBRARY_MEMORY_BYTES if memory_bytes is None else memory_bytes
    dataset = connect(
        location.state,
        server=server,
        key_file=key_file,
        home=home,
        memory_bytes=memory_bytes,
        job=job,
        job_secret=job_secret,
    )
    return LibrarySource(dataset), location.path


def _mounted(path: str) -> tuple[MountSource, bytes]:
    mountpoint = path
    while not os.path.exists(os.path.join(mountpoint, CONTROL_FOLDER, "info")):
        if mountpoint == os.path.dirname(mountpoint):
            raise InvalidInput(
                f"{path}: no dataset is mounted there (dlcmd mounts lists what is); "
                "to read it without a mount, name the dataset, as in imagenet/train"
            )
        mountpoint = os.path.dirname(mountpoint)
    with open(os.path.join(mountpoint, CONTROL_FOLDER, "info"), "rb") as file:
        info = json.load(file)
    snapshot = Snapshot.open(info["snapshot"])
    if snapshot.digest.hex() != info["digest"]:
        raise Damaged(f"{info['snapshot']}: not the snapshot that is mounted on {mountpoint}")
    return MountSource(mountpoint, snapshot), user_path(
        os.path.relpath(path, mountpoint) if path != mountpoint else ""
    )
