"""Whose the folder of a disk tier is: of one user, or of a group by the decision of root."""

import os
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from dieselfs.disk.folders import SHARED_MODE, check_folder, check_usable, default_size_bytes, make_folder
from dieselfs.disk.space import DatasetHold, DiskSpace
from dieselfs.errors import AccessDenied, InvalidInput

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
