"""What the system allows a process, of memory, descriptors and mappings."""

import os
import resource
from pathlib import Path

import pytest

from dieselfs.limits import KIB, MIB
from dieselfs.process.system_limits import (
    DESCRIPTORS_SPARE_MAX,
    MAPPINGS_SPARE_MAX,
    allow_descriptors,
    available_bytes,
    cgroup_limits,
    room_bytes,
    run_delay_s,
    segments_most,
    usable_processors,
)


def test_a_daemon_may_have_as_many_descriptors_as_the_system_allows() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1] - 1, limits[1]))
        assert 0 < allow_descriptors() < limits[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limits[1], limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    ("descriptors", "mappings", "segments"),
    [
        (4096, 65_530, 3072),
        (1 << 20, 65_530, 65_530 - MAPPINGS_SPARE_MAX),
        (resource.RLIM_INFINITY, 65_530, 65_530 - MAPPINGS_SPARE_MAX),
        (1 << 20, 1 << 22, (1 << 20) - DESCRIPTORS_SPARE_MAX),
    ],
)
def test_the_lesser_limit_counts_and_leaves_some_for_other_uses(
    descriptors: int, mappings: int, segments: int
) -> None:
    assert segments_most(descriptors, mappings) == segments


def test_the_limits_of_this_process() -> None:
    room, why = room_bytes()
    assert room is not None and room > 100 * MIB
    assert why


@pytest.mark.parametrize(
    ("line", "top", "name"),
    [("0::/jobs/7", "", "memory.max"), ("5:cpu,memory:/jobs/7", "memory", "memory.limit_in_bytes")],
)
def test_the_limits_of_control_groups_of_both_versions(
    tmp_path: Path, line: str, top: str, name: str
) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text(f"9:pids:/\n{line}\n")
    root = tmp_path / "fs"
    folder = root / top / "jobs/7"
    folder.mkdir(parents=True)
    (folder / name).write_text(f"{700 * KIB}\n")
    (folder.parent / name).write_text(f"{1 << 62}\n" if top else "max\n")
    (root / top / name).write_text("9000000\n")
    assert list(cgroup_limits(membership, root)) == [(700 * KIB, "jobs/7"), (9_000_000, "/")]


def test_without_control_groups(tmp_path: Path) -> None:
    assert list(cgroup_limits(tmp_path / "none", tmp_path)) == []
    assert usable_processors(tmp_path / "none", tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("line", "top", "files"),
    [
        ("0::/jobs/7", "", {"cpu.max": ("150000 100000", "max 100000")}),
        (
            "5:cpu,cpuacct:/jobs/7",
            "cpu",
            {"cpu.cfs_quota_us": ("150000", "-1"), "cpu.cfs_period_us": ("100000", "100000")},
        ),
    ],
)
def test_a_quota_of_processor_time_counts_as_so_many_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, top: str, files: dict[str, tuple[str, str]]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(8)})
    membership, folder = tmp_path / "cgroup", tmp_path / top / "jobs/7"
    membership.write_text(f"{line}\n")
    folder.mkdir(parents=True)
    assert usable_processors(membership, tmp_path) == 8
    for name, (limited, unlimited) in files.items():
        (folder / name).write_text(unlimited)
        (folder.parent / name).write_text(limited)  # of a group around it
    assert usable_processors(membership, tmp_path) == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert usable_processors(membership, tmp_path) == 1


def test_what_programs_can_still_take_is_a_part_of_the_memory(tmp_path: Path) -> None:
    available = available_bytes()
    assert available is not None and 0 < available < resource_bytes()
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemFree:         10 kB\nMemAvailable:    70 kB\n")
    assert available_bytes(meminfo) == 70 * KIB
    meminfo.write_text("MemTotal: 100 kB\n")
    assert available_bytes(meminfo) is None
    assert available_bytes(tmp_path / "none") is None


def resource_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_how_long_the_main_thread_waited_for_a_processor(tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text("2524069 13206895 5\n")
    assert run_delay_s(tmp_path / "schedstat") == 0.013206895
    assert run_delay_s(tmp_path / "none") == 0.0
    assert run_delay_s() >= 0.0
