"""The memory that limits of the system leave to a mount, and what is said when they are too small."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, MIB, MOUNT_MEMORY_BYTES
from dieselfs_client.memory.room import PROGRAM_BYTES, crowds_page_cache, granted, shrunk


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


def test_files_of_chunks_leave_the_page_cache_if_large_files_have_no_room_beside_them() -> None:
    assert crowds_page_cache(10 * GIB, 2500, 2500, 24 * GIB)
    assert not crowds_page_cache(1 * GIB, 250, 250, 24 * GIB)
    assert not crowds_page_cache(10 * GIB, 2_500_000, 2500, 24 * GIB), "plans fetch them again"
    assert not crowds_page_cache(0, 0, 0, None)
