"""The volumes of a node: publishes datasets at the paths that Kubernetes gives, and takes them away.

A volume is a mount of its own, whose processes outlive the plugin. Files keep the options of each volume, and its key,
which is that of a secret, or one that servers have given for a token of the pod. This module mounts, writes files, and
opens sockets.
"""

import hashlib
import json
import logging
import os
import time
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
from dieselfs.oidc.grants import Tokens
from dieselfs.process.state_dirs import make_private
from dieselfs.rpc.login import Login, log_in, read_login
from dieselfs.settings.table import Settings
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import is_stale, mount_at
from dieselfs_client.mount.points.options import MountOptions, format_options, parse_options

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
TOKENS, AUDIENCE = f"{ATTRIBUTE_PREFIX}serviceAccount.tokens", "dieselfs"
"""The tokens of the service account of a pod, by audience, and the audience of ours: `tokenRequests` of the driver."""
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

    def token(self) -> str:
        """Of the service account of the pod; empty without one. Raises InvalidInput."""
        try:
            found = json.loads(self.attributes.get(TOKENS) or "{}")
            return str(found[AUDIENCE]["token"]) if AUDIENCE in found else ""
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidInput(f"attribute {TOKENS}: not as Kubernetes writes it") from None

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
    - `settings`: of all volumes, with the server and the key of the node

    Raises OSError, and AccessDenied if other users can enter the folder.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder, self._settings = folder, settings
        self._base = MountOptions(server=settings.server, key_file=settings.key_file, allow_other=True)
        self._pending: set[str] = set()
        self._guard = Lock()
        """Of `_pending`."""
        make_private(folder)

    def publish(self, volume: Volume, timeout_s: float = MOUNT_START_TIMEOUT_S) -> None:
        """Mount the dataset of a volume on its path, which is made. A volume that is there already stays as it is; a
        login for a token of its pod is renewed when it is due, so the kubelet calls this periodically.

        Raises InvalidInput, AlreadyExists if another dataset is mounted there, or this one with other options, Pending,
        and the errors of `log_in` and `control.mount`. After an error nothing is left that was not there.
        """
        target, location = _checked(volume.target), volume.location()
        options, stated = volume.options(self._base), format_options(volume.options(MountOptions())).encode()
        key, kept = self._file(target, "key"), self._file(target, "options")
        token = volume.token() if volume.is_inline and KEY not in volume.secrets else ""
        if KEY in volume.secrets or token:
            options = replace(options, key_file=str(key))
        elif volume.is_inline:
            # Or each user who may make pods would read what the node may read.
            raise InvalidInput(
                f"a volume in a pod needs a secret with the entry {KEY!r} (nodePublishSecretRef), or a token of its "
                f"service account (tokenRequests with the audience {AUDIENCE!r} in the CSIDriver object)"
            )
        with self._alone(target):
            if (record := mount_at(target)) is not None and not is_stale(target):
                if not record.is_dieselfs or record.dataset != location:
                    raise AlreadyExists(f"{target}: {record.source} is mounted there")
                if kept.exists() and kept.read_bytes() != stated:
                    raise AlreadyExists(f"{target}: the volume is published with other options")
                self._log_in(options, token)
                return
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
                self._log_in(options, token)
                write_private_file(kept, stated)
                control.mount(SCHEME + location, target, options, timeout_s)
            except BaseException:
                if not was_there:
                    with suppress(MountError):  # the error before says what is wrong
                        self._remove(target)
                raise
        _log.info("published %s at %s", location, target)

    def _log_in(self, options: MountOptions, token: str) -> None:
        """Get the key of a volume for a token, if there is one, and the key is due. The node's key knows the server."""
        if not token:
            return
        key = Path(str(options.key_file))
        login = read_login(key)
        if login is None or time.time() >= login.due_s:
            log_in(replace(self._settings, server=options.server), key, Login("", ""), Tokens(token, ""))

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
        for kept in self._folder.glob(self._file(target, "*").name):
            kept.unlink(missing_ok=True)
        try:
            os.rmdir(target)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise MountError(f"{target}: cannot be removed: {error.strerror}") from None

    def _file(self, target: str, kind: str) -> Path:
        return self._folder / f"{hashlib.sha256(target.encode()).hexdigest()}.{kind}"

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
