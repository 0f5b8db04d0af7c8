"""Pages of measurements have the tables of the files beside them, and say by rule what no figure of theirs supports."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.harness.figures import Run, Side, Table, Trial, figures
from bench.harness.pages import KEPT, PageError, keep, objections, pages_of, tables
from bench.harness.report import row_fields, trial_fields
from bench.registry import BENCHMARKS

MACHINE = {
    "processors": "2 x a processor",
    "commit": "0123456789",
    "command": "python -m bench upload",
    "load before": "9.0 processes",
    "data": "all",
}
SESSION = 1
NOTE = (
    "*Commit 0123456789; 5 rounds; load before a round 0.5 to 0.5; taken by the host 0.0%.* "
    "`python -m bench upload`"
)
PAGE = """\
# Upload

Before.

<!-- python -m bench --pages upload -->
old
<!-- end -->

After.
"""


def run(duration_s: float, **machine: float) -> Run:
    beside = {"session": SESSION, "round_load": 0.5, "load_before": 0.5, "load_after": 1.5, "stolen_s": 0.0}
    return Run(duration_s, {"own": 1.5}, machine=beside | {"took_s": duration_s} | machine)


def upload(rounds: int = 5, ours: Run | None = None, title: str = "Upload") -> dict[str, Any]:
    """What is kept of a trial of two sides."""
    sides = [Side(name, lambda: Run(1.0), 1000, "files") for name in ("dieselfs", "cp -r")]
    trial = Trial(title, sides, rounds, base="cp -r")
    runs = {"dieselfs": [ours or run(1.0)] * rounds, "cp -r": [run(2.0 + number) for number in range(rounds)]}
    return trial_fields(trial, figures(trial, runs), {"rsync": "it is missing"})


def kept(*results: dict[str, Any], **machine: str) -> dict[str, Any]:
    """The content of a file: of these, or of a trial and of a table that was made of it."""
    made = Table([{"view": "fuse", "MiB": (6.25, "{:.1f}")}], [upload()])
    return {
        "benchmark": "upload",
        "sessions": {str(SESSION): MACHINE | machine},
        "results": json.loads(json.dumps(results or [upload(), row_fields(made, SESSION)])),
    }


def test_the_pages_have_the_tables_of_the_files_beside_them() -> None:
    """After a change: `python -m bench --pages`."""
    assert {file.stem for file in KEPT.glob("*.json")} <= set(BENCHMARKS)
    made = pages_of(has_trials=True)
    assert [page.name for page, text in made.items() if text != page.read_text(encoding="utf-8")] == []


def test_tables_have_medians_ranges_verdicts_and_the_conditions() -> None:
    assert tables(kept()).splitlines() == [
        "",
        "| run |  |",
        "| --- | --- |",
        "| processors | 2 x a processor |",
        "| data | all |",
        "",
        "| Upload | seconds (rounds) | a second | processor seconds | x cp -r (rounds) | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
        "| dieselfs | 1.00 (1.00 to 1.00) | 1,000 files | own 1.50 | 4.00 (2.00 to 6.00) | faster |",
        "| cp -r | 4.00 (2.00 to 6.00) | 250 files | own 1.50 |  |  |",
        "| rsync: left out, it is missing |  |  |  |  |  |",
        "",
        NOTE,
        "",
        "| view | MiB |",
        "| --- | --- |",
        "| fuse | 6.2 |",
        "",
        NOTE,
        "",
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (kept(upload(), command="python -m bench upload --share 0.09"), "less than 0.1 of the data"),
        (kept(upload(), command="python -m bench upload --quick"), "less than 0.1 of the data"),
        (kept(upload(), commit="0123456789-dirty"), "the source was not committed"),
        (kept(upload(ours=run(1.0, round_load=1.6))), "a load of 1.6 before a round"),
        (kept(upload(rounds=4)), "4 rounds, of 5 that are needed"),
        (kept(upload(ours=run(1.0, stolen_s=2.0))), "the host took 40% of the time"),
        (kept(row_fields(Table([{"view": "fuse"}]), SESSION)), "its rounds were not kept"),
        (kept(row_fields(Table([{"view": "fuse"}], seeds=4), SESSION)), "4 seeds, of 5 that are needed"),
        (kept(row_fields(Table([{"view": "fuse"}], [upload(2)]), SESSION)), "2 rounds, of 5 that are needed"),
    ],
)
def test_a_trial_is_marked_in_its_table_and_never_published_unmarked(
    content: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    assert list(objections(content["results"][0], content["sessions"])) == [reason]
    assert f" (**a trial, not to be cited**: {reason}) |" in tables(content)
    assert "faster" not in tables(content)
    (tmp_path / "upload.md").write_text(PAGE)
    keep("upload", content["sessions"], content["results"], tmp_path)
    with pytest.raises(PageError, match=f"is a trial, not to be cited: {reason}.*add --trials"):
        pages_of([], tmp_path, tmp_path)
    assert reason in pages_of([], tmp_path, tmp_path, has_trials=True)[tmp_path / "upload.md"]


@pytest.mark.parametrize(
    "content",
    [
        kept(upload()),
        kept(upload(), command="python -m bench upload --share 0.1"),
        kept(upload(ours=run(1.0, round_load=1.5))),
        kept(row_fields(Table([{"view": "fuse"}], seeds=5), SESSION)),
    ],
)
def test_a_run_may_be_cited(content: dict[str, Any]) -> None:
    assert list(objections(content["results"][0], content["sessions"])) == []


def test_a_trial_beside_a_paper_has_no_shape_either() -> None:
    row = {"Figure 9": "4 KB", "here": "4", "shape": "same"}
    assert "| same |" in tables(kept(row_fields(Table([row], [upload()]), SESSION)))
    assert "same" not in tables(kept(row_fields(Table([row], [upload(1)]), SESSION)))


def test_a_table_names_the_commits_of_its_rounds() -> None:
    """Of a run that was continued after a commit."""
    content = kept(upload())
    content["sessions"]["2"] = MACHINE | {"commit": "9876543210"}
    content["results"][0]["sides"][0]["runs"][1]["machine"]["session"] = 2
    assert "*Commits 0123456789, 9876543210; 5 rounds;" in tables(content)


def test_a_part_of_a_run_leaves_the_others_in_the_file(tmp_path: Path) -> None:
    sessions = kept()["sessions"]
    keep("upload", sessions, [upload(), upload(title="Listing")], tmp_path)
    other = {"2": MACHINE | {"commit": "9876543210"}}
    again = upload(ours=run(3.0, session=2), title="Listing")
    keep("upload", other, [again], tmp_path, is_part=True)
    content = json.loads((tmp_path / "upload.json").read_text())
    assert [result["title"] for result in content["results"]] == ["Upload", "Listing"]
    assert content["results"][1]["sides"][0]["runs"][0]["duration_s"] == 3.0
    assert content["sessions"] == sessions | other
    keep("upload", {"2": other["2"] | {"data": "quick"}}, [again], tmp_path, is_part=True)
    content = json.loads((tmp_path / "upload.json").read_text())
    assert [result["title"] for result in content["results"]] == ["Listing"], "of other data"


def test_new_tables_stand_between_the_comments_and_again_the_same(tmp_path: Path) -> None:
    page = tmp_path / "pages" / "upload.md"
    page.parent.mkdir()
    page.write_text(PAGE)
    content = kept()
    keep("upload", content["sessions"], content["results"], tmp_path)
    (text,) = pages_of(kept=tmp_path, documents=tmp_path).values()
    assert text == PAGE.replace("old\n", tables(content))
    page.write_text(text)
    assert pages_of(["upload"], tmp_path, tmp_path) == {page: text}


def test_errors_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"listing\.json is missing: run the benchmark with --keep"):
        pages_of(["listing"], tmp_path, tmp_path)
    keep("upload", {}, [], tmp_path)
    with pytest.raises(
        PageError, match=r"no page below .* has the lines <!-- python -m bench --pages upload -->"
    ):
        pages_of([], tmp_path, tmp_path)
