"""dlcmd put: the rule of rsync, going on after an interruption, failures in the middle, standard input."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dieselfs.errors import (
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_PARTIAL,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    NotFound,
)
from dieselfs.limits import MIB
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import EMBEDDED, Settings
from dieselfs_tools.transfers.comparison import compare_trees
from tests.support.dlcmd import CALLER, Dlcmd
from tests.support.server import running_server, start_server
from tests.support.trees import odd_tree

PUT_CHUNK = "dieselfs.rpc.client:ServerClient.put_chunk"


def paths(dlcmd: Dlcmd, location: str) -> set[str]:
    return {one["path"] for one in dlcmd("ls", "-R", "--json", location).objects}


def small_tree(folder: Path) -> Path:
    for name in ("tree/a/1.txt", "tree/a/2.tmp", "tree/b/3.txt"):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(name)
    (folder / "tree" / "empty").mkdir()
    return folder / "tree"


CONTENT = {"a", "a/1.txt", "a/2.tmp", "b", "b/3.txt", "empty"}


@pytest.mark.parametrize(
    ("source", "place", "prefix"),
    [
        ("tree/", "", ""),
        ("tree", "", "tree/"),
        ("tree", "/", "tree/"),
        ("tree/", "/in/here/", "in/here/"),
        ("tree", "/in/here", "in/here/tree/"),
        ("./tree/.", "/x", "x/"),
    ],
)
def test_a_slash_behind_the_source_means_what_is_in_it(
    dlcmd: Dlcmd, dataset: str, source: str, place: str, prefix: str
) -> None:
    small_tree(dlcmd.folder)
    ran = dlcmd("put", "-r", source, f"dl://{dataset}{place}")
    above = {prefix[:end] for end, letter in enumerate(prefix) if letter == "/"}
    assert paths(dlcmd, f"dl://{dataset}") == {prefix + name for name in CONTENT} | above
    assert ran.text.startswith("stored 3 files and 4 folders (36 B) in ")
    first = source if source.endswith("/") else source + "/"
    assert re.search(rf"; the first: {re.escape(first)}(.+) -> dl://{dataset}/{prefix}\1\n", ran.text)


def test_a_file_keeps_its_name_in_a_folder_and_else_takes_the_one_given(dlcmd: Dlcmd, dataset: str) -> None:
    for name in ("cat", "dog"):
        (dlcmd.folder / name).write_text(name)
    dlcmd("put", "cat", f"dl://{dataset}")
    dlcmd("put", "cat", f"dl://{dataset}/in/")
    dlcmd("put", "cat", f"dl://{dataset}/tom")
    dlcmd("put", "cat", f"dl://{dataset}/in")  # a folder by now
    dlcmd("put", "cat", "dog", f"dl://{dataset}/both")
    assert paths(dlcmd, f"dl://{dataset}") == {"cat", "in", "in/cat", "tom", "both", "both/cat", "both/dog"}
    assert "not a folder" in dlcmd("put", "dog", f"dl://{dataset}/tom/", exit_code=EXIT_USAGE).stderr
    assert dlcmd("cat", f"dl://{dataset}/tom").stdout == b"cat"


def test_a_tree_of_all_kinds_comes_back_as_it_was(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "tree").mkdir()
    source = odd_tree(dlcmd.folder / "tree")
    entries = 1 + sum(len(folders) + len(files) for _, folders, files in os.walk(source))
    stored = dlcmd("put", "-r", "--chunk-size", "256K", "tree/", f"dl://{dataset}/", "--json").summary
    assert (stored["stored"], stored["skipped"], stored["failed"]) == (entries, 0, 0)
    dlcmd("get", "-r", f"dl://{dataset}", "back")
    found = compare_trees(os.fsencode(source), os.fsencode(dlcmd.folder / "back"))
    assert found.shown == []

    listed = dlcmd("ls", "--json", f"dl://{dataset}/names/").objects
    assert {one["path"]: one.get("path_bytes") for one in listed if "UTF-8" in one["path"]} == {
        "names/\\xff\\xfe not UTF-8 \\x80": "bmFtZXMv//4gbm90IFVURi04IIA="
    }
    assert "new\\nline" in dlcmd("ls", f"dl://{dataset}/names/").lines


def test_what_is_stored_is_skipped_unless_forced_or_changed(dlcmd: Dlcmd, dataset: str) -> None:
    source = small_tree(dlcmd.folder)
    put = ("put", "-r", "tree/", f"dl://{dataset}/", "--json")
    assert dlcmd(*put).summary["stored"] == 7
    again = dlcmd(*put).summary
    assert (again["stored"], again["skipped"]) == (0, 7)
    assert "the first" not in dlcmd(*put[:-1]).text
    (source / "a" / "1.txt").write_text("changed")
    assert dlcmd(*put[:-1]).text.endswith(f"; the first: tree/a/1.txt -> dl://{dataset}/a/1.txt\n")
    (source / "new").mkdir()
    assert "the first" not in dlcmd(*put[:-1]).text
    (source / "new").rmdir()
    assert dlcmd("cat", f"dl://{dataset}/a/1.txt").stdout == b"changed"
    assert dlcmd(*put, "--force").summary["stored"] == 7

    one = ("put", "tree/b/3.txt", f"dl://{dataset}/b/", "--json")
    assert dlcmd(*one).summary["skipped"] == 1
    (source / "b" / "3.txt").chmod(0o600)
    assert dlcmd(*one).summary["stored"] == 1
    assert dlcmd(*one, "-f").summary["stored"] == 1


def test_a_dry_run_says_what_it_would_do_and_does_nothing(dlcmd: Dlcmd, dataset: str) -> None:
    small_tree(dlcmd.folder)
    put = ("put", "-r", "tree/", f"dl://{dataset}/")
    ran = dlcmd(*put, "-n")
    assert f"would put tree/b/3.txt -> dl://{dataset}/b/3.txt" in ran.lines
    assert ran.lines[-1] == "would store 7 entries (36 B), skip 0 that are already stored"
    dlcmd("info", f"dl://{dataset}", exit_code=EXIT_NOT_FOUND)
    dlcmd(*put, "--exclude", "b")
    planned = dlcmd(*put, "-n", "--json")
    assert {one["path"] for one in planned.objects} == {"b", "b/3.txt"}
    assert (planned.summary["entries"], planned.summary["skipped"]) == (2, 5)
    assert paths(dlcmd, f"dl://{dataset}") == CONTENT - {"b", "b/3.txt"}


def test_patterns_choose(dlcmd: Dlcmd, dataset: str) -> None:
    small_tree(dlcmd.folder)
    dlcmd("put", "-r", "tree/", f"dl://{dataset}/", "--exclude", "*.tmp", "--exclude", "empty")
    assert paths(dlcmd, f"dl://{dataset}") == {"a", "a/1.txt", "b", "b/3.txt"}
    dlcmd("put", "-r", "tree/", f"dl://{dataset}/in", "--exclude", "*", "--include", "*.tmp")
    assert paths(dlcmd, f"dl://{dataset}/in") == {"in/a", "in/a/2.tmp"}


def test_a_list_chooses_and_what_is_missing_in_it_is_a_failure(dlcmd: Dlcmd, dataset: str) -> None:
    small_tree(dlcmd.folder)
    (dlcmd.folder / "list").write_text("a/1.txt\n\nb\ngone\n")
    put = ("put", "-r", "tree/", f"dl://{dataset}/", "--files-from")
    ran = dlcmd(*put, "list", exit_code=EXIT_PARTIAL)
    assert "gone: No such file or directory" in ran.stderr
    assert paths(dlcmd, f"dl://{dataset}") == {"a", "a/1.txt", "b", "b/3.txt"}
    dlcmd(*put, "-", stdin=b"a/2.tmp\n")
    assert "a/2.tmp" in paths(dlcmd, f"dl://{dataset}")
    dlcmd(*put, "no-list", exit_code=EXIT_NOT_FOUND)
    dlcmd("put", "tree/a/1.txt", f"dl://{dataset}/", "--files-from", "list", exit_code=EXIT_USAGE)


def test_what_cannot_be_stored_is_listed_and_the_rest_goes_through(dlcmd: Dlcmd, dataset: str) -> None:
    source = small_tree(dlcmd.folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "a" / "socket"))
        os.mkfifo(source / "pipe")
        ran = dlcmd("put", "-r", "--json", "tree/", f"dl://{dataset}/", exit_code=EXIT_PARTIAL)
    assert {(Path(one["path"]).name, one["reason"]) for one in ran.objects} == {
        ("socket", "neither file nor folder nor link"),
        ("pipe", "neither file nor folder nor link"),
    }
    assert (ran.summary["stored"], ran.summary["failed"]) == (7, 2)
    assert ran.stderr.count("dlcmd: ") == 2
    assert paths(dlcmd, f"dl://{dataset}") == CONTENT


@pytest.mark.parametrize("size", [0, 1, 5 * MIB + 3])
def test_standard_input_is_stored_under_the_name_given(dlcmd: Dlcmd, dataset: str, size: int) -> None:
    content = os.urandom(size)
    dlcmd = Dlcmd(dlcmd.home, dlcmd.folder, {"TMPDIR": str(dlcmd.folder)})
    dlcmd("put", "-", f"dl://{dataset}/in/piped", stdin=content)
    assert dlcmd("cat", f"dl://{dataset}/in/piped").stdout == content
    assert dlcmd("get", f"dl://{dataset}/in/piped", "-").stdout == content
    assert dlcmd("stat", "--json", f"dl://{dataset}/in/piped").objects[0]["mode"] == "0644"
    assert os.listdir(dlcmd.folder) == []


def stored_files(settings: Settings, dataset: str) -> int:
    client = ServerClient(settings)
    try:
        return client.dataset(dataset).files
    except NotFound:
        return 0
    finally:
        client.close()


def many_files(folder: Path, files: int) -> Path:
    """Files of 1 MiB, each another."""
    (folder / "many").mkdir()
    for number in range(files):
        (folder / "many" / str(number)).write_bytes(number.to_bytes(2, "little") * (MIB // 2))
    return folder / "many"


@pytest.mark.parametrize(
    ("jobs", "signum", "process", "exit_code", "message"),
    [
        (
            "1",
            signal.SIGINT,
            0,
            EXIT_INTERRUPTED,
            "dlcmd: interrupted; the same command, run again, continues",
        ),
        (
            "2",
            signal.SIGINT,
            0,
            EXIT_INTERRUPTED,
            "dlcmd: interrupted; the same command, run again, continues",
        ),
        (
            *("2", signal.SIGKILL, CALLER, EXIT_UNAVAILABLE),
            "dlcmd: a process of the upload has ended (SIGKILL); with --jobs 1 there is only one process; stored",
        ),
    ],
)
def test_an_interrupted_put_continues_and_stores_nothing_twice(
    dlcmd: Dlcmd, dataset: str, jobs: str, signum: signal.Signals, process: int, exit_code: int, message: str
) -> None:
    files = 60
    source = many_files(dlcmd.folder, files)
    put = ("put", "-r", "many/", f"dl://{dataset}/", "--chunk-size", "1M", "--jobs", jobs)
    done = dlcmd.struck(signum, process, PUT_CHUNK, 5, *put)
    assert done.returncode == exit_code, done
    assert done.stderr.splitlines()[-1].startswith(message)
    embedded = Settings.load(EMBEDDED, home=dlcmd.home)
    before = stored_files(embedded, dataset)
    assert 0 < before < files

    summary = dlcmd(*put, "--json").summary
    assert summary["skipped"] >= before
    assert stored_files(embedded, dataset) == files
    # A file that was stored twice would have left a dead entry in a chunk.
    purge = dlcmd("purge", "-n", f"dl://{dataset}", "--json").summary
    assert (purge["removed_chunks"], purge["rewritten_chunks"], purge["waiting_chunks"]) == (0, 0, 0)
    info = dlcmd("info", "--json", f"dl://{dataset}").objects[0]
    assert info["bytes"] == files * MIB
    shutil.rmtree(source)


def test_a_put_survives_the_death_of_the_server(tmp_path: Path) -> None:
    files = 60
    many_files(tmp_path, files)
    server = start_server(tmp_path / "server")
    dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix})
    put = ("put", "-r", "many/", "dl://d/", "--chunk-size", "1M")
    try:
        done = dlcmd.struck(signal.SIGKILL, server.process.pid, PUT_CHUNK, 5, *put)
    finally:
        server.kill()
    assert done.returncode == EXIT_UNAVAILABLE
    assert done.stderr.splitlines()[-1].startswith("dlcmd: ") and "Traceback" not in done.stderr
    with running_server(tmp_path / "server"):
        assert dlcmd(*put, "--json").summary["skipped"] > 0
        assert dlcmd("info", "--json", "dl://d").objects[0]["bytes"] == files * MIB
    shutil.rmtree(tmp_path / "many")


SHOW_BEFORE_IT_IS_STORED = """
from threading import Event
from dieselfs.rpc.client import ServerClient
from dieselfs_tools.cli import progress
is_shown, line, put_chunk = Event(), progress.progress_line, ServerClient.put_chunk
def show(*arguments):
    is_shown.set()
    return line(*arguments)
def wait(*arguments):
    assert is_shown.wait(100)
    return put_chunk(*arguments)
progress.progress_line, ServerClient.put_chunk = show, wait
"""


def test_progress_goes_to_stderr_and_quiet_prints_nothing(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "file").write_bytes(bytes(MIB))
    loud = dlcmd.changed(SHOW_BEFORE_IT_IS_STORED, "put", "--progress", "file", f"dl://{dataset}/")
    assert loud.stderr.startswith("put: ") and "/s" in loud.stderr
    assert loud.returncode == 0 and loud.stdout.count("\n") == 1
    assert dlcmd("put", "-f", "file", f"dl://{dataset}/").stderr == ""
    quiet = dlcmd("put", "--progress", "-q", "-f", "file", f"dl://{dataset}/")
    assert (quiet.text, quiet.stderr) == ("", "")


def test_standard_input_is_named_and_its_reading_is_shown_and_timed(dlcmd: Dlcmd, dataset: str) -> None:
    shown = "from dieselfs_tools.cli import progress; progress.FIRST_LINE_S = 0.01"
    command = [sys.executable, "-c", f"{shown}; from dieselfs_tools.dlcmd import main; main()"]
    with subprocess.Popen(
        [*command, "put", "--progress", "-", f"dl://{dataset}/log"],
        cwd=dlcmd.folder,
        env={**dlcmd.environment(), "TMPDIR": str(dlcmd.folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stderr.readline().startswith(b"read standard input: ")  # while it comes
        process.stdin.write(b"x" * 5)
        process.stdin.close()
        text = process.stdout.read().decode()
        process.stderr.read()
    assert process.returncode == 0
    assert text.startswith("stored 1 file (5 B) in ")
    assert text.endswith(f"; the first: standard input -> dl://{dataset}/log\n")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_put_of_standard_input_leaves_no_file(
    dlcmd: Dlcmd, dataset: str, signum: signal.Signals
) -> None:
    scratch = dlcmd.folder / "scratch"
    scratch.mkdir()
    there = Dlcmd(dlcmd.home, dlcmd.folder, {"TMPDIR": str(scratch)})
    ran = there.struck(signum, 0, "os.fchmod", 1, "put", "-", f"dl://{dataset}/log")
    assert ran.returncode == 128 + signum
    assert ran.stderr.startswith("dlcmd: interrupted") and ran.stderr.count("\n") == 1
    assert os.listdir(scratch) == []


def test_a_full_disk_at_the_server_is_one_line_and_the_same_command_continues(
    tmp_path: Path, small_disk: Path
) -> None:
    (tmp_path / "many").mkdir()
    for number in range(5):  # as many as the disk holds, but for the reserve for deletes
        (tmp_path / "many" / str(number)).write_bytes(os.urandom(MIB))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(3 * MIB))
    with running_server(tmp_path / "server", ["--store", f"posix://{small_disk}/chunks"]) as server:
        dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix})
        put = ("put", "-r", "many/", "dl://d/", "--chunk-size", "1M", "--json")
        ran = dlcmd(*put, exit_code=EXIT_PARTIAL)
        assert "the object store is full: " in ran.summary["error"]
        assert re.match(rf"[0-5] not stored at {re.escape(server.unix)}: ", ran.summary["error"])
        assert "until then; the same command continues when there is room" in ran.summary["error"]
        before = dlcmd("info", "--json", "dl://d").objects[0]["files"]
        assert 0 < before < 5
        ballast.unlink()
        dlcmd(*put)
        assert dlcmd("info", "--json", "dl://d").objects[0]["files"] == 5
        dlcmd("get", "-r", "dl://d/", "back")
        for number in range(5):
            assert (tmp_path / "back" / str(number)).read_bytes() == (
                tmp_path / "many" / str(number)
            ).read_bytes()


def test_compressed_files_are_the_same(dlcmd: Dlcmd, dataset: str, tmp_path: Path) -> None:
    for name in range(300):
        place = tmp_path / "texts" / f"{name}.txt"
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"record {name} of a text\n" * 200)
    put = ("put", "-r", "--compress", "zstd:5", "texts/", f"dl://{dataset}/", "--json")
    done = dlcmd(*put).summary
    assert 0 < done["compressed_bytes"] < done["stored_bytes"] / 5
    dlcmd("fsck", "--deep", f"dl://{dataset}")
    dlcmd("get", "-r", f"dl://{dataset}/", "back")
    assert compare_trees(os.fsencode(tmp_path / "texts"), os.fsencode(tmp_path / "back")).shown == []
    for options, what in (
        (("put", "-r", "--compress", "gzip", "texts/", f"dl://{dataset}/"), "write zstd or zstd:LEVEL"),
        (("sync", "--compress", "zstd", f"dl://{dataset}/", "back"), "--compress is for a dataset"),
        (
            ("put", "-r", "--encrypt", "--compress", "zstd", "texts/", "dl://secret-texts/"),
            "leave out --compress",
        ),
    ):
        refused = dlcmd(*options, exit_code=EXIT_USAGE)
        assert what in refused.stderr


def test_equal_files_are_stored_once_and_outlive_each_other(
    dlcmd: Dlcmd, dataset: str, tmp_path: Path
) -> None:
    place, content = f"dl://{dataset}/", os.urandom(300_000)
    for name in "a", "b/c", "b/other":
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_bytes(os.urandom(300_000) if name == "b/other" else content)
    put = ("put", "-r", "--dedup", "files/", place)
    assert "293 KiB saved, as files are equal" in dlcmd(*put).text
    assert "saved" not in dlcmd(*put).text, "nothing is read again"
    dlcmd("fsck", "--deep", place)
    dlcmd("rm", f"{place}a", f"{place}b/other")
    for _ in range(2):
        dlcmd("purge", "--grace", "0s", place)
    dlcmd("rebuild", place)
    dlcmd("fsck", "--deep", place)
    assert dlcmd("cat", f"{place}b/c").stdout == content
    again = dlcmd("sync", "--dedup", "--json", "files/", place).summary
    assert again["stored"] == 2 and again["shared_bytes"] == len(content)
    refused = dlcmd("sync", "--dedup", place, "back", exit_code=EXIT_USAGE)
    assert "--dedup is for a dataset" in refused.stderr
    refused = dlcmd("put", "-r", "--encrypt", "--dedup", "files/", "dl://sealed/", exit_code=EXIT_USAGE)
    assert "leave out --dedup" in refused.stderr


def test_bytes_that_the_dataset_has_are_not_stored_again(dlcmd: Dlcmd, dataset: str, tmp_path: Path) -> None:
    place, count = f"dl://{dataset}/", 7
    files = {f"v1/{number}": os.urandom(90_000) for number in range(count)} | {
        "v1/large": os.urandom(5 * MIB)
    }
    for name, content in files.items():
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "all" / name).write_bytes(content)
    dlcmd("put", "-r", "all/", place)
    before = dlcmd("info", "--json", place).objects[0]["chunks"]
    shutil.copytree(tmp_path / "all" / "v1", tmp_path / "all" / "v2")
    for number in range(5):
        shutil.copy(tmp_path / "all/v1/large", tmp_path / f"all/v2/large{number}")
    done = dlcmd("sync", "--dedup", "--json", "all/", place).summary
    assert done["stored_bytes"] == done["shared_bytes"] == sum(map(len, files.values())) + 25 * MIB
    subprocess.run(["tar", "cf", "v1.tar", "-C", "all", "v1"], cwd=tmp_path, check=True)
    subprocess.run(["tar", "cf", "v2.tar", "-C", "all", "v2"], cwd=tmp_path, check=True)
    for sources, name in ((("v1.tar",), "one"), (("v1.tar", "v2.tar"), "two")):
        done = dlcmd("import", "--dedup", "--json", *sources, f"{place}{name}/").summary
        assert done["stored_bytes"] == done["shared_bytes"] > 5 * MIB
    assert dlcmd("info", "--json", place).objects[0]["chunks"] - before < 30
    dlcmd("fsck", "--deep", place)
    dlcmd("rm", "-r", f"{place}v1", f"{place}two")
    for _ in range(3):
        dlcmd("purge", "--grace", "0s", place)
    dlcmd("fsck", "--deep", place)
    dlcmd("get", "-r", place, "back")
    for folder in "v2", "one/v1":
        for name, content in files.items():
            assert (tmp_path / "back" / folder / name[3:]).read_bytes() == content


def test_nothing_is_lost_where_others_delete_and_purge_what_is_referred_to(
    dlcmd: Dlcmd, dataset: str, tmp_path: Path
) -> None:
    """Real servers: one command refers to files again and again, while others delete and purge them."""
    place = f"dl://{dataset}/"
    for number in range(12):
        (tmp_path / "tree").mkdir(exist_ok=True)
        (tmp_path / f"tree/{number}").write_bytes(os.urandom(80_000 + number))
    dlcmd("put", "-r", "tree/", f"{place}0/")

    def delete(turn: int) -> None:
        dlcmd("rm", "-r", f"{place}{turn}")
        for _ in range(2):
            dlcmd("purge", "--grace", "0s", place)

    for turn in range(4):
        with ThreadPoolExecutor(2) as threads:
            deleted = threads.submit(delete, turn)
            stored = threads.submit(dlcmd, "put", "-r", "--dedup", "tree/", f"{place}{turn + 1}/")
            stored.result()
            deleted.result()
        dlcmd("fsck", "--deep", place)
    dlcmd("get", "-r", f"{place}4/", "back")
    assert compare_trees(os.fsencode(tmp_path / "tree"), os.fsencode(tmp_path / "back")).shown == []
