"""The memory that limits of the system leave to a mount, and what is said when they are too small."""

from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, KIB, MIB, MOUNT_MEMORY_BYTES
from dieselfs_client.memory.room import PROGRAM_BYTES, cgroup_limits, granted, room_bytes, shrunk


def test_what_the_user_asks_for_is_granted_if_it_fits() -> None:
    assert granted(2 * GIB, None) == 2 * GIB
    assert granted(2 * GIB, 2 * GIB + PROGRAM_BYTES, "the cgroup /job") == 2 * GIB
    with pytest.raises(
        InvalidInput, match=r"the cgroup /job allows \(1024 MiB\); give at most --memory 864MiB"
    ):
        granted(2 * GIB, 1 * GIB, "the cgroup /job")


def test_what_the_user_does_not_ask_for_shrinks_to_fit() -> None:
    assert granted(0, None) == MOUNT_MEMORY_BYTES
    assert granted(0, 64 * GIB) == MOUNT_MEMORY_BYTES
    assert granted(0, 512 * MIB) == 512 * MIB - PROGRAM_BYTES
    assert shrunk(0, 512 * MIB, "the cgroup /job") == (
        f"the cgroup /job allows 512 MiB: {512 - PROGRAM_BYTES // MIB} MiB are used for data, not 1024 MiB"
    )
    assert shrunk(0, None, "") == shrunk(100 * MIB, 512 * MIB, "the cgroup /job") == ""


@pytest.mark.parametrize("memory_bytes", [0, 16 * MIB])
def test_a_limit_that_is_too_small_for_any_mount_is_named(memory_bytes: int) -> None:
    with pytest.raises(InvalidInput, match="the cgroup /job allows 70 MiB of memory, a mount needs 168 MiB"):
        granted(memory_bytes, 70 * MIB, "the cgroup /job")
    granted(8 * MIB, 168 * MIB, "the cgroup /job")


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
