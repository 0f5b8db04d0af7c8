"""The volumes of a node: publishes datasets at the paths that Kubernetes gives, and takes them away.

A volume is a mount of its own, whose processes outlive the plugin. All that is kept is the key of each volume, in a
file. This module mounts, and writes files.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from dieselfs.errors import AlreadyExists, DieselfsError, InvalidInput, MountError
from dieselfs.limits import MOUNT_START_TIMEOUT_S
from dieselfs.names import SCHEME, is_file_path, is_location, parse_location
from dieselfs.net.auth import KEY_FILE_BYTES_MAX
from dieselfs.net.private_file import write_private_file
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import is_stale, mount_at
from dieselfs_client.mount.points.options import MountOptions, parse_options

DATASET, SERVER, KEY = "dataset", "server", "key"
"""Attributes of a volume, and the entry of its secret that is a key file."""
OPTIONS = (
    "generation",
    "job",
    "job_nodes",
    "memory",
    "noexec",
    "policy",
    "timeout",
    "view",
    "warm_rate",
    "where",
)
"""Mount options that a volume may set. Others name files and users of the node."""
SCHEMES = "tcp://", "etcd://"
"""Addresses of servers that a volume may name: not those of the node itself."""
ATTRIBUTE_PREFIX = "csi.storage.k8s.io/"
"""Of attributes that Kubernetes adds."""
LAYERS_MAX = 8
"""Mounts on one path that an unpublication takes away: one, or a few that have ended one after the other."""

_log = logging.getLogger(__name__)


class Pending(DieselfsError):
    """Another call on the same path has not ended."""


@dataclass(frozen=True, slots=True)
class Volume:
    """What a pod asks for.

    - `attributes`: of the volume, `flags`: mount options of a persistent volume; `secrets`: of the pod's namespace
    - `is_inline`: written in the pod by its user, not in a persistent volume by an administrator
    """

    target: str
    attributes: Mapping[str, str]
    flags: Sequence[str] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    is_inline: bool = False

    def location(self) -> str:
        """The dataset. Raises InvalidInput."""
        text = self.attributes.get(DATASET, "")
        if not text or is_file_path(text):
            raise InvalidInput(
                f"attribute {DATASET}: {text!r}; give a dataset such as dl://imagenet@v1/train"
            )
        return parse_location(text if is_location(text) else SCHEME + text).part

    def options(self, base: MountOptions) -> MountOptions:
        """`base` with the options of the volume. Raises InvalidInput."""
        options = base
        for name, value in self.attributes.items():
            if name not in (DATASET, SERVER) and not name.startswith(ATTRIBUTE_PREFIX):
                options = _with_option(options, name, value)
        for flag in self.flags:
            name, _, value = flag.partition("=")
            options = _with_option(options, name, value)
        server = self.attributes.get(SERVER)
        if server and not server.startswith(SCHEMES):
            raise InvalidInput(f"attribute {SERVER}: {server!r}; give tcp://HOST:PORT or etcd://HOST:PORT")
        return replace(options, server=server or options.server)


def _with_option(options: MountOptions, name: str, value: str) -> MountOptions:
    if name not in OPTIONS:
        raise InvalidInput(f"option {name!r} is not for volumes; these are: {', '.join(OPTIONS)}")
    escaped = value.replace(",", "\\,")
    return parse_options(name if value in ("", "true") else f"{name}={escaped}", options)


class Volumes:
    """The volumes of this node. Calls may come from several threads.

    - `folder`: where the keys of volumes are kept, for root alone
    - `base`: the options of all volumes, with the server and the key of the node
    """

    def __init__(self, folder: Path, base: MountOptions) -> None:
        self._folder, self._base = folder, base
        self._pending: set[str] = set()
        self._guard = Lock()
        """Of `_pending`."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def publish(self, volume: Volume, timeout_s: float = MOUNT_START_TIMEOUT_S) -> None:
        """Mount the dataset of a volume on its path, which is made. A volume that is there already stays as it is.

        Raises InvalidInput, AlreadyExists if another dataset is mounted there, Pending, and the errors of
        `control.mount`. After an error nothing is left.
        """
        target, location = _checked(volume.target), volume.location()
        options = volume.options(self._base)
        key = self._key_file(target)
        if KEY in volume.secrets:
            options = replace(options, key_file=str(key))
        elif volume.is_inline:
            # Or each user who may make pods would read what the node may read.
            raise InvalidInput(
                f"a volume in a pod needs a secret with the entry {KEY!r}: nodePublishSecretRef"
            )
        with self._alone(target):
            if (record := mount_at(target)) is not None and not is_stale(target):
                if record.is_dieselfs and record.dataset == location:
                    return
                raise AlreadyExists(f"{target}: {record.source} is mounted there")
            was_there = record is not None
            try:
                if not was_there:
                    os.makedirs(target, 0o750, exist_ok=True)
                if KEY in volume.secrets:
                    content = volume.secrets[KEY].encode()
                    if len(content) > KEY_FILE_BYTES_MAX:
                        raise InvalidInput(
                            f"the entry {KEY!r} of the secret has more than {KEY_FILE_BYTES_MAX} bytes"
                        )
                    write_private_file(key, content)
                control.mount(SCHEME + location, target, options, timeout_s)
            except BaseException:
                if not was_there:
                    with suppress(MountError):  # the error before says what is wrong
                        self._remove(target)
                raise
        _log.info("published %s at %s", location, target)

    def unpublish(self, target: str) -> None:
        """Unmount what is at a path, and remove the path. Nothing happens if nothing is there.

        Files that are open stay readable. Raises InvalidInput, MountError and Pending.
        """
        _checked(target)
        with self._alone(target):
            for _ in range(LAYERS_MAX):
                if mount_at(target) is None:
                    break
                control.unmount(target, lazily=True)
            self._remove(target)
        _log.info("unpublished %s", target)

    def _remove(self, target: str) -> None:
        self._key_file(target).unlink(missing_ok=True)
        try:
            os.rmdir(target)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise MountError(f"{target}: cannot be removed: {error.strerror}") from None

    def _key_file(self, target: str) -> Path:
        return self._folder / f"{hashlib.sha256(target.encode()).hexdigest()}.key"

    @contextmanager
    def _alone(self, target: str) -> Iterator[None]:
        with self._guard:
            if target in self._pending:
                raise Pending(f"{target}: another call on it has not ended")
            self._pending.add(target)
        try:
            yield
        finally:
            with self._guard:
                self._pending.discard(target)


def _checked(target: str) -> str:
    """The path, which is absolute and leads through no links. Raises InvalidInput."""
    parent = os.path.dirname(target)
    if not os.path.isabs(target) or os.path.normpath(target) != target or os.path.realpath(parent) != parent:
        raise InvalidInput(f"target path {target!r}: give an absolute path without links, '.' and '..'")
    with suppress(OSError):
        if os.path.islink(target):
            raise InvalidInput(f"target path {target!r} is a link")
    return target
