"""`--memory` is kept to: looked at from outside, by the kernel's own figures, and under limits that are enforced."""

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_USAGE
from dieselfs.limits import KIB, MIB
from dieselfs.names import CONTROL_FOLDER
from dieselfs.prefetch.extent_table import PAGE_BYTES
from dieselfs.settings.table import AUTO, FUSE, IMAGE
from dieselfs_client.memory.room import PROGRAM_BYTES
from dieselfs_client.mount.kernel.residency import resident_pages
from dieselfs_client.mount.points.mount_table import MOUNTINFO, mount_at, parse_mountinfo
from dieselfs_client.mount.points.mounting import unmount
from dieselfs_client.mount.views.image_layout import IMAGE_NAME
from dieselfs_client.supervision.status import supervision_of
from tests.support.cgroup import limited_group, why_not
from tests.support.page_cache import cached_pages
from tests.support.server import RunningServer, running_server

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount this view")

FILES = 2500
FILE_BYTES = 64 * KIB
MEMORY_BYTES = 64 * MIB
"""Of a dataset of 160 MB."""


_BYTES = random.Random(1).randbytes(FILES + FILE_BYTES)


def content_of(number: int) -> bytes:
    """Others of each file at each place; random bytes of their own would take most of the time of these tests."""
    return _BYTES[number : number + FILE_BYTES]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), "large", must_exist=False) as data:
            for number in range(FILES):
                data.put(f"{number}", content_of(number))
        yield server


def mount_command(server: RunningServer, mountpoint: Path, memory_bytes: int, view: str = AUTO) -> list[str]:
    options = f"server={server.unix},memory={memory_bytes},view={view},log_file={mountpoint}.log"
    return [sys.executable, "-m", "dieselfs_client.main", "large", str(mountpoint), "-o", options]


@contextmanager
def mounted(
    server: RunningServer, folder: Path, limit: Callable[[], None], view: str = AUTO
) -> Iterator[Path]:
    """Mount with all its processes under a limit."""
    mountpoint = folder / "mount"
    mountpoint.mkdir()
    try:
        subprocess.run(
            mount_command(server, mountpoint, MEMORY_BYTES, view), preexec_fn=limit, check=True, timeout=100
        )
        yield mountpoint
    finally:
        while mount_at(str(mountpoint)) is not None:
            unmount(str(mountpoint), lazily=True)


def limit_data() -> None:
    limit_bytes = MEMORY_BYTES + PROGRAM_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def cached_bytes(mountpoint: Path) -> int:
    """The page cache of the mount. Not counted are the copies that EROFS keeps of pages of the image."""
    control_tree = mount_at(str(mountpoint / CONTROL_FOLDER))
    if control_tree is not None:
        (place,) = (
            record.mountpoint
            for record in parse_mountinfo(MOUNTINFO.read_bytes())
            if record.device == control_tree.device and record.mountpoint != control_tree.mountpoint
        )
        descriptor = os.open(os.path.join(place, os.fsdecode(IMAGE_NAME)), os.O_RDONLY)
        try:
            return resident_pages(descriptor, 0, os.fstat(descriptor).st_size) * PAGE_BYTES
        finally:
            os.close(descriptor)
    return sum(sum(cached_pages(mountpoint / str(number))) for number in range(FILES)) * PAGE_BYTES


def read_epoch(mountpoint: Path, epoch: int, group: int) -> int:
    """Read all by plan, check all; returns the most bytes of it that were in the page cache at once."""
    paths = (mountpoint / f".dieselfs/shuffle/seed=1,epoch={epoch},group={group}").read_text().splitlines()
    assert len(paths) == FILES
    most = 0
    for position, path in enumerate(paths):
        assert (mountpoint / path).read_bytes() == content_of(int(path))
        if position % (FILES // 10) == 0:
            most = max(most, cached_bytes(mountpoint))
    return most


def anonymous_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * KIB for line in lines if line.startswith(("RssAnon", "RssShmem")))


@pytest.mark.parametrize("view", [FUSE, pytest.param(IMAGE, marks=needs_root)])
@pytest.mark.parametrize("group", [1, 0], ids=lambda group: f"group {group}")
def test_a_mount_keeps_to_its_memory(server: RunningServer, tmp_path: Path, group: int, view: str) -> None:
    """Also when the group of the plan is larger than the memory: 0 is the whole dataset."""
    with mounted(server, tmp_path, limit_data, view) as mountpoint:
        most = read_epoch(mountpoint, epoch=0, group=group)
        stats = json.loads((mountpoint / ".dieselfs/stats").read_text())
        allotted = stats["memory"]["allotted_bytes"]
        assert sum(allotted.values()) <= MEMORY_BYTES
        # What the kernel keeps of files that were read through the daemon is its own, and not pushed; it is little.
        assert 0 < most <= allotted["window"] + allotted["pinned"] + FILES * FILE_BYTES // 10
        supervision = supervision_of(str(mountpoint))
        assert supervision is not None and supervision.restarts == 0
        assert anonymous_bytes(supervision.daemon) <= MEMORY_BYTES + PROGRAM_BYTES
        assert stats["memory"]["process_bytes"] <= PROGRAM_BYTES + allotted["evictable"] + allotted["tables"]


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_a_mount_lives_in_a_control_group_that_has_room_for_just_that(
    server: RunningServer, tmp_path: Path
) -> None:
    with (
        limited_group("contract", MEMORY_BYTES + PROGRAM_BYTES) as group,
        mounted(server, tmp_path, group.enter) as mountpoint,
    ):
        read_epoch(mountpoint, epoch=0, group=2)
        read_epoch(mountpoint, epoch=1, group=2)
        supervision = supervision_of(str(mountpoint))
        assert supervision is not None and supervision.restarts == 0, "nothing was killed for want of memory"
        assert group.peak_bytes() > MEMORY_BYTES // 2


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_what_cannot_fit_is_refused_before_anything_is_mounted(server: RunningServer, tmp_path: Path) -> None:
    mountpoint = tmp_path / "mount"
    mountpoint.mkdir()
    with limited_group("refused", 100 * MIB) as group:
        done = subprocess.run(
            mount_command(server, mountpoint, MEMORY_BYTES),
            preexec_fn=group.enter,
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == EXIT_USAGE
    assert "the cgroup dieselfs-refused" in done.stderr and "allows 100 MiB of memory" in done.stderr
    assert os.listdir(mountpoint) == []
