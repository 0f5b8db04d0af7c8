"""dlcmd get and cat: where things go, going on, damage, a full disk."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_DAMAGED, EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from dieselfs.limits import MIB
from tests.support.dlcmd import Dlcmd
from tests.support.server import running_server

CONTENT = {"a/1", "a/2", "b"}


@pytest.fixture
def stored(dlcmd: Dlcmd, dataset: str) -> str:
    """A dataset with `in/a/1`, `in/a/2`, `in/b`, and the link `in/link` to `b`."""
    for name in CONTENT:
        place = dlcmd.folder / "in" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(name)
    (dlcmd.folder / "in" / "link").symlink_to("b")
    dlcmd("put", "-r", "in", f"dl://{dataset}/")
    return dataset


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize(
    ("source", "destination", "place"),
    [
        ("", "out", "out/in"),
        ("/", "out/", "out/in"),
        ("/in/", "out", "out"),
        ("/in", "out", "out/in"),
        ("/in", "out/", "out/in"),
        ("/in/a/..", None, None),
    ],
)
def test_a_slash_behind_the_source_means_what_is_in_it(
    dlcmd: Dlcmd, stored: str, source: str, destination: str, place: str | None
) -> None:
    if place is None:
        dlcmd("get", "-r", f"dl://{stored}{source}", "out", exit_code=EXIT_USAGE)
        return
    dlcmd("get", "-r", f"dl://{stored}{source}", destination)
    assert names(dlcmd.folder / place) == CONTENT | {"link"}
    assert os.readlink(dlcmd.folder / place / "link") == "b"


def test_a_file_goes_into_a_folder_or_takes_the_name_given(dlcmd: Dlcmd, stored: str) -> None:
    (dlcmd.folder / "folder").mkdir()
    source = f"dl://{stored}/in/b"
    here = Dlcmd(dlcmd.home, dlcmd.folder / "folder")
    here("get", source)
    dlcmd("get", source, "renamed")
    dlcmd("get", source, "new/")
    dlcmd("get", source, f"dl://{stored}/in/a/1", "both")
    assert names(dlcmd.folder) - {f"in/{name}" for name in (*CONTENT, "link")} == {
        "folder/b",
        "renamed",
        "new/b",
        "both/b",
        "both/1",
    }


def test_a_named_link_gives_what_it_leads_to(dlcmd: Dlcmd, stored: str) -> None:
    dlcmd("get", f"dl://{stored}/in/link", "followed")
    assert (dlcmd.folder / "followed").read_text() == "b" and not (dlcmd.folder / "followed").is_symlink()
    assert dlcmd("cat", f"dl://{stored}/in/link").text == "b"
    dlcmd("get", "-r", f"dl://{stored}/in/link", "kept")
    assert os.readlink(dlcmd.folder / "kept") == "b"


def test_what_is_there_is_skipped_and_a_dry_run_writes_nothing(dlcmd: Dlcmd, stored: str) -> None:
    get = ("get", "-r", f"dl://{stored}/in", "out")
    planned = dlcmd(*get, "-n")
    assert f"would get dl://{stored}/in/a/1 -> out/in/a/1" in planned.lines
    assert planned.lines[-1] == "would write 6 entries (7 B), skip 0 that already exist"
    assert not (dlcmd.folder / "out").exists()
    assert dlcmd(*get, "--json").summary["written"] == 6
    again = dlcmd(*get, "--json").summary
    assert again["skipped"] == 4  # three files, and the folder that was there before
    (dlcmd.folder / "out" / "in" / "b").write_text("changed")
    planned = dlcmd(*get, "-n", "--json")
    assert "in/b" in {one["path"] for one in planned.objects}
    assert "in/a/1" not in {one["path"] for one in planned.objects}
    dlcmd(*get)
    assert (dlcmd.folder / "out" / "in" / "b").read_text() == "b"


def test_what_cannot_be_got(dlcmd: Dlcmd, stored: str) -> None:
    assert "get it with -r" in dlcmd("get", f"dl://{stored}/in", exit_code=EXIT_USAGE).stderr
    dlcmd("get", f"dl://{stored}/in/b/", exit_code=EXIT_USAGE)
    dlcmd("get", f"dl://{stored}/in/none", exit_code=EXIT_NOT_FOUND)
    dlcmd("get", "-r", f"dl://{stored}/in", "-", exit_code=EXIT_USAGE)
    (dlcmd.folder / "file").touch()
    ran = dlcmd("get", "-r", f"dl://{stored}/in/", "file", exit_code=EXIT_PARTIAL)
    assert ran.stderr == "dlcmd: cannot write to file: File exists\n"


def test_a_damaged_chunk_is_named_and_every_other_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(8):
        (tmp_path / "many" / str(number)).write_bytes(os.urandom(400_000))
    with running_server(tmp_path / "server") as server:
        dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix})
        dlcmd("put", "-r", "many", "dl://d/", "--chunk-size", "1M", "--jobs", "1")
        chunks = [
            path
            for path in (server.folder / "chunks").rglob("*")
            if path.is_file() and path.stat().st_size > MIB
        ]
        with chunks[0].open("r+b") as file:
            file.seek(-100, os.SEEK_END)
            last = file.read(1)
            file.seek(-100, os.SEEK_END)
            file.write(bytes([last[0] ^ 0xFF]))
        ran = dlcmd("get", "-r", "--json", "dl://d/many/", "out", exit_code=EXIT_DAMAGED)
        assert ran.summary["failed"] == len(ran.objects) == 1 and ran.summary["is_damaged"]
        damaged = ran.objects[0]["path"].removeprefix("many/")
        assert "digest" in ran.objects[0]["reason"] and "chunk " in ran.objects[0]["reason"]
        assert names(tmp_path / "out") == {str(number) for number in range(8)} - {damaged}
        for name in names(tmp_path / "out"):
            assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()
        dlcmd("cat", f"dl://d/many/{damaged}", exit_code=EXIT_DAMAGED)
        chunks[0].unlink()
        ran = dlcmd("get", "-r", "--json", "dl://d/many/", "gone", exit_code=EXIT_DAMAGED)
        assert 1 < ran.summary["failed"] < 8


def test_a_full_disk_here_is_one_line_and_the_same_command_continues(
    dlcmd: Dlcmd, dataset: str, small_disk: Path
) -> None:
    (dlcmd.folder / "many").mkdir()
    for number in range(12):
        (dlcmd.folder / "many" / str(number)).write_bytes(os.urandom(MIB))
    dlcmd("put", "-r", "many", f"dl://{dataset}/")
    get = ("get", "-r", f"dl://{dataset}/many", small_disk)
    ran = dlcmd(*get, exit_code=EXIT_PARTIAL)
    assert ran.stderr.splitlines()[-1].startswith(f"dlcmd: {small_disk}/many: No space left on device")
    whole = names(small_disk)
    assert whole and all((small_disk / name).stat().st_size == MIB for name in whole)
    for name in whole:
        (small_disk / name).unlink()
    (small_disk / "many" / "x").write_bytes(b"")
    dlcmd(*get, exit_code=EXIT_PARTIAL)


def test_an_interrupted_get_leaves_whole_files_and_continues(dlcmd: Dlcmd, dataset: str) -> None:
    source, out, files = dlcmd.folder / "many", dlcmd.folder / "out", 60
    source.mkdir()
    for number in range(files):
        (source / str(number)).write_bytes(number.to_bytes(2, "little") * (MIB // 2))
    (source / "large").write_bytes(bytes(20 * MIB))
    dlcmd("put", "-r", "many/", f"dl://{dataset}/", "--chunk-size", "1M")
    get = ("get", "-r", f"dl://{dataset}/", "out", "--jobs", "2")
    write_file = "dieselfs.transfer.destination:Destination.write_file"
    done = dlcmd.struck(signal.SIGINT, 0, write_file, 4, *get)
    assert done.returncode == EXIT_INTERRUPTED, done
    assert done.stderr.splitlines()[-1].startswith("dlcmd: interrupted; the same command, run again")
    written = names(out)
    assert 0 < len(written) < files and all(not name.startswith(".") for name in written)
    summary = dlcmd(*get, "--json").summary
    assert summary["skipped"] == len(written) + 1
    assert names(out) == names(source)
    assert all((out / name).read_bytes() == (source / name).read_bytes() for name in names(source))
    shutil.rmtree(source)
    shutil.rmtree(out)
