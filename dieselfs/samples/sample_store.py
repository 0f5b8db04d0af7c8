"""Bytes of samples in files of a memory file system, for the processes of a node. This module writes files.

Which samples are kept is decided elsewhere (`dieselfs.importance`); this holds what readers wrote and nobody dropped. A
sample that is missing, or for which there is no space, is read from its source. The folder ends with the last process
that uses it: each holds a lock on it, and a new store removes folders of processes that have died. In a job, a pool
(`sample_pool.py`) has the stores of all nodes. Readers of an encrypted dataset write its samples encrypted.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable
from hashlib import blake2b
from threading import get_ident
from typing import Any

from dieselfs.errors import InvalidInput

MEMORY_FOLDER = "/dev/shm"
_PREFIX = f"dieselfs-samples-{os.getuid()}-"
_LOCK = "lock"
_ATTEMPTS_MAX = 100
_NAME = re.compile(r"dieselfs-samples-[0-9]+-[0-9a-f]{16}-[A-Za-z0-9][A-Za-z0-9._-]*")
"""Of a store of a pool."""


def new_name() -> str:
    """A folder name that nobody can guess, for a store that several processes of a job open."""
    return _PREFIX + secrets.token_hex(8)


def name_for(secret: str) -> str:
    """The folder name that the next process with this secret finds again."""
    return _PREFIX + blake2b(secret.encode(), digest_size=8).hexdigest()


def name_on(name: str, node: str) -> str:
    """The name of the store of one node, of a pool that all nodes of a job open: nodes may share a machine."""
    return f"{name}-{node}"


class SampleStore:
    """Any process may read, write and drop. Pickles as its folder: workers use it while the owner lives."""

    def __init__(self, name: str, parent: str = MEMORY_FOLDER) -> None:
        """Opens or makes the folder. Raises InvalidInput if it cannot be made, or if another user has it."""
        self.folder = os.path.join(parent, name)
        self._owner = os.getpid()
        self._lock = self._open()  # first: the next process may continue with what a killed one has left
        remove_abandoned(parent)

    @classmethod
    def existing(cls, name: str, parent: str = MEMORY_FOLDER) -> "SampleStore | None":
        """The store of a node that ranks of this user have opened, to use it in their name; None if there is none."""
        folder = os.path.join(parent, name)
        try:
            status = os.lstat(folder) if _NAME.fullmatch(name) else None
        except OSError:
            return None
        if status is None or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return None
        store = cls.__new__(cls)
        store.__setstate__({"folder": folder, "_owner": 0, "_lock": -1})
        return store

    def _open(self) -> int:
        for attempt in range(_ATTEMPTS_MAX):
            try:
                os.makedirs(self.folder, 0o700, exist_ok=True)
                if os.stat(self.folder).st_uid != os.getuid():
                    raise InvalidInput(f"{self.folder} belongs to another user")
                return _locked(os.path.join(self.folder, _LOCK))
            except OSError as error:
                # Another process may just have removed the folder as abandoned.
                if not isinstance(error, FileNotFoundError) or attempt == _ATTEMPTS_MAX - 1:
                    raise InvalidInput(
                        f"no memory for samples: {error}; pass cache_share=0 to cache none"
                    ) from None
        raise AssertionError

    def read(self, sample: int) -> bytes | None:
        try:
            with open(self._path(sample), "rb", buffering=0) as file:
                return file.read()
        except OSError:
            return None

    def samples(self) -> list[int]:
        """Those that it has, ascending."""
        with contextlib.suppress(OSError):
            return sorted(int(name) for name in os.listdir(self.folder) if name.isdecimal())
        return []

    def write(self, sample: int, content: bytes | memoryview) -> bool:
        """Keep a sample, if there is space; returns whether it did. Readers see all of it or nothing."""
        path = self._path(sample)
        part = f"{path}.{os.getpid()}-{get_ident()}"
        try:
            with open(part, "wb", buffering=0) as file:
                is_whole = file.write(content) == len(content)
            if is_whole:
                os.rename(part, path)
                return True
        except OSError:
            pass
        with contextlib.suppress(OSError):
            os.unlink(part)
        return False

    def drop(self, samples: Iterable[int]) -> None:
        for sample in samples:
            with contextlib.suppress(OSError):
                os.unlink(self._path(sample))

    def close(self) -> None:
        """Stop using it, in the process that opened it. The last one removes the folder. May be called again."""
        if self._lock >= 0 and self._owner == os.getpid():
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # also for workers that were forked
            os.close(self._lock)
            self._lock = -1
            _remove_unless_locked(self.folder)

    def _path(self, sample: int) -> str:
        return f"{self.folder}/{sample}"

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "_owner": 0, "_lock": -1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def remove_abandoned(parent: str = MEMORY_FOLDER) -> None:
    """Remove the folders of this user whose processes have died."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(parent):
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                _remove_unless_locked(entry.path)


def _locked(path: str) -> int:
    """A descriptor with a shared lock on the file that `path` names. Raises FileNotFoundError if it was removed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except FileNotFoundError:
        pass
    os.close(descriptor)
    raise FileNotFoundError(path)


def _remove_unless_locked(folder: str) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
