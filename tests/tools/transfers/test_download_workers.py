"""Several processes write what one process writes, tell the same, and lose nothing when one of them ends."""

import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from dieselfs.errors import EXIT_INTERRUPTED, EXIT_PARTIAL, EXIT_UNAVAILABLE
from dieselfs_tools.transfers.comparison import compare_trees
from tests.support.dlcmd import CALLER, Dlcmd
from tests.support.trees import odd_tree
from tests.tools.transfers.test_upload_workers import CHUNK, random_tree

JOBS = ("1", "3")
FETCH = "dieselfs.transfer.download:TreeDownload._fetch"


def stored_tree(dlcmd: Dlcmd, dataset: str, *options: str) -> str:
    """A dataset with files of several chunks, folders and links, in chunks of 64 KiB."""
    random_tree(dlcmd.folder / "tree", 11)
    if not options:  # names in an encrypted dataset are shorter
        odd_tree(dlcmd.folder / "tree")
    dlcmd("put", "-r", "-q", *options, "tree/", f"dl://{dataset}/", *CHUNK)
    return dataset


def differences(dlcmd: Dlcmd, first: str, second: str, has_folder_times: bool = True) -> list[str]:
    """What differs between two folders, but for the time of the folders themselves, or of all in them."""
    top = dlcmd.folder / first
    shown = compare_trees(os.fsencode(top), os.fsencode(dlcmd.folder / second)).shown
    places = {".", *(str(place.relative_to(top)) for place in top.rglob("*") if place.is_dir())}
    left_out = {"."} if has_folder_times else places
    return [line for line in shown if not ("has time" in line and line.partition(":")[0] in left_out)]


def told(dlcmd: Dlcmd, *words: str, exit_code: int = 0) -> tuple[dict[str, Any], list[Any]]:
    """The summary of a command without its times and places, and its failures in any order."""
    ran = dlcmd(*words, "--json", exit_code=exit_code)
    left_out = ("seconds", "target", "image")
    failures = [line for line in ran.objects if line["type"] == "failure"]
    return {name: ran.summary[name] for name in ran.summary if name not in left_out}, sorted(
        failures, key=str
    )


def assert_same(
    dlcmd: Dlcmd, words: Sequence[str], exit_code: int = 0, has_folder_times: bool = True
) -> list[Any]:
    """Run a command twice with one process and with several, each to a folder of its own in place of `OUT`."""
    found = []
    for jobs in JOBS:
        named = [word.replace("OUT", f"out-{jobs}") for word in words]
        found.append([told(dlcmd, *named, "--jobs", jobs, exit_code=exit_code) for _ in range(2)])
    assert found[1] == found[0]
    assert differences(dlcmd, "out-1", "out-3", has_folder_times) == []
    return found[0]


@pytest.mark.parametrize("options", [(), ("--encrypt",)])
def test_a_get_of_all_kinds(dlcmd: Dlcmd, dataset: str, options: Sequence[str]) -> None:
    stored_tree(dlcmd, dataset, *options)
    first, second = assert_same(dlcmd, ["get", "-r", f"dl://{dataset}/", "OUT"])
    assert differences(dlcmd, "tree", "out-3") == []
    assert first[0]["skipped"] == 0 and second[0]["written_bytes"] == 0


def test_a_get_with_what_is_in_the_way(dlcmd: Dlcmd, dataset: str) -> None:
    stored_tree(dlcmd, dataset)
    large = next(
        place for place in sorted((dlcmd.folder / "tree").rglob("*.jpg")) if place.stat().st_size > 1e5
    )
    for jobs in JOBS:
        (dlcmd.folder / f"out-{jobs}" / large.relative_to(dlcmd.folder / "tree")).mkdir(parents=True)
    (first, failures), _ = assert_same(dlcmd, ["get", "-r", f"dl://{dataset}/", "OUT"], EXIT_PARTIAL)
    assert first["failed"] == len(failures) == 1
    assert failures[0]["reason"] == "a folder with this name exists"


def test_a_sync_to_a_folder(dlcmd: Dlcmd, dataset: str) -> None:
    stored_tree(dlcmd, dataset)
    for jobs in JOBS:
        random_tree(dlcmd.folder / f"out-{jobs}", 12)
    assert_same(dlcmd, ["sync", "--delete", f"dl://{dataset}/", "OUT/"], has_folder_times=False)
    assert differences(dlcmd, "tree", "out-3", has_folder_times=False) == []


def test_exports(dlcmd: Dlcmd, dataset: str) -> None:
    stored_tree(dlcmd, dataset)
    assert_same(dlcmd, ["export", "--format", "folder", f"dl://{dataset}/", "OUT"])
    for jobs in JOBS:
        dlcmd("export", f"dl://{dataset}/", f"{jobs}.erofs", "--jobs", jobs)
    images = [(dlcmd.folder / f"{jobs}.erofs").read_bytes() for jobs in JOBS]
    assert images[0] == images[1]


@pytest.mark.parametrize(
    ("signum", "process", "exit_code", "message"),
    [
        (
            signal.SIGINT,
            0,
            EXIT_INTERRUPTED,
            "dlcmd: interrupted; the same command, run again, continues",
        ),
        (
            signal.SIGKILL,
            CALLER,
            EXIT_UNAVAILABLE,
            "dlcmd: a process of the download has ended (SIGKILL); with --jobs 1 there is only one process",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["get -r", "sync"])
def test_an_interrupted_download_leaves_whole_files_and_continues(
    dlcmd: Dlcmd, dataset: str, verb: str, signum: signal.Signals, process: int, exit_code: int, message: str
) -> None:
    stored_tree(dlcmd, dataset)
    get = (*verb.split(), f"dl://{dataset}/", "out/", "--jobs", "2")
    done = dlcmd.struck(signum, process, FETCH, 3, *get)
    assert done.returncode == exit_code, done
    assert done.stderr.splitlines()[-1].startswith(message)
    written = [place for place in (dlcmd.folder / "out").rglob("*") if place.is_file()]
    for place in written:
        assert (
            place.read_bytes()
            == (dlcmd.folder / "tree" / place.relative_to(dlcmd.folder / "out")).read_bytes()
        )
    dlcmd(*get)
    assert differences(dlcmd, "tree", "out") == []


@pytest.mark.parametrize(
    ("target", "work"),
    [("out", FETCH), ("out.erofs", "dieselfs.transfer.image_export:ImageExport._write_chunk")],
)
def test_a_killed_worker_of_an_export_loses_nothing(
    dlcmd: Dlcmd, dataset: str, target: str, work: str
) -> None:
    stored_tree(dlcmd, dataset)
    format_name = "erofs" if target.endswith("erofs") else "folder"
    export = ("export", "--format", format_name, f"dl://{dataset}/", target, "--jobs", "2")
    killed = dlcmd.struck(signal.SIGKILL, CALLER, work, 2, *export)
    assert killed.returncode == EXIT_UNAVAILABLE, killed
    message = "dlcmd: a process of the export has ended (SIGKILL); with --jobs 1 there is only one process"
    assert killed.stderr.startswith(message) and killed.stderr.count("\n") == 1
    dlcmd(*export)
    if format_name == "folder":
        assert differences(dlcmd, "tree", "out") == []
    else:
        dlcmd("export", f"dl://{dataset}/", "whole.erofs", "--jobs", "1")
        assert {place.name for place in dlcmd.folder.iterdir()} == {"tree", "whole.erofs", target}
        assert (dlcmd.folder / target).read_bytes() == (dlcmd.folder / "whole.erofs").read_bytes()
