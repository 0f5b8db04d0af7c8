"""dlcmd bisect: a command is run with some files of the steps left out, until those that it fails with are known."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

import dieselfs
from dieselfs.errors import EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from dieselfs.settings.table import EMBEDDED
from dieselfs_tools.bisection.search import runs_for
from tests.support.dlcmd import Dlcmd, wait_until

FILES, BATCH = 60, 8
STEPS = ("-q", "--seed", "1", "--epoch", "2", "--batch", str(BATCH), "--step", "2-4")


@pytest.fixture
def many(dlcmd: Dlcmd, dataset: str) -> list[str]:
    """The files of the steps, in their order, of a dataset of 60."""
    root = dlcmd.folder / "many"
    root.mkdir()
    for number in range(FILES):
        (root / f"{number:02}").write_bytes(b"x")
    dlcmd("put", "-rq", "many/", f"dl://{dataset}/")
    with dieselfs.connect(dataset, server=EMBEDDED, home=dlcmd.home) as data:
        return list(map(os.fspath, data.plan(1, 2).share().paths))[2 * BATCH : 5 * BATCH]


def fails_with(*files: str) -> list[str]:
    """A command that ends with 1 if all of these are among the files to read."""
    found = " && ".join(f'grep -qx {file} "$DIESELFS_BISECT_FILES"' for file in files)
    return ["--", "sh", "-c", f'cat "$DIESELFS_BISECT_FILES"; if {found}; then exit 1; fi']


def test_the_bad_files_are_found_and_the_runs_are_logged(dlcmd: Dlcmd, dataset: str, many: list[str]) -> None:
    for file in (many[0], many[13], many[-1]):
        ran = dlcmd("bisect", dataset, *STEPS, "--into", f"of-{file}", *fails_with(file))
        assert ran.text.split() == [file]
    both = fails_with(*many[9:11])[-1]
    command = ("sh", "-c", f'grep -qx {many[3]} "$DIESELFS_BISECT_FILES" && exit 7; {both}')
    told = dlcmd("bisect", dataset, *STEPS, "--json", "--", *command)
    causes: dict[int, list[str]] = {}
    for one in told.objects:
        if one["type"] == "cause":
            causes.setdefault(one["cause"], []).append(one["path"])
            assert one["is_decided"]
    assert sorted(causes.values(), key=len) == [[many[3]], many[9:11]]
    runs = [one for one in told.objects if one["type"] == "run"]
    assert told.summary["runs"] == len(runs) <= runs_for(24, 3)
    head, *lines = map(json.loads, (dlcmd.folder / "bisect/runs.jsonl").read_text().splitlines())
    assert head["command"] == list(command) and [{"type": "run", **line} for line in lines] == runs
    assert (dlcmd.folder / "bisect/001.out").read_text().split() == []  # it ended before it printed
    shown = dlcmd("bisect", dataset, *STEPS[1:], "--", *command)
    assert {*shown.lines[:3]} == {f"  {many[3]}", f"& {many[9]}", f"& {many[10]}"}
    assert shown.lines[3].startswith(f"3 of 24 files, in {len(runs)} runs")  # of the log: none was repeated
    assert shown.stderr.startswith("24 files; one bad file takes 9 runs at most, and 23 are made at most;")
    wrong = dlcmd("bisect", dataset, *STEPS, *fails_with(many[0]), exit_code=EXIT_USAGE)
    assert "has the runs of another bisect" in wrong.stderr


def test_a_metric_decides_and_ends_a_bad_run(dlcmd: Dlcmd, dataset: str, many: list[str]) -> None:
    loss = f'grep -qx {many[7]} "$DIESELFS_BISECT_FILES" && {{ printf "loss nan\\r"; sleep 1000; }}'
    command = ("sh", "-c", f"echo step 1 loss 0.5; {loss}; echo loss 0.25")
    told = dlcmd(
        "bisect", dataset, *STEPS, "--metric", "loss (\\S+)", "--above", "3", "--json", "--", *command
    )
    assert [one["path"] for one in told.objects if one["type"] == "cause"] == [many[7]]
    runs = [one for one in told.objects if one["type"] == "run"]
    assert {(one["verdict"], one["metric"], one["returned"]) for one in runs} == {
        ("bad", None, None),
        ("good", 0.25, 0),
    }
    for expression in ("no such", "loss"):  # one that matches nothing, and one that matches no number
        words = ["--metric", expression, "--above", "3", "--into", expression, "--", "echo", "loss 1"]
        assert "--metric" in dlcmd("bisect", dataset, *STEPS, *words, exit_code=EXIT_USAGE).stderr


def test_runs_without_a_result_leave_several_files(dlcmd: Dlcmd, dataset: str, many: list[str]) -> None:
    count = 'n=$(wc -l < "$DIESELFS_BISECT_FILES"); [ $n -gt 9 ] && [ $n -lt 13 ] && exit 125;'
    command = ["--", "sh", "-c", f"{count} {fails_with(many[10])[-1]}"]
    ran = dlcmd("bisect", dataset, *STEPS, *command, exit_code=2)
    assert ran.lines == [f"? {file}" for file in many[9:13]]
    slow = ["--timeout", "100ms", "--into", "slow", "--", "sleep", "1000"]
    assert "is unknown, not bad" in dlcmd("bisect", dataset, *STEPS, *slow, exit_code=EXIT_USAGE).stderr
    few = dlcmd(
        "bisect",
        *(dataset, *STEPS, "--runs", "4", "--into", "few", *fails_with(many[10])),
        exit_code=EXIT_PARTIAL,
    )
    assert few.stderr.splitlines()[-1] == (
        "dlcmd: unfinished: 4 runs are made; the same command with a larger --runs continues"
    )
    assert few.lines == [f"? {file}" for file in many[6:12]]
    assert dlcmd("bisect", dataset, *STEPS, "--into", "few", *fails_with(many[10])).lines[0].split() == [
        many[10]
    ]


def test_an_interrupted_bisect_continues(dlcmd: Dlcmd, dataset: str, many: list[str]) -> None:
    """Also after a kill, which may cut the last line of the log; no process of the command is left."""
    begun, paused = dlcmd.folder / "begun", dlcmd.folder / "paused"
    waits = f"if [ -e {paused} ]; then sleep 1000 & echo $! > {begun}.new; mv {begun}.new {begun}; wait; fi"
    command = ["--", "sh", "-c", f'{waits}; ! grep -qx {many[5]} "$DIESELFS_BISECT_FILES"']
    log = dlcmd.folder / "bisect/runs.jsonl"
    for signum in (signal.SIGINT, signal.SIGKILL):
        paused.touch()
        process = dlcmd.start("bisect", dataset, *STEPS, *command)
        try:
            wait_until(begun.exists)
            process.send_signal(signum)
            assert process.wait(60) == (EXIT_INTERRUPTED if signum == signal.SIGINT else -signal.SIGKILL)
        finally:
            process.kill()
        child = Path("/proc", begun.read_text().strip())
        wait_until(partial(lambda place: not place.exists(), child))
        begun.unlink()
        paused.unlink()
        dlcmd("bisect", dataset, *STEPS, "--runs", "3", *command, exit_code=EXIT_PARTIAL)
        with log.open("a") as file:
            file.write('{"run": 4, "left_')
    assert dlcmd("bisect", dataset, *STEPS, *command).lines[0].split() == [many[5]]
    assert len(log.read_text().splitlines()) <= 1 + runs_for(24)


def test_what_cannot_be_searched(dlcmd: Dlcmd, dataset: str, many: list[str]) -> None:
    for words, message in (
        (["--", "true"], "it has not repeated the spike"),
        (["--", "false"], "the cause is elsewhere"),
        (["--", "sh", "-c", "kill -9 $$"], "signal SIGKILL, which is no result"),
        (["--", "sh", "-c", "exit 126"], "exit code 126"),
        (["--above", "1", "--", "true"], "need --metric"),
        (["--metric", "x", "--", "true"], "needs --above or --below"),
        (["--metric", "x", "--above", "nan", "--", "true"], "--above nan"),
        (["--metric", "(", "--above", "1", "--", "true"], "no regular expression"),
        (["--step", "8", "--", "true"], "there is no step 8"),
        (["--into", "many/00/below", "--", "true"], "give another --into"),
    ):
        ran = dlcmd("bisect", dataset, *STEPS, "--into", f"of-{message[:5]}", *words, exit_code=EXIT_USAGE)
        assert message in ran.stderr.splitlines()[-1]
    assert "--batch is missing" in dlcmd("bisect", dataset, "--step", "1", "--", "true", exit_code=1).stderr
    dlcmd("bisect", "none", *STEPS, "--", "true", exit_code=EXIT_NOT_FOUND)
    dlcmd("bisect", dataset, *STEPS, "--", "no-such-command", exit_code=127)
    planned = dlcmd("bisect", dataset, *STEPS, "-n", "--json", "--", "true")
    assert planned.summary["files"] == 24 and planned.summary["runs_max"] == runs_for(24, 3)
    assert not (dlcmd.folder / "bisect").exists()
