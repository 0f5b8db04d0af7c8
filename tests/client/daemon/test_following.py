"""Mounts that move to new generations, under readers who open paths all the time."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import InvalidInput
from dieselfs.settings.table import FUSE, IMAGE, KERNEL, PYFUSE3
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import MOUNTINFO, mount_at, parse_mountinfo
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import supervision_of
from lab.network import clear
from tests.client.conftest import needs_root
from tests.support.server import RunningServer

pytestmark = needs_root

FOLLOW_S = 0.1
TIMEOUT_S = 60.0
PAUSE_S = 0.003
"""Of a reader, which would else take the processor from the processes that start."""
_NUMBERS = count()
SWITCHES = int(os.environ.get("FOLLOW_SWITCHES", "2"))


@pytest.fixture
def data(server: RunningServer) -> Iterator[Dataset]:
    """A dataset with two files, which say in which generation of the test they were stored. No mount of it is left."""
    name = f"follow-{os.getpid()}-{next(_NUMBERS)}"
    with Dataset(server.settings(), name, must_exist=False) as dataset:
        store(dataset, 0)
        yield dataset
        wait_until(lambda: not places(dataset))


@pytest.fixture
def following(options: MountOptions, view: str) -> MountOptions:
    return replace(options, view=view, follow_s=FOLLOW_S)


@pytest.fixture(autouse=True)
def unmounted(data: Dataset, tmp_path: Path) -> Iterator[None]:
    yield
    for mount in control.mounts():
        if mount.mountpoint.startswith(str(tmp_path)):
            clear(Path(mount.mountpoint))


def store(dataset: Dataset, number: int) -> None:
    """Both files change, in one chunk, and one has a new name."""
    dataset.put("a/text", b"generation %d\n" % number * 1000)
    dataset.put("b/text", b"generation %d\n" % number * 1000)
    dataset.put(f"names/{number}", b"")
    if number:
        dataset.delete(f"names/{number - 1}")
    dataset.flush()


def wait_until(condition: Callable[[], object], poll_s: float = 0.02) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(poll_s)


def info(place: Path) -> Any:
    return json.loads((place / ".dieselfs/info").read_bytes())


def state(place: Path) -> str | None:
    """What the mount does about the next generation; None from a daemon that has just replaced another one."""
    follow = info(place)["follow"]
    return None if follow is None else str(follow["state"])


def seen(place: Path) -> int:
    """The number of the test's generation that a mount shows."""
    return int((place / "a/text").read_bytes().split()[1])


def shows(place: Path, number: int) -> Callable[[], bool]:
    return lambda: seen(place) == number


def either(first: Callable[[], bool], second: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: first() or second()


def places(dataset: Dataset) -> list[str]:
    """Where the kernel lists mounts of a dataset."""
    records = parse_mountinfo(MOUNTINFO.read_bytes())
    return [record.mountpoint for record in records if record.source == f"dl://{dataset.name}"]


@contextmanager
def reading(place: Path) -> Iterator[None]:
    """A program that opens paths, and compares what it reads with what it read of the same folder before."""
    is_over = Event()

    def read() -> int:
        rounds = newest = 0
        while not is_over.is_set():
            folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            texts = set()
            for name in ("a/text", "b/text"):
                file = os.open(name, os.O_RDONLY, dir_fd=folder)
                texts.add(os.read(file, 1 << 20))
                os.close(file)
            os.close(folder)
            (text,) = texts  # one generation
            assert len({*text.splitlines()}) == 1 and len(text.splitlines()) == 1000
            number = int(text.split()[1])
            assert number >= newest
            newest = number
            (place / ".dieselfs/info").read_bytes()
            rounds += 1
            is_over.wait(PAUSE_S)
        return rounds

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            yield
        finally:
            is_over.set()
        assert all(reader.result(TIMEOUT_S) > 0 for reader in readers)


def test_a_mount_moves_and_what_is_open_stays(
    data: Dataset, following: MountOptions, mountpoint: Path
) -> None:
    control.mount(data.name, mountpoint, following)
    before = info(mountpoint)
    assert before["follow"]["interval_s"] == FOLLOW_S and before["follow"]["next_generation"] is None
    held = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    with open(mountpoint / "a/text", "rb") as opened, reading(mountpoint):
        for number in range(1, SWITCHES + 1):
            store(data, number)
            wait_until(shows(mountpoint, number))
        assert opened.read() == b"generation 0\n" * 1000
    assert os.listdir(mountpoint / "names") == [str(SWITCHES)]
    inside = os.open("names", os.O_RDONLY, dir_fd=held)
    assert os.listdir(inside) == ["0"], "the open folder shows what it showed"
    if following.view != IMAGE:  # there the kernel detaches the control tree with the mount
        replaced = os.open(".dieselfs/info", os.O_RDONLY, dir_fd=held)
        old = json.loads(os.read(replaced, 1 << 20))
        os.close(replaced)
        assert old["generation"] == before["generation"]
        assert old["follow"]["state"] == "replaced" and old["follow"]["next_generation"] > old["generation"]
    for descriptor in (held, inside):
        os.close(descriptor)
    current = f"generation {info(mountpoint)['generation']}"

    def is_listed() -> bool:
        (mount,) = (mount for mount in control.mounts() if mount.mountpoint == str(mountpoint))
        assert mount.view == following.view
        return bool(mount.process and mount.daemon) and current in mount.following

    wait_until(is_listed)  # its processes hear of the move a moment later
    control.unmount(mountpoint)
    assert os.listdir(mountpoint) == []


@pytest.mark.parametrize("driver", [KERNEL, PYFUSE3])
def test_a_folder_moves_with_both_drivers(
    data: Dataset, following: MountOptions, mountpoint: Path, driver: str
) -> None:
    control.mount(f"{data.name}/names", mountpoint, replace(following, driver=driver))
    assert os.listdir(mountpoint) == ["0"]
    store(data, 1)
    wait_until(lambda: os.listdir(mountpoint) == ["1"])
    control.unmount(mountpoint)


@pytest.mark.parametrize("policy", ["", ",policy=importance"])
def test_a_plan_is_read_to_its_end(
    data: Dataset, following: MountOptions, mountpoint: Path, policy: str
) -> None:
    for number in range(40):
        data.put(f"many/{number}", b"%d" % number * 5000)
    data.flush()
    control.mount(f"{data.name}", mountpoint, replace(following, scores=bool(policy)))

    def order(epoch: int) -> list[str]:
        name = f".dieselfs/shuffle/seed=1,epoch={epoch},folder=many{policy}"
        return (mountpoint / name).read_text().splitlines()

    first = order(0)
    half = len(first) // 2
    for path in first[:half]:
        assert (mountpoint / path).read_bytes()
    data.delete(first[-1])
    data.flush()
    wait_until(lambda: state(mountpoint) == "waiting")
    for path in first[half:]:
        assert (mountpoint / path).read_bytes(), "also the file that was removed"
    assert state(mountpoint) == "waiting"
    second = order(1)
    assert sorted(second) == sorted(set(first) - {first[-1]}), (
        "the next epoch begins with the next generation"
    )
    for path in second:
        assert (mountpoint / path).read_bytes()
    control.unmount(mountpoint)


def test_a_daemon_that_is_killed_at_any_time_delays_the_move_only(
    data: Dataset, following: MountOptions, mountpoint: Path
) -> None:
    control.mount(data.name, mountpoint, following)
    moments: list[Callable[[], bool]] = [
        lambda: state(mountpoint) == "preparing",
        lambda: any(place.endswith("/.next") for place in places(data)),
        lambda: places(data).count(str(mountpoint)) != 1 or state(mountpoint) == "waiting",
        lambda: len(places(data)) == 1,
    ]
    with reading(mountpoint):
        for number, is_now in enumerate(moments, 1):
            store(data, number)
            has_moved = shows(mountpoint, number)
            wait_until(either(is_now, has_moved), 0.001)  # nobody sees a moment that is too short
            status = supervision_of(str(mountpoint))
            if status is not None and status.daemon:
                with suppress(ProcessLookupError):  # that of the old mount ends once the new one is there
                    os.kill(status.daemon, signal.SIGKILL)
            wait_until(has_moved)
    control.unmount(mountpoint)


def test_a_mount_that_has_moved_is_upgraded_and_gets_another_supervisor(
    data: Dataset, options: MountOptions, mountpoint: Path
) -> None:
    control.mount(data.name, mountpoint, replace(options, view=FUSE, follow_s=FOLLOW_S))
    store(data, 1)
    wait_until(shows(mountpoint, 1))
    wait_until(lambda: supervision_of(str(mountpoint)))
    assert control.upgrade(mountpoint).upgrades == 1
    before = supervision_of(str(mountpoint))
    assert before is not None
    os.kill(before.supervisor, signal.SIGKILL)
    wait_until(lambda: (now := supervision_of(str(mountpoint))) and now.supervisor != before.supervisor)
    store(data, 2)
    wait_until(shows(mountpoint, 2))
    control.unmount(mountpoint)


def test_an_unmount_ends_what_was_prepared(data: Dataset, options: MountOptions, mountpoint: Path) -> None:
    control.mount(data.name, mountpoint, replace(options, view=FUSE, follow_s=FOLLOW_S))
    (mountpoint / ".dieselfs/shuffle/seed=1,epoch=0").read_bytes()
    store(data, 1)
    wait_until(lambda: state(mountpoint) == "waiting")
    control.unmount(mountpoint)
    wait_until(lambda: not places(data))


def test_a_mount_that_somebody_has_put_over_it_stays(
    data: Dataset, options: MountOptions, mountpoint: Path
) -> None:
    control.mount(data.name, mountpoint, replace(options, view=FUSE, follow_s=FOLLOW_S))
    held = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)

    def following() -> Any:
        descriptor = os.open(".dieselfs/info", os.O_RDONLY, dir_fd=held)
        with open(descriptor, "rb") as file:
            return json.load(file)["follow"]

    subprocess.run(["mount", "-t", "tmpfs", "other", str(mountpoint)], check=True)
    try:
        store(data, 1)
        wait_until(lambda: following()["state"] == "failed")
        assert "something else is mounted there" in following()["reason"]
        record = mount_at(str(mountpoint))
        assert record is not None and record.source == "other"
    finally:
        subprocess.run(["umount", str(mountpoint)], check=True)
    wait_until(shows(mountpoint, 1))
    os.close(held)
    control.unmount(mountpoint)


def test_an_unmounted_mount_prepares_nothing_more(
    data: Dataset, options: MountOptions, mountpoint: Path
) -> None:
    control.mount(data.name, mountpoint, replace(options, view=FUSE, follow_s=FOLLOW_S))
    (mountpoint / ".dieselfs/shuffle/seed=1,epoch=0").read_bytes()
    store(data, 1)
    wait_until(lambda: state(mountpoint) == "waiting")
    with open(mountpoint / "a/text", "rb") as held:
        subprocess.run(["umount", "-l", str(mountpoint)], check=True)
        wait_until(lambda: not places(data))
        assert held.read() == b"generation 0\n" * 1000


def test_one_generation_is_not_followed(data: Dataset, options: MountOptions, mountpoint: Path) -> None:
    with pytest.raises(InvalidInput, match="--generation names one generation: leave out --follow"):
        control.mount(data.name, mountpoint, replace(options, follow_s=1, generation=1))
    with pytest.raises(InvalidInput, match="a tag has one generation"):
        control.mount(f"{data.name}@v1", mountpoint, replace(options, follow_s=1))
