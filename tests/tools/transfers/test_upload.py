"""dlcmd sync --delete, while another writer stores files in the same dataset."""

import json
import shutil

import pytest

from tests.support.dlcmd import Dlcmd

_OTHER_WRITER = """
import dieselfs
from dieselfs_tools.transfers.trees import SourceTrees

between = SourceTrees._between

def disturbed(*arguments):
    with dieselfs.connect({dataset!r}) as other:
        for path in {paths!r}:
            other.put(path, b"of another writer")
    return between(*arguments)

SourceTrees._between = disturbed
"""


@pytest.fixture
def pets(dlcmd: Dlcmd, dataset: str) -> str:
    """A dataset, and the folder `pets` that it was made from."""
    root = dlcmd.folder / "pets"
    (root / "train/more").mkdir(parents=True)
    for name in ("kept", "none", "train/cat.txt", "train/more/dog.bin"):
        (root / name).touch()
    dlcmd("put", "-r", "-q", "pets/", f"dl://{dataset}/")
    return dataset


def _sync(dlcmd: Dlcmd, dataset: str, *paths: str) -> dict[str, object]:
    """The summary of a sync during which another writer stores `paths`."""
    code = _OTHER_WRITER.format(dataset=dataset, paths=paths)
    ran = dlcmd.changed(code, "sync", "--json", "--delete", "pets/", f"dl://{dataset}/")
    assert ran.returncode == 0, ran.stderr
    summary: dict[str, object] = json.loads(ran.stdout.splitlines()[-1])
    return summary


def test_what_another_writer_adds_stays(dlcmd: Dlcmd, pets: str) -> None:
    (dlcmd.folder / "pets/none").unlink()
    assert _sync(dlcmd, pets, "other/new", "train/new")["deleted"] == 1
    names = dlcmd("ls", "-R", pets).lines
    assert {"other/new", "train/new"} < {*names} and "none" not in names


def test_what_another_writer_replaces_stays(dlcmd: Dlcmd, pets: str) -> None:
    (dlcmd.folder / "pets/none").unlink()
    shutil.rmtree(dlcmd.folder / "pets/train")
    summary = _sync(dlcmd, pets, "train/cat.txt")
    assert summary["deleted"] == 3  # not its folder, which has it
    assert dlcmd("cat", f"dl://{pets}/train/cat.txt").stdout == b"of another writer"
    assert dlcmd("ls", "-R", f"dl://{pets}/train").lines == ["train/cat.txt"]
    # Nobody writes now: the next one deletes it.
    assert dlcmd("sync", "--json", "--delete", "pets/", f"dl://{pets}/").summary["deleted"] == 2


def test_what_was_deleted_and_stored_again_counts(dlcmd: Dlcmd, pets: str) -> None:
    """The versions that a sync reserves and does not use are of no harm."""
    (dlcmd.folder / "pets/none").rename(dlcmd.folder / "none")
    dlcmd("sync", "--delete", "pets/", f"dl://{pets}/")
    (dlcmd.folder / "none").rename(dlcmd.folder / "pets/none")
    dlcmd("sync", "--delete", "pets/", f"dl://{pets}/")
    assert dlcmd("check", "pets/", f"dl://{pets}/").lines == ["no differences in 6 entries"]
    dlcmd("fsck", f"dl://{pets}")
