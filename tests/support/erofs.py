"""EROFS images: checked by erofs-utils, mounted by the kernel, and compared with a tree."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dieselfs.snapshot.erofs_image import ErofsImage
from tests.support.dataset import PackedDataset

needs_fsck = pytest.mark.skipif(
    shutil.which("fsck.erofs") is None, reason="needs fsck.erofs: apt-get install erofs-utils"
)

_MS_RDONLY = 1
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def image_bytes(packed: PackedDataset, image: ErofsImage) -> bytes:
    """The whole image: each file at its place in the image, and zeros between them."""
    data = np.zeros(image.size_bytes, np.uint8)
    data[: len(image.metadata)] = image.metadata
    payloads = packed.source().payloads
    for node, start in zip(image.nodes.tolist(), image.starts.tolist(), strict=True):
        for extent in packed.snapshot.extents(node):
            content = payloads[extent.chunk][extent.offset : extent.offset + extent.length]
            data[start + extent.place : start + extent.place + extent.length] = np.frombuffer(
                content, np.uint8
            )
    return data.tobytes()


def fsck(image: Path) -> str:
    """The complaints of fsck.erofs; empty for a sound image."""
    done = subprocess.run(["fsck.erofs", str(image)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode or done.stderr else ""


def inode_count(image: Path) -> int:
    """What the superblock says, as dump.erofs reads it."""
    done = subprocess.run(["dump.erofs", "-s", str(image)], capture_output=True, text=True, check=True)
    [count] = re.findall(r"inode count: +(\d+)", done.stdout)
    return int(count)


@contextmanager
def mounted_image(image: Path, folder: Path) -> Iterator[Path]:
    """The kernel's mount of an image file, without a loop device; skipped where that is not possible."""
    if os.geteuid():
        pytest.skip("needs root to mount an image")
    folder.mkdir()
    if _libc.mount(os.fsencode(image), os.fsencode(folder), b"erofs", _MS_RDONLY, None):
        code = ctypes.get_errno()
        pytest.skip(f"this kernel cannot mount an EROFS file: {os.strerror(code)}")
    try:
        yield folder
    finally:
        _libc.umount2(os.fsencode(folder), _MNT_DETACH)
