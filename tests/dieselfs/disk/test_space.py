"""The limit holds, with several processes too, and what leaves first is what nobody needs."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from dieselfs.disk.space import (
    ALIGNMENT_BYTES,
    RESCAN_S,
    SHARED_MODE,
    DatasetHold,
    DiskSpace,
    check_folder,
    check_usable,
    default_size_bytes,
    make_folder,
)
from dieselfs.errors import AccessDenied, InvalidInput
from tests.support.descriptors import descriptor_count
from tests.support.small_disk import small_disk

CHUNK = ALIGNMENT_BYTES
A, B, C = ("a" * 32, "b" * 32, "c" * 32)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return check_folder(tmp_path / "tier")


@contextmanager
def opened(folder: Path, size_bytes: int, clock: Clock | None = None) -> Iterator[DiskSpace]:
    with closing(DiskSpace(folder, size_bytes, clock or Clock())) as space:
        yield space


def add(space: DiskSpace, dataset: DatasetHold, name: str, kept: frozenset[str] | None = None) -> bool:
    """`kept`: the current chunks of the dataset; None for all."""

    def current() -> frozenset[str]:
        return frozenset(names(space.folder, dataset.name)) if kept is None else kept

    new = space.create(dataset, CHUNK - 7, current)
    if new is None:
        return False
    os.truncate(new.path, CHUNK - 7)
    os.close(new.descriptor)
    space.publish(new, name)
    return True


def names(folder: Path, dataset: str) -> list[str]:
    return sorted(path.name for path in (folder / dataset).iterdir() if path.name != "lock")


def used_bytes(folder: Path) -> int:
    """What the files take, whole sectors."""
    return sum(-(-path.stat().st_size // CHUNK) * CHUNK for path in folder.glob("*/*") if path.name != "lock")


def fill(folder: Path, dataset: str, count: int, size_bytes: int, used_s: float) -> None:
    """Chunks of an earlier job, last used at this time."""
    with opened(folder, size_bytes) as space, closing(DatasetHold(folder, dataset)) as hold:
        for number in range(count):
            assert add(space, hold, f"{number:02}")
    os.utime(folder / dataset / "lock", (used_s, used_s))


def test_the_least_recently_used_dataset_leaves_first(folder: Path) -> None:
    fill(folder, A, 2, 8 * CHUNK, used_s=200)
    fill(folder, B, 2, 8 * CHUNK, used_s=100)
    with opened(folder, 5 * CHUNK) as space, closing(DatasetHold(folder, C)) as own:
        assert add(space, own, "0") and add(space, own, "1")
        assert len(names(folder, A)) == 2 and len(names(folder, B)) == 1
        assert add(space, own, "2") and add(space, own, "3")
        assert len(names(folder, A)) == 1 and len(names(folder, B)) == 0
        assert space.evicted_chunks == 3 and space.used_bytes == used_bytes(folder) == 5 * CHUNK


def test_a_job_evicts_nothing_of_its_own_dataset_and_nothing_of_a_running_one(folder: Path) -> None:
    fill(folder, A, 2, 8 * CHUNK, used_s=100)
    with (
        opened(folder, 4 * CHUNK) as space,
        closing(DatasetHold(folder, B)) as own,
        closing(DatasetHold(folder, A)),
    ):
        assert [add(space, own, f"{number}") for number in range(4)] == [True, True, False, False]
        assert len(names(folder, A)) == 2 and names(folder, B) == ["0", "1"]


def test_chunks_of_older_generations_leave_unless_another_process_reads_the_dataset(folder: Path) -> None:
    fill(folder, A, 3, 3 * CHUNK, used_s=100)
    with opened(folder, 3 * CHUNK) as space, closing(DatasetHold(folder, A)) as own:
        with closing(DatasetHold(folder, A)):
            assert not add(space, own, "new", frozenset({"01"}))
        assert add(space, own, "new", frozenset({"01"}))
        assert {"01", "new"} < set(names(folder, A))
        with opened(folder, 3 * CHUNK) as other, closing(DatasetHold(folder, B)) as hold:
            assert not add(other, hold, "0"), "the dataset is still held"


def test_a_process_and_its_forks_hold_a_dataset_as_one(folder: Path) -> None:
    fill(folder, A, 3, 3 * CHUNK, used_s=100)
    with (
        opened(folder, 3 * CHUNK) as space,
        closing(DatasetHold(folder, A)) as parents,
        closing(DatasetHold(folder, A, parents=parents.descriptor)) as own,
    ):
        assert add(space, own, "new", frozenset({"01"}))
        with closing(DatasetHold(folder, A)):
            assert not add(space, own, "newer", frozenset({"new"}))
            assert not add(space, own, "newer", frozenset({"new"}))
        parents.close()
        with opened(folder, CHUNK) as other, closing(DatasetHold(folder, B)) as hold:
            assert not add(other, hold, "0"), "the dataset is still held"
        parents = DatasetHold(folder, A)


def test_a_smaller_limit_is_in_force_at_once(folder: Path) -> None:
    fill(folder, A, 4, 8 * CHUNK, used_s=100)
    fill(folder, B, 1, 8 * CHUNK, used_s=200)
    with closing(DatasetHold(folder, B)), opened(folder, 2 * CHUNK) as space:
        assert space.used_bytes == used_bytes(folder) <= 2 * CHUNK
        assert names(folder, B) == ["00"], "it is in use"


def test_the_first_process_counts_again_and_removes_what_a_crash_left(folder: Path) -> None:
    fill(folder, A, 2, 8 * CHUNK, used_s=100)
    with opened(folder, 8 * CHUNK) as space, closing(DatasetHold(folder, A)) as hold:
        new = space.create(hold, CHUNK, frozenset)  # this process "dies" here
        assert new is not None
        os.close(new.descriptor)
        with opened(folder, 8 * CHUNK) as second:  # it may be written still
            assert second.used_bytes == 3 * CHUNK and new.path.exists()
    (folder / "space").write_bytes(b"\xff" * 8)  # after a power cut
    with opened(folder, 8 * CHUNK) as space:
        assert space.used_bytes == used_bytes(folder) == 2 * CHUNK and not new.path.exists()


def test_files_that_somebody_has_removed_are_noticed_after_a_time(folder: Path) -> None:
    clock = Clock()
    with opened(folder, 2 * CHUNK, clock) as space, closing(DatasetHold(folder, A)) as own:
        assert add(space, own, "0") and add(space, own, "1") and not add(space, own, "2")
        (folder / A / "0").unlink()
        assert not add(space, own, "2")
        clock.now_s += RESCAN_S
        assert add(space, own, "2") and space.used_bytes == used_bytes(folder)


def test_one_of_two_writers_of_a_chunk_gives_way(folder: Path) -> None:
    with opened(folder, 8 * CHUNK) as space, closing(DatasetHold(folder, A)) as own:
        assert add(space, own, "0") and add(space, own, "0")
        assert names(folder, A) == ["0"] and space.used_bytes == CHUNK
        space.remove(folder / A / "0")
        space.remove(folder / A / "0")
        assert space.used_bytes == used_bytes(folder) == 0


_WRITER = """
import os, sys
from pathlib import Path
from dieselfs.disk.space import DatasetHold, DiskSpace
folder, dataset, size_bytes, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
space, hold = DiskSpace(folder, size_bytes), DatasetHold(folder, dataset)
def size(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another one has evicted it
        return 0
for number in range(count):
    new = space.create(hold, 4096, frozenset)
    if new is not None:
        os.close(new.descriptor)
        space.publish(new, f"{os.getpid()}-{number}")
    used = sum(size(path) for path in folder.glob("*/*") if path.name != "lock")
    assert used <= size_bytes, used
"""


def test_the_limit_holds_with_several_processes_at_once(folder: Path) -> None:
    size_bytes = 40 * CHUNK
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _WRITER, str(folder), dataset, str(size_bytes), "60"],
                    env=environment,
                )
            )
            for dataset in (A, A, B)
        ]
        assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    assert 0 < used_bytes(folder) <= size_bytes
    with opened(folder, size_bytes) as space:
        assert space.used_bytes == used_bytes(folder)


def test_no_descriptor_is_left(folder: Path) -> None:
    before = descriptor_count()
    fill(folder, A, 3, 3 * CHUNK, used_s=100)
    fill(folder, B, 3, 3 * CHUNK, used_s=100)
    assert descriptor_count() == before


def test_what_is_kept_and_cleared(folder: Path) -> None:
    fill(folder, A, 3, 100 * CHUNK, used_s=200)
    fill(folder, B, 2, 100 * CHUNK, used_s=100)
    with opened(folder, 100 * CHUNK) as space, closing(DatasetHold(folder, A, "pets")):
        b, a = space.kept()
        assert (b.dataset, b.name, b.chunks, b.size_bytes, b.used_ns) == (B, "", 2, 2 * CHUNK, 100 * 10**9)
        assert (a.dataset, a.name, a.chunks, a.is_in_use, b.is_in_use) == (A, "pets", 3, True, False)
        assert not space.clear(A) and space.clear(B)
        assert (names(folder, A), names(folder, B)) == (["00", "01", "02"], [])
        assert space.used_bytes == used_bytes(folder) == 3 * CHUNK
    with opened(folder, 100 * CHUNK) as space:
        assert [(one.name, one.is_in_use) for one in space.kept()] == [("pets", False)]
        assert space.clear(A) and space.kept() == []


def test_a_link_in_place_of_the_folder_of_a_dataset_is_not_followed(folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    (other / "precious").write_bytes(bytes(CHUNK))
    (folder / A).symlink_to(other)
    with opened(folder, 1) as space:
        assert space.kept() == []
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            DatasetHold(folder, A)
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            space.clear(A)
        fill(folder, B, 0, CHUNK, 1)
        with closing(DatasetHold(folder, B)) as hold:
            (folder / B).rename(folder / C)
            (folder / B).symlink_to(other)
            with opened(folder, CHUNK) as large, pytest.raises(FileNotFoundError):
                add(large, hold, "00")
    assert [path.name for path in other.iterdir()] == ["precious"]


def test_a_full_disk_costs_the_name_and_no_descriptor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = descriptor_count()
    with opened(folder, 8 * CHUNK):
        monkeypatch.setattr(os, "pwrite", full)
        with closing(DatasetHold(folder, A, "pets")):
            pass
        monkeypatch.setattr(os, "utime", full)
        with pytest.raises(OSError, match="No space"):
            DatasetHold(folder, A, "pets")
        monkeypatch.undo()
    assert descriptor_count() == before


def test_one_folder_that_cannot_be_read_hides_no_other(folder: Path) -> None:
    fill(folder, A, 2, 8 * CHUNK, used_s=100)
    (folder / A / ".made-by-hand").mkdir()
    (folder / A / "by-hand").mkdir()
    (folder / B).mkdir()
    (folder / B / "lock").symlink_to("lock")
    (folder / B / "00").write_bytes(bytes(CHUNK))
    with opened(folder, 8 * CHUNK) as space:
        assert {one.dataset for one in space.kept()} == {A, B}
        assert space.clear(A) and names(folder, A) == [".made-by-hand", "by-hand"]
        with pytest.raises(OSError, match="symbolic links"):
            space.clear(B)


GROUP, OTHER_GROUP, MEMBER, STRANGER = 54321, 54322, 54323, 54324
DATASET = "a" * 32
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")


def test_the_default_is_half_of_the_file_system(tmp_path: Path) -> None:
    system = os.statvfs(tmp_path)
    assert default_size_bytes(tmp_path / "not" / "there") == system.f_blocks * system.f_frsize // 2


def test_a_folder_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a folder of your own on a local disk"):
        check_usable(str(tmp_path / "not" / "there"))
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="file"):
        check_usable(str(tmp_path / "file"))
    check_usable(str(tmp_path / "own"))
    (tmp_path / "own" / "dieselfs-1").chmod(0o755)
    with pytest.raises(AccessDenied, match="0700"):
        check_usable(str(tmp_path / "own"))


def test_a_file_system_that_is_read_only_is_refused_in_one_line(tmp_path: Path) -> None:
    """With the folder of the tier on it, and without."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        check_usable(str(disk / "tier"))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for name in ("tier", "other"):
            with pytest.raises(InvalidInput, match=f"--disk {disk}/{name}: Read-only file system"):
                check_usable(str(disk / name))


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder away")
    folder = check_folder(tmp_path / "tier")
    os.chown(folder, 65534, 65534)
    with pytest.raises(AccessDenied):
        check_folder(tmp_path / "tier")
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AccessDenied):
        check_folder(tmp_path / "tier")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The tier of a group, as an administrator makes it, which its members reach."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    (tmp_path / "tier").mkdir(mode=0o755)
    made = tmp_path / "tier" / "dieselfs-1"
    made.mkdir()
    os.chown(made, 0, GROUP)
    made.chmod(SHARED_MODE)
    return made


def use_as(user: int, group: int, shared: Path, chunk: str, shown: Any) -> None:
    """In a process of its own: what a user sees in the tier, who then stores a chunk there."""
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    os.umask(0o077)
    try:
        folder = check_folder(shared.parent)
        with (
            closing(DiskSpace(folder, 1 << 30)) as space,
            closing(DatasetHold(folder, DATASET, "pets")) as hold,
        ):
            seen = [(one.name, one.chunks, one.is_in_use) for one in space.kept()]
            read = [path.read_bytes() for path in hold.folder.iterdir() if path.name != "lock"]
            new = space.create(hold, 4, frozenset)
            assert new is not None
            os.write(new.descriptor, b"1234")
            os.ftruncate(new.descriptor, 4)
            os.close(new.descriptor)
            space.publish(new, chunk)
        with closing(DiskSpace(folder, 1 << 30)) as space:
            shown.put((seen, read, len(read) > 0 and space.clear(DATASET)))
    except Exception as error:
        shown.put(repr(error))


def used_as(user: int, group: int, shared: Path, chunk: str) -> Any:
    context = get_context("fork")  # other users may not be able to read the code
    shown = context.SimpleQueue()
    process = context.Process(target=use_as, args=(user, group, shared, chunk, shown))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return shown.get()


@needs_root
@pytest.mark.processes
def test_users_of_a_group_share_a_tier_and_others_do_not(shared: Path) -> None:
    assert used_as(MEMBER, GROUP, shared, "0" * 32) == ([], [], False)
    for path in shared.rglob("*"):
        status = path.stat()
        assert (status.st_gid, status.st_mode & 0o007) == (GROUP, 0), path
    assert (shared / DATASET / ("0" * 32)).stat().st_mode & 0o777 == 0o640
    for user, group in ((STRANGER, OTHER_GROUP), (STRANGER, STRANGER)):
        assert "you are not in its group" in used_as(user, group, shared, "1" * 32)
    assert used_as(MEMBER + 10, GROUP, shared, "2" * 32) == ([("pets", 1, True)], [b"1234"], True)
    assert [path.name for path in (shared / DATASET).iterdir()] == ["lock"]


@needs_root
def test_a_folder_that_another_user_has_opened_for_a_group_is_refused(shared: Path) -> None:
    os.chown(shared, STRANGER, GROUP)
    with pytest.raises(AccessDenied, match="nor one of root for a group"):
        check_folder(shared.parent)
    os.chown(shared, 0, GROUP)
    check_folder(shared.parent)
    for mode in (0o2777, 0o2775, 0o2750, 0o0770, 0o3770):
        shared.chmod(mode)
        with pytest.raises(AccessDenied, match="mode 2770"):
            check_folder(shared.parent)


@needs_root
def test_a_link_that_a_member_puts_in_place_of_a_new_folder_is_not_followed(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = shared.parent / "victim"
    victim.mkdir(mode=0o700)
    mkdir = Path.mkdir

    def replaced(path: Path, mode: int = 0o777) -> None:
        mkdir(path, mode)
        path.rmdir()
        path.symlink_to(victim)

    monkeypatch.setattr(Path, "mkdir", replaced)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        make_folder(shared / DATASET)
    assert victim.stat().st_mode & 0o7777 == 0o700


@needs_root
def test_a_lock_that_was_removed_is_made_for_the_group_again(shared: Path) -> None:
    with closing(DiskSpace(shared, 1 << 30)) as space:
        (shared / "space").unlink()
        assert space.kept() == []
        assert (shared / "space").stat().st_mode & 0o777 == 0o660
