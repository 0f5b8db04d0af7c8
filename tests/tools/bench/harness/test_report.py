import json

from bench.harness.figures import Run, Side, Trial
from bench.harness.figures import figures as figures_of
from bench.harness.report import read_trial, table_lines, trial_fields, trial_lines


def side(name: str) -> Side:
    return Side(name, lambda: Run(1.0), 30_000, "files", 120_000_000)


TRIAL = Trial("Upload", [side("dieselfs"), side("cp -r")], rounds=1, base="cp -r")
FIGURES = figures_of(TRIAL, {"dieselfs": [Run(2.0, {"own": 1.5})], "cp -r": [Run(1.0)]})


def test_a_table_has_a_line_for_each_side_and_no_empty_columns() -> None:
    assert trial_lines(TRIAL, FIGURES, {}) == [
        "Upload      median s         per s  MB/s  x cp -r  processor s",
        "  dieselfs      2.00  15,000 files    60     0.50     own 1.50",
        "  cp -r         1.00  30,000 files   120     1.00",
    ]
    alone = Trial("Listing", [side("ls -R")], rounds=2)
    assert trial_lines(alone, figures_of(alone, {"ls -R": [Run(0.02), Run(0.01)]}), {}) == [
        "Listing  median s  min - max s            per s   MB/s",
        "  ls -R     0.015  0.01 - 0.02  2,000,000 files  8,000",
    ]


def test_sides_that_were_not_run_stand_below_the_table_with_the_reason() -> None:
    left_out = {"squashfuse_ll": "there is no squashfuse_ll"}
    assert trial_lines(TRIAL, FIGURES, left_out) == [
        *trial_lines(TRIAL, FIGURES, {}),
        "  squashfuse_ll: left out, there is no squashfuse_ll",
    ]
    assert trial_fields(TRIAL, FIGURES, left_out)["left_out"] == left_out


def test_what_was_seen_has_a_column() -> None:
    trial = Trial("Reading", [side("mount")], rounds=1)
    heading, line = trial_lines(trial, figures_of(trial, {"mount": [Run(2.0, seen={"failed reads": 0})]}), {})
    assert heading.split("  ")[-1].strip() == "seen"
    assert line.endswith("failed reads 0")


def test_a_side_that_reads_some_of_the_files_says_how_many() -> None:
    some = Side("get", lambda: Run(1.0), 5_000, "files")
    trial = Trial("Reading", [side("mount"), some], rounds=1)
    lines = trial_lines(trial, figures_of(trial, {"mount": [Run(2.0)], "get": [Run(1.0)]}), {})
    assert [line.split("  ")[1] for line in lines[1:]] == ["mount", "get (5,000 files)"]


def test_json_has_every_run() -> None:
    fields = json.loads(json.dumps(trial_fields(TRIAL, FIGURES, {})))
    assert [side["runs"] for side in fields["sides"]] == [
        [{"duration_s": 2.0, "parts": {"own": 1.5}}],
        [{"duration_s": 1.0}],
    ]
    _, figures, left_out = read_trial(fields)
    assert [figure.ratio for figure in figures] == [0.5, 1.0]
    assert left_out == {}


def test_a_table_is_markdown_with_a_format_for_each_column() -> None:
    rows = iter([{"nodes": 1024, "how": "killed", "took": (0.25, "{:.1f} s")}])
    assert list(table_lines(rows)) == [
        "| nodes | how | took |",
        "| --- | --- | --- |",
        "| 1,024 | killed | 0.2 s |",
    ]
