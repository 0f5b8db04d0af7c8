"""What dlcmd cache --list and --clear say without a tier, and of one whose datasets have no names."""

from contextlib import closing
from pathlib import Path

from dieselfs.disk.space import DatasetHold, DiskSpace, check_folder
from dieselfs.errors import EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_USAGE
from tests.support.dlcmd import Dlcmd

DATASET = "0123456789abcdef" * 2


def stored(disk: Path) -> Path:
    folder = check_folder(disk)
    with closing(DiskSpace(folder, 1 << 30)) as space, closing(DatasetHold(folder, DATASET)) as hold:
        new = space.create(hold, 4096, frozenset)
        assert new is not None
        open(new.descriptor, "wb").close()
        space.publish(new, "0" * 32)
    return disk


def test_a_dataset_without_a_name_has_its_id(dlcmd: Dlcmd) -> None:
    disk = stored(dlcmd.folder / "tier")
    ran = dlcmd("cache", "--list", "--disk", disk)
    assert ran.lines[0].startswith(f"{DATASET}  1 chunk (4.0 KiB), last used ")
    assert ran.lines[-1] == f"1 dataset, 4.0 KiB in {disk}"
    assert (
        dlcmd("cache", "--clear", DATASET, "--disk", disk).lines[-1]
        == "removed 1 dataset (4.0 KiB) from the disk"
    )
    assert dlcmd("cache", "--list", "--disk", disk).lines == [f"0 datasets, 0 B in {disk}"]


def test_without_a_tier(dlcmd: Dlcmd) -> None:
    assert "--disk" in dlcmd("cache", "--list", exit_code=EXIT_USAGE).stderr
    ran = dlcmd("cache", "--list", "--disk", "nowhere", exit_code=EXIT_NOT_FOUND)
    assert ran.stderr == "dlcmd: --disk nowhere: there is no disk tier in it\n"
    assert not (dlcmd.folder / "nowhere").exists()
    disk = stored(dlcmd.folder / "open")
    (disk / "dieselfs-1").chmod(0o777)
    dlcmd("cache", "--list", "--disk", disk, exit_code=EXIT_REFUSED)
