"""dlcmd snapshot: save, mount while the metadata is away, list, compare, and prune."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_DAMAGED, EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE, MountError
from dieselfs_client.daemon import control
from tests.support.dlcmd import Dlcmd


@pytest.fixture
def place(dlcmd: Dlcmd) -> Iterator[Path]:
    """A folder to mount on, free again afterwards."""
    folder = dlcmd.folder / "mount point"
    folder.mkdir()
    yield folder
    with suppress(MountError):
        control.unmount(folder, lazily=True)


def generation_of(dlcmd: Dlcmd, dataset: str) -> int:
    return int(dlcmd("info", "--json", f"dl://{dataset}").objects[0]["generation"])


def add(dlcmd: Dlcmd, dataset: str, name: str) -> None:
    (dlcmd.folder / name).write_text(name)
    dlcmd("put", dlcmd.folder / name, f"dl://{dataset}/")


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")
def test_a_saved_snapshot_is_mounted_by_its_path(dlcmd: Dlcmd, pets: str, place: Path) -> None:
    file = dlcmd.folder / "pets.snapshot"
    assert "would save generation" in dlcmd("snapshot", "save", "-n", pets, file).text
    assert not file.exists()
    generation = generation_of(dlcmd, pets)
    saved = dlcmd("snapshot", "save", pets, file, "--json").summary
    assert (saved["generation"], saved["file"]) == (generation, str(file))
    add(dlcmd, pets, "later")
    said = dlcmd("mount", "--generation", "1", file, place, exit_code=EXIT_USAGE).stderr
    assert "leave out --generation" in said
    mounted = dlcmd("mount", file, place, "--json").summary
    assert (mounted["dataset"], mounted["generation"]) == (pets, generation)
    assert (place / "train" / "cat.txt").read_bytes() == b"xxxxx"
    assert not (place / "later").exists()
    file.unlink()  # the mount has a copy of its own
    dlcmd("upgrade", place)
    assert (place / "train" / "cat.txt").read_bytes() == b"xxxxx"
    dlcmd("umount", place)
    assert "not found" in dlcmd("mount", file, place, exit_code=EXIT_NOT_FOUND).stderr


def test_a_statement_of_freshness_is_saved_and_compared_with_the_servers(dlcmd: Dlcmd, pets: str) -> None:
    file = dlcmd.folder / "pets.snapshot"
    saved = dlcmd("snapshot", "save", pets, file, "--json").summary
    statement, text = dlcmd.folder / "pets.snapshot.statement", str(saved["statement"])
    assert statement.read_text() == f"{text}\n" and text.startswith(f"dieselfs-freshness 1 {pets} ")
    add(dlcmd, pets, "later")
    assert dlcmd("snapshot", "log", "--statement", statement, pets).text
    statement.write_text(f"{text[:-8]}00000000\n")
    assert "sign" in dlcmd("snapshot", "log", "--statement", statement, pets, exit_code=EXIT_DAMAGED).stderr
    statement.unlink()
    said = dlcmd("snapshot", "log", "--statement", statement, pets, exit_code=EXIT_NOT_FOUND).stderr
    assert "no statement of freshness" in said


def test_a_snapshot_that_was_changed_is_refused(dlcmd: Dlcmd, pets: str, place: Path) -> None:
    file = dlcmd.folder / "pets.snapshot"
    dlcmd("snapshot", "save", pets, file)
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    other = dlcmd.folder / "other.snapshot"
    other.write_bytes(content)
    assert "digest of the snapshot" in dlcmd("snapshot", "diff", other, file, exit_code=EXIT_DAMAGED).stderr


def test_generations_are_logged_and_compared(dlcmd: Dlcmd, pets: str) -> None:
    file = dlcmd.folder / "old.snapshot"
    dlcmd("snapshot", "save", pets, file)
    dlcmd("tag", "add", f"dl://{pets}", "v1")
    first = generation_of(dlcmd, pets)
    add(dlcmd, pets, "later")
    found = dlcmd("snapshot", "log", f"dl://{pets}", "--json").objects
    assert [one["generation"] for one in found] == [first, first + 1]
    assert [one["tags"] for one in found] == [["v1"], []]
    assert found[1]["files"] == found[0]["files"] + 1
    text = dlcmd("snapshot", "log", f"dl://{pets}").text.splitlines()
    assert text[0].endswith("@v1") and text[1].endswith("newest")

    differing = dlcmd("snapshot", "diff", file, f"dl://{pets}", "--json", exit_code=EXIT_PARTIAL)
    assert [(one["change"], one["path"]) for one in differing.objects] == [("added", "later")]
    assert "no differences" in dlcmd("snapshot", "diff", file, f"dl://{pets}@v1").text


def test_stored_snapshots_are_listed_and_pruned(dlcmd: Dlcmd, pets: str) -> None:
    for name in ("one", "two"):
        dlcmd("snapshot", "save", pets, dlcmd.folder / "x.snapshot")
        add(dlcmd, pets, name)
    dlcmd("snapshot", "save", pets, dlcmd.folder / "x.snapshot")
    listed = [one for one in dlcmd("snapshot", "ls", "--json").objects if one["dataset"] == pets]
    assert len(listed) > 1 and all(Path(one["file"]).exists() for one in listed)
    assert listed[0]["generation"] == max(one["generation"] for one in listed)
    planned = dlcmd("snapshot", "prune", "-n", "--json").summary
    assert all(Path(one["file"]).exists() for one in listed)
    pruned = dlcmd("snapshot", "prune", "--json").summary
    assert pruned["snapshots"] == planned["snapshots"] >= len(listed) - 1
    left = [one for one in dlcmd("snapshot", "ls", "--json").objects if one["dataset"] == pets]
    assert [one["generation"] for one in left] == [listed[0]["generation"]]


def sent_bytes(dlcmd: Dlcmd) -> int:
    """Bytes of snapshots that the server has sent."""
    (status,) = dlcmd("server", "status", "--json").objects
    return int(status["metrics"]["snapshots.sent_bytes"])


def test_a_shared_folder_takes_the_place_of_the_server(dlcmd: Dlcmd, pets: str) -> None:
    shared = dlcmd.folder / "shared"
    shared.mkdir()
    saved = Path(dlcmd("snapshot", "save", pets, shared, "--json").summary["file"])
    assert saved.is_relative_to(shared)
    dlcmd("snapshot", "prune", "--keep", "0")
    sent = sent_bytes(dlcmd)
    there = replace(dlcmd, variables={"DIESELFS_SNAPSHOTS": str(shared)})
    there("snapshot", "save", pets, dlcmd.folder / "x.snapshot")
    assert sent_bytes(dlcmd) == sent
    stored = [one for one in dlcmd("snapshot", "ls", "--json").objects if one["dataset"] == pets]
    assert [Path(one["file"]).read_bytes() for one in stored] == [saved.read_bytes()]
