"""dlcmd columns, and the verbs that select files by columns."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_UNAVAILABLE, EXIT_USAGE, Unavailable
from dieselfs_tools.commands import columns
from tests.support.dlcmd import TIMEOUT_S, Dlcmd, wait_until
from tests.support.server import RunningServer

parquet = pytest.importorskip("pyarrow.parquet", reason="the extra columns is not installed")
pytest.importorskip("duckdb", reason="the extra columns is not installed")

LARGE = ("--where", "width >= 512 and lang = 'de'")


@pytest.fixture
def labelled(dlcmd: Dlcmd, pets: str) -> str:
    (dlcmd.folder / "t.csv").write_text(
        "file,width,lang\ntrain/cat.txt,600,de\ntrain/more/dog.bin,700,en\nnone,9,de\n"
    )
    dlcmd("columns", "add", "--json", f"dl://{pets}", "t.csv", "--key", "file")
    return pets


def test_columns_are_listed_exported_and_removed(dlcmd: Dlcmd, labelled: str) -> None:
    listed = dlcmd("columns", "list", "--json", labelled)
    assert [(one["name"], one["value_type"], one["files"]) for one in listed.objects] == [
        ("width", "int64", 3),
        ("lang", "string", 3),
    ]
    dlcmd("columns", "export", "--json", labelled, "t.parquet")
    assert set(parquet.read_table(dlcmd.folder / "t.parquet").column("path").to_pylist()) == {
        "train/cat.txt",
        "train/more/dog.bin",
        "none",
    }
    dlcmd("columns", "export", "-q", labelled, "t.jsonl")
    rows = [json.loads(line) for line in (dlcmd.folder / "t.jsonl").read_text().splitlines()]
    assert {"path": "none", "width": 9, "lang": "de"} in rows
    dlcmd("columns", "export", labelled, "t.txt", exit_code=EXIT_USAGE)
    assert "did you mean width" in dlcmd("columns", "remove", labelled, "wide", exit_code=EXIT_USAGE).stderr
    dlcmd("columns", "remove", labelled, "width")
    assert "no column 'width'" in dlcmd("find", labelled, *LARGE, exit_code=EXIT_USAGE).stderr
    assert dlcmd("columns", "remove", "--json", "-n", labelled, "lang").summary["columns"] == ["lang"]
    dlcmd("columns", "remove", "--json", labelled, "lang")
    assert "has no columns" in dlcmd("columns", "list", labelled, exit_code=EXIT_USAGE).stderr


def test_verbs_select_files(dlcmd: Dlcmd, labelled: str) -> None:
    assert dlcmd("find", labelled, *LARGE).lines == [f"dl://{labelled}/train/cat.txt"]
    assert dlcmd("ls", "-R", labelled, *LARGE).lines == ["train/", "train/cat.txt"]
    assert dlcmd("ls", labelled, *LARGE).lines == ["train/"]
    assert "--where selects files of a dataset" in dlcmd("ls", *LARGE, exit_code=EXIT_USAGE).stderr
    assert dlcmd("ls", labelled).lines == ["empty/", "latest", "none", "train/"]
    assert dlcmd("du", "--json", labelled, *LARGE).summary["files"] == 1
    assert dlcmd("shuffle", labelled, *LARGE).lines == ["train/cat.txt"]
    dlcmd("get", "-r", f"dl://{labelled}/train", "out", "--where", "lang = 'en'")
    dlcmd("export", f"dl://{labelled}", "whole.tar", *LARGE)
    found = [str(path.relative_to(dlcmd.folder / "out")) for path in Path(dlcmd.folder, "out").rglob("*.*")]
    assert found == ["train/more/dog.bin"] or found == ["more/dog.bin"]


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")
def test_a_mounted_selection_has_its_files_alone(dlcmd: Dlcmd, labelled: str, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    place.mkdir()
    for where, fault in (
        ("wide > 1", "there is no column 'wide': did you mean width?"),
        (" ", "no expression"),
    ):
        for verb in (("mount", labelled, place), ("find", labelled)):
            assert fault in dlcmd(*verb, "--where", where, exit_code=EXIT_USAGE).stderr
    dlcmd("mount", labelled, place, "-o", "where=width >= 512 and lang in ('de'\\,'fr')")
    try:
        found = sorted(str(path.relative_to(place)) for path in place.rglob("*"))
        assert found == ["train", "train/cat.txt"] and (place / "train/cat.txt").read_bytes() == b"xxxxx"
        assert (place / ".dieselfs/shuffle/seed=1,epoch=0").read_text() == "train/cat.txt\n"
        info = json.loads((place / ".dieselfs/info").read_bytes())
        assert (info["files"], info["chunks"]) == (1, 1)
    finally:
        dlcmd("umount", place)


def test_columns_go_where_the_dataset_goes(dlcmd: Dlcmd, labelled: str) -> None:
    dlcmd("tag", "add", labelled, "v1")
    dlcmd("cp", "-r", f"dl://{labelled}/", f"dl://{labelled}-copy/")
    dlcmd("sync", "--delete", "-y", "pets/", f"dl://{labelled}/")
    dlcmd("rebuild", labelled)
    for place in (labelled, f"{labelled}@v1", f"{labelled}-copy"):
        assert dlcmd("find", f"dl://{place}", *LARGE).lines == [f"dl://{place}/train/cat.txt"]
    dlcmd("get", "-r", "-q", f"dl://{labelled}/", "back")
    assert not (dlcmd.folder / "back" / ".dieselfs").exists()


def test_commands_at_once_lose_no_column(dlcmd: Dlcmd, labelled: str) -> None:
    names = [f"column{number}" for number in range(4)]
    running = []
    for name in names:
        (dlcmd.folder / f"{name}.csv").write_text(f"file,{name}\nnone,1\n")
        command = "columns", "add", "-q", f"dl://{labelled}", f"{name}.csv", "--key", "file"
        running.append(dlcmd.start(*command))
    running.append(dlcmd.start("columns", "remove", "-q", labelled, "width"))
    assert [process.wait(TIMEOUT_S) for process in running] == [0] * 5
    assert {*dlcmd("columns", "list", "--json", labelled).summary["columns"]} == {"lang", *names}


def test_a_claim_is_renewed_while_its_command_runs(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "RENEWAL_S", 0.01)
    with Dataset(server.settings(), "claimed", must_exist=False) as data:
        data.create()

        def ends_ns() -> list[int]:
            return [pin.expires_ns for pin in data.client.pins("claimed")]

        with columns._alone(data):
            first = ends_ns()
            wait_until(lambda: ends_ns() > first)
        assert len(first) == 1 and ends_ns() == []


LATE = """
from dieselfs.selection import file_columns
from dieselfs_tools.commands import columns

now_s, read_table = [0.0], file_columns.read_table

def read_late(*arguments):
    now_s[0] = columns.CLAIM_S
    return read_table(*arguments)

columns._now_s, file_columns.read_table = lambda: now_s[0], read_late
"""
"""The claim is not renewed while the table is read."""


def test_a_command_whose_claim_was_not_renewed_writes_nothing(dlcmd: Dlcmd, labelled: str) -> None:
    (dlcmd.folder / "x.csv").write_text("file,x\nnone,1\n")
    add = "columns", "add", f"dl://{labelled}", "x.csv", "--key", "file"
    refused = dlcmd.forked([*add], code=LATE)
    assert refused.exit_code == EXIT_UNAVAILABLE
    (line,) = refused.stderr.splitlines()
    assert "another one may have changed the columns; nothing was written: try again" in line
    assert dlcmd("columns", "list", "--json", labelled).summary["columns"] == ["width", "lang"]
    dlcmd(*add)  # its claim has gone


def test_a_claim_that_has_ended_stays_ended(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the server can be reached again, or answers too late."""
    now_s, answers_s = [0.0], 0.0
    monkeypatch.setattr(columns, "_now_s", lambda: now_s[0])
    with Dataset(server.settings(), "lost", must_exist=False) as data:
        data.create()
        pin = data.client.pin

        def late(*arguments: Any) -> None:
            pin(*arguments)
            now_s[0] += answers_s

        monkeypatch.setattr(data.client, "pin", late)
        with columns._alone(data) as renew:
            for _ in range(3):
                now_s[0] += columns.CLAIM_S - 1
                renew()
            answers_s = columns.CLAIM_S
            for _ in range(2):
                with pytest.raises(Unavailable, match="nothing was written"):
                    renew()
                answers_s = 0.0
        assert data.client.pins("lost") == []


def test_a_claim_that_is_gone_is_not_put_again(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has expired by the clock of a server, and another command may have begun."""
    monkeypatch.setattr(columns, "RENEWAL_S", 0.01)
    with Dataset(server.settings(), "gone", must_exist=False) as data:
        data.create()
        with columns._alone(data) as renew:
            (own,) = data.client.pins("gone")
            removal = "gone", own.holder.partition("/")[2], own.generation, data.snapshot.header.updated_ns, 0

            def is_noticed() -> bool:
                data.client.pin(*removal)  # again, as a renewal that had looked before may have put it
                return "is gone" in caplog.text

            wait_until(is_noticed)
            with pytest.raises(Unavailable, match="nothing was written"):
                renew()
            assert data.client.pins("gone") == []


def test_a_command_that_was_killed_excludes_others_for_a_while(dlcmd: Dlcmd, labelled: str) -> None:
    (dlcmd.folder / "x.csv").write_text("file,x\nnone,1\n")
    add = "columns", "add", f"dl://{labelled}", "x.csv", "--key", "file"
    put = "dieselfs.rpc.client:ServerClient.put_chunk"
    assert dlcmd.struck(signal.SIGKILL, 0, put, 1, *add).returncode == -signal.SIGKILL
    code = "from dieselfs_tools.commands import columns; columns.CLAIM_WAIT_S = 0.0"
    refused = dlcmd.forked([*add], code=code)
    assert refused.exit_code == EXIT_UNAVAILABLE
    (line,) = refused.stderr.splitlines()
    assert "another command" in line and "if it was killed" in line
