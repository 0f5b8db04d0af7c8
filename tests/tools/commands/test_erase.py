"""dlcmd erase: a key, or files in every generation; what is left is said."""

from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_USAGE
from tests.support.dlcmd import Dlcmd

SECRET = b"patient seventeen"


@pytest.fixture
def dlcmd(tmp_path: Path) -> Dlcmd:
    (tmp_path / "user").mkdir()
    folder = tmp_path / "source"
    (folder / "patient-17").mkdir(parents=True)
    (folder / "patient-17/notes").write_bytes(SECRET)
    (folder / "other").write_bytes(b"stays")
    return Dlcmd(tmp_path / "home", tmp_path / "user")


def stored(dlcmd: Dlcmd) -> bytes:
    """All bytes of all chunks and records."""
    folders = [dlcmd.home / name for name in ("chunks", "cache")]
    return b"".join(path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file())


def test_a_key_that_was_destroyed_opens_nothing(dlcmd: Dlcmd, tmp_path: Path) -> None:
    dlcmd("put", "-r", "--encrypt", f"{tmp_path}/source/", "dl://mri/")
    dlcmd("ls", "-R", "dl://mri")
    assert b"patient-17" in stored(dlcmd)  # the snapshot with plain names, of this user
    assert dlcmd("erase", "-n", "dl://mri").lines[-1].startswith("would destroy the key")
    dlcmd("cat", "dl://mri/other")
    ran = dlcmd("erase", "-y", "--json", "dl://mri")
    assert ran.summary["files"] == 2 and len(ran.objects) == 3
    assert "until dlcmd rb dl://mri" in ran.objects[0]["left"]
    assert b"patient-17" not in stored(dlcmd) and b"x25519" not in stored(dlcmd)
    for arguments in (
        ["ls", "dl://mri"],
        ["cat", "dl://mri/other"],
        ["put", f"{tmp_path}/source/other", "dl://mri/"],
    ):
        assert "its key was destroyed by dlcmd erase" in dlcmd(*arguments, exit_code=EXIT_REFUSED).stderr
    assert "was destroyed" in dlcmd("erase", "-y", "dl://mri", exit_code=EXIT_USAGE).stderr
    dlcmd("rb", "-y", "dl://mri")
    dlcmd("put", "-r", f"{tmp_path}/source/", "dl://mri/")


@pytest.mark.parametrize("encrypt", [[], ["--encrypt"]])
def test_files_are_erased_in_every_generation(dlcmd: Dlcmd, tmp_path: Path, encrypt: list[str]) -> None:
    dlcmd("put", "-r", *encrypt, f"{tmp_path}/source/", "dl://mri/")
    dlcmd("tag", "add", "dl://mri", "v1")
    (tmp_path / "source/patient-17/notes").write_bytes(SECRET + b", again")
    dlcmd("put", "-r", f"{tmp_path}/source/", "dl://mri/")
    assert (
        "tags of dl://mri have them: v1"
        in dlcmd("erase", "-y", "-r", "dl://mri/patient-17", exit_code=EXIT_USAGE).stderr
    )
    assert "erase it with -r" in dlcmd("erase", "-y", "dl://mri/patient-17", exit_code=EXIT_USAGE).stderr
    assert dlcmd("erase", "-n", "-r", "dl://mri/patient-17").lines == [
        "would erase 2 entries of dl://mri, and tags v1"
    ]
    assert (SECRET in stored(dlcmd)) is not bool(encrypt)
    before = chunk_files(dlcmd)
    ran = dlcmd("erase", "-y", "-r", "--tags", "--json", "dl://mri/patient-17")
    assert ran.summary["entries"] == 2 and ran.summary["tags"] == ["v1"]
    assert SECRET not in stored(dlcmd)
    assert not before & chunk_files(dlcmd)
    assert dlcmd("cat", "dl://mri/other").stdout == b"stays"
    assert dlcmd("ls", "dl://mri").lines == ["other"]
    dlcmd("erase", "-y", "dl://mri/patient-17", exit_code=EXIT_NOT_FOUND)
    assert dlcmd("fsck", "--deep", "dl://mri").exit_code == 0


def chunk_files(dlcmd: Dlcmd) -> set[bytes]:
    files = [path for path in (dlcmd.home / "chunks").rglob("*") if path.is_file()]
    return {content for content in (path.read_bytes() for path in files) if content.startswith(b"\x89DSLC")}
