"""Pages of measurements have the tables of the files beside them, and say by rule what no figure of theirs supports."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.harness.figures import Run, Side, Trial, figures
from bench.harness.pages import KEPT, PageError, keep, objections, pages_of, tables
from bench.harness.report import row_fields, trial_fields
from bench.registry import BENCHMARKS

MACHINE = {
    "processors": "2 x a processor",
    "commit": "0123456789",
    "command": "python -m bench upload",
    "load before": "0.4 processes",
}
PAGE = """\
# Upload

Before.

<!-- python -m bench --pages upload -->
old
<!-- end -->

After.
"""


def run(duration_s: float, **machine: float) -> Run:
    beside = {"round_load": 0.5, "load_before": 0.5, "load_after": 1.5, "stolen_s": 0.0, **machine}
    return Run(duration_s, {"own": 1.5}, machine=beside)


def kept(
    rounds: int = 5, ours: Run | None = None, load: str = "0.4 processes", **machine: str
) -> dict[str, Any]:
    """The content of a file: a trial of two sides, and a table."""
    sides = [Side(name, lambda: Run(1.0), 1000, "files") for name in ("dieselfs", "cp -r")]
    trial = Trial("Upload", sides, rounds, base="cp -r")
    runs = {"dieselfs": [ours or run(1.0)] * rounds, "cp -r": [run(2.0 + number) for number in range(rounds)]}
    fields = trial_fields(trial, figures(trial, runs), {"rsync": "it is missing"})
    results = [fields, row_fields([{"view": "fuse", "MiB": (6.25, "{:.1f}")}])]
    return {
        "benchmark": "upload",
        "machine": {**MACHINE, "load before": load, **machine},
        "results": json.loads(json.dumps(results)),
    }


def test_the_pages_have_the_tables_of_the_files_beside_them() -> None:
    """After a change: `python -m bench --pages`."""
    assert {file.stem for file in KEPT.glob("*.json")} <= set(BENCHMARKS)
    assert [page.name for page, text in pages_of().items() if text != page.read_text(encoding="utf-8")] == []


def test_tables_have_medians_ranges_verdicts_and_the_conditions() -> None:
    assert tables(kept()).splitlines() == [
        "",
        "| run |  |",
        "| --- | --- |",
        "| processors | 2 x a processor |",
        "| commit | 0123456789 |",
        "| command | python -m bench upload |",
        "| load before | 0.4 processes |",
        "| load before a round | 0.5 to 0.5 |",
        "| load before a run | 0.5 to 0.5 |",
        "| load after a run | 1.5 to 1.5 |",
        "| taken by the host in a run | 0.0 to 0.0 processor s |",
        "",
        "| Upload | seconds (rounds) | a second | processor seconds | x cp -r (rounds) | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
        "| dieselfs | 1.00 (1.00 to 1.00) | 1,000 files | own 1.50 | 4.00 (2.00 to 6.00) | faster |",
        "| cp -r | 4.00 (2.00 to 6.00) | 250 files | own 1.50 |  |  |",
        "| rsync: left out, it is missing |  |  |  |  |  |",
        "",
        "| view | MiB |",
        "| --- | --- |",
        "| fuse | 6.2 |",
        "",
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (kept(command="python -m bench upload --share 0.1"), "part of the data"),
        (kept(commit="0123456789-dirty"), "the source was not committed"),
        (kept(load="1.2 processes"), "other work on the machine"),
        (kept(ours=run(1.0, round_load=1.6)), "other work before a round"),
        (kept(rounds=4), "4 rounds, of 5 that are needed"),
        (kept(ours=run(1.0, stolen_s=1.0)), "the host took processor time"),
    ],
)
def test_what_a_run_lacks_makes_it_a_trial(content: dict[str, Any], reason: str) -> None:
    assert list(objections(content)) == [reason]
    assert f"| **a trial, not to be cited** | {reason} |" in tables(content)
    assert "faster" not in tables(content)
    assert list(objections(kept())) == []


def test_new_tables_stand_between_the_comments_and_again_the_same(tmp_path: Path) -> None:
    page = tmp_path / "pages" / "upload.md"
    page.parent.mkdir()
    page.write_text(PAGE)
    content = kept()
    keep("upload", content["machine"], content["results"], tmp_path)
    (text,) = pages_of(kept=tmp_path, documents=tmp_path).values()
    assert text == PAGE.replace("old\n", tables(content))
    page.write_text(text)
    assert pages_of(["upload"], tmp_path, tmp_path) == {page: text}


def test_errors_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"listing\.json is missing: run the benchmark with --keep"):
        pages_of(["listing"], tmp_path, tmp_path)
    keep("upload", MACHINE, [], tmp_path)
    with pytest.raises(
        PageError, match=r"no page below .* has the lines <!-- python -m bench --pages upload -->"
    ):
        pages_of([], tmp_path, tmp_path)
