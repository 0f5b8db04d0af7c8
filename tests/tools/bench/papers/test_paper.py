"""The experiments of the paper: every one has an entry, the right sides run, and ratios stand beside the paper's."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench.harness.agreement import Storing
from bench.harness.figures import QUICK, Run, RunFailed, Scale, Side, Trial, figures
from bench.harness.report import table_lines
from bench.papers import paper as module
from bench.papers.drawing import draw_paper
from bench.papers.other_numbers import OTHERS
from bench.papers.paper import chosen_sides, compared, groups_of, paper, rows_of, values_of, values_of_storing
from bench.papers.paper_numbers import (
    EXPERIMENTS,
    PER_PROCESSOR,
    TABLE_2_MB_PER_S,
    Compared,
    Comparison,
    Experiment,
    Measure,
    Ratio,
)
from bench.registry import BENCHMARKS, ONLY_IF_NAMED

PUT = Measure("upload", "of 4,096 bytes", "dieselfs")
COPIED = PUT._replace(side="")
FASTER = Comparison("4 KB", 366.7, PUT, COPIED)
LOWER = Comparison("lowest", 0.5, Measure("failover", "", "killed", "lowest"), COPIED)
EXPERIMENT = Experiment("Figure 9, section 6.2", "files written", "one process", (FASTER, LOWER))


def upload(names: tuple[str, ...] = ("dieselfs", "other", "cp -r"), size: str = "4,096") -> Trial:
    sides = [Side(name, lambda: Run(1.0), 1000, "files", 4_096_000) for name in names]
    return Trial(f"Upload of 1,000 files of {size} bytes", sides, 1, base="cp -r")


def same(ratio: float) -> Ratio:
    """Of a single round."""
    return Ratio(ratio, ratio, ratio)


def test_every_figure_of_the_list_has_an_entry() -> None:
    names = [experiment.where.partition(",")[0] for experiment in EXPERIMENTS]
    assert names == ["Table 2", "Figure 6", *(f"Figure {number}" for number in range(9, 16))]
    assert all(re.search(r", section \d\.\d$", experiment.where) for experiment in EXPERIMENTS)
    assert all(experiment.differs and experiment.comparisons for experiment in EXPERIMENTS)


def test_papers_have_no_row_twice() -> None:
    for experiments in (EXPERIMENTS, OTHERS):
        names = [(each.where, row.what) for each in experiments for row in each.comparisons]
        assert len({*names}) == len(names)


def test_every_measure_belongs_to_a_benchmark_that_can_be_run_alone() -> None:
    for name in module.benchmarks_of((*EXPERIMENTS, *OTHERS)):
        assert name in module.COMPUTED or (name in BENCHMARKS and name not in ONLY_IF_NAMED)


def test_only_what_depends_on_nothing_but_seeds_needs_no_quiet_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that also has rounds of a trial needs one."""
    accuracy = Measure("accuracy", "", "G = 15", "accuracy")
    seeded = Experiment("Figure 13", "accuracy", "", (Comparison("G = 15", 1.0, accuracy, accuracy),))
    timed = Experiment("Figure 14", "time", "", (Comparison("upload", None, PUT, PUT._replace(side="")),))
    monkeypatch.setattr(module, "EXPERIMENTS", (seeded, timed))
    values = values_of_storing(Storing("mixed", 40, {}, {15: [[0.9]]}))
    monkeypatch.setattr(module, "COMPUTED", {"accuracy": lambda *_: iter([values])})
    monkeypatch.setattr("bench.storage.upload.upload", lambda *_: (each for each in [upload()]))
    first, second = paper(tmp_path, QUICK)
    assert (first.seeds, len(first.trials)) == (QUICK.rounds, 0)
    assert (second.seeds, len(second.trials)) == (0, 1)


def test_the_bandwidth_of_the_paper_rises_with_the_size_of_a_read() -> None:
    assert all(less < more for less, more in pairwise(TABLE_2_MB_PER_S.values()))


def test_only_the_sides_that_are_compared_run() -> None:
    names = ("dieselfs", "cp -r, then sync")
    assert [side.name for side in chosen_sides("upload", upload((*names, "other")), EXPERIMENTS).sides] == [
        *names
    ]
    assert not chosen_sides("upload", upload(size="7"), EXPERIMENTS).sides
    assert not chosen_sides("reading", upload(), EXPERIMENTS).sides


def test_ratios_are_quotients_of_the_sides_values() -> None:
    trial = upload()
    found = figures(trial, {"dieselfs": [Run(0.5)], "cp -r": [Run(2.0)]})
    killed = figures(
        lost := Trial("Until 90%", [Side("killed", lambda: Run(1.0), 1, "")], 1),
        {"killed": [Run(1.0, seen={"lowest": 250.0})]},
    )
    measured = values_of("upload", trial, found) | values_of("failover", lost, killed)
    assert compared(EXPERIMENT, measured) == [
        Compared("4 KB", 366.7, same(4.0)),
        Compared("lowest", 0.5, same(0.5)),
    ]


def test_processor_seconds_of_both_sides_stand_beside_what_needs_more_processors() -> None:
    trial = upload()
    many = EXPERIMENT._replace(comparisons=(FASTER._replace(processors=100_000),))
    runs = {"dieselfs": [Run(0.5, {"own": 1.0, "server": 2.0})], "cp -r": [Run(2.0, {"own": 1.5})]}
    measured = values_of("upload", trial, figures(trial, runs))
    (found,) = compared(many, measured)
    assert found == Compared("4 KB", 366.7, same(4.0), "3 : 1.5", 100_000)
    per_processor = FASTER._replace(
        ours=FASTER.ours._replace(value=PER_PROCESSOR), base=COPIED._replace(value=PER_PROCESSOR)
    )
    (found,) = compared(EXPERIMENT._replace(comparisons=(per_processor,)), measured)
    assert found.here == pytest.approx(same(0.5))


def test_the_range_of_a_ratio_is_that_of_any_two_rounds() -> None:
    runs = {"dieselfs": [Run(0.5), Run(0.4), Run(1.0)], "cp -r": [Run(2.0), Run(4.0), Run(3.0)]}
    measured = values_of("upload", trial := upload(), figures(trial, runs))
    assert compared(EXPERIMENT, measured)[0].here == pytest.approx(Ratio(6.0, 2.0, 10.0))


def test_only_the_group_sizes_that_are_compared_are_trained() -> None:
    assert groups_of(EXPERIMENTS) == [0, 15, 30]


def test_the_last_of_several_trials_counts() -> None:
    small, large = upload(), replace(upload(), title="Upload of 9,000 files of 4,096 bytes")
    runs = {"dieselfs": [Run(1.0)], "cp -r": [Run(1.0)]}
    faster = {"dieselfs": [Run(0.1)], "cp -r": [Run(1.0)]}
    measured = values_of("upload", small, figures(small, runs))
    measured |= values_of("upload", large, figures(large, faster))
    assert compared(EXPERIMENT, measured)[0].here == pytest.approx(same(10))


def test_accuracies_are_those_of_the_last_epochs() -> None:
    storing = Storing(
        "stored in mixed order", 40, {}, {15: [[0.0, *[0.9] * 5], [0.0, *[0.7] * 5]], 0: [[0.8] * 6]}
    )
    values = values_of_storing(storing)
    assert values["accuracy", "stored in mixed order", "G = 15"] == {"accuracy": pytest.approx([0.9, 0.7])}
    (figure,) = [each for each in EXPERIMENTS if each.where.startswith("Figure 13")]
    assert compared(figure, values)[0].here == pytest.approx(Ratio(1.0, 0.875, 1.125))


def test_a_table_shows_both_ratios_whether_they_point_the_same_way_and_what_differs() -> None:
    found = [
        Compared("4 KB", 366.7, Ratio(4.0, 2.5, 5.0)),
        Compared("list", 1.0, same(0.5)),
        Compared("servers", None, same(2.0), "3.1 : 1.5", 6),
    ]
    assert list(table_lines(rows_of(EXPERIMENT, found, {}))) == [
        "| Figure 9, section 6.2: files written | paper | here | rounds | here : paper | processor s | shape |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| 4 KB | 367 | 4 | 2.5 to 5 | 0.0109 |  | same |",
        "| list | 1 | 0.5 |  | 0.5 |  | other |",
        "| servers | not printed | 2 |  |  | 3.1 : 1.5 | undecided: needs 6 processors |",
        "| *differs:* one process |  |  |  |  |  |  |",
    ]


def test_a_share_has_no_base_and_must_be_alike() -> None:
    """A share below 1 is not slower: a half where the paper has 0.3 is another result."""
    hits = LOWER._replace(what="hits", paper=0.3, base=None)
    measured: module.Values = {("failover", "", "killed"): {"lowest": [0.6, 0.5, 0.2]}}
    experiment = EXPERIMENT._replace(comparisons=(hits, hits._replace(paper=0.55)))
    found = compared(experiment, measured)
    assert found[0].here == Ratio(0.5, 0.2, 0.6)
    assert [row["shape"] for row in rows_of(experiment, found, {})] == ["other", "same", ""]
    assert module.benchmarks_of([experiment]) == ["failover"]


REASONS = {("failover", ""): "failover: not root", ("reading", "lmdb"): "reading, lmdb: of another figure"}


def test_what_was_not_measured_says_why() -> None:
    *_, row, last = rows_of(EXPERIMENT, compared(EXPERIMENT, {}), REASONS)
    assert row["here"] == "not measured"
    assert next(iter(last.values())) == "*differs:* one process; not measured: failover: not root"


def test_tables_come_out_of_the_benchmarks_and_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two benchmarks one cannot be run; the other runs in a folder that is removed."""
    folders = []

    def uploads(folder: Path, _: Scale) -> Iterator[Trial]:
        folders.append(folder)
        assert folder.is_dir()
        yield upload()

    def nothing(_: Path, scale: Scale) -> Iterator[Trial]:
        assert scale.figure is None, "they draw nothing themselves"
        raise RunFailed("there is no network")
        yield

    monkeypatch.setattr(module, "EXPERIMENTS", (EXPERIMENT,))
    monkeypatch.setattr("bench.storage.upload.upload", uploads)
    monkeypatch.setattr("bench.jobs.failover.failover", nothing)
    (table,) = paper(tmp_path, QUICK)
    rows = list(table.rows)
    assert [row["here"] for row in rows] == ["1", "not measured", ""]
    assert "failover: there is no network" in next(iter(rows[-1].values()))
    assert not folders[0].exists()
    draw_paper([{"rows": rows}], drawing := tmp_path / "paper.svg")
    assert "Figure 9, section 6.2: files written" in drawing.read_text()


def test_a_picture_has_marks_for_numbers_and_none_for_words(tmp_path: Path) -> None:
    def marks(**cells: str) -> int:
        """Paths in the colour of what was measured here."""
        row = {"Figure 9": "4 KB", "paper": "1,234", "here": "not measured", "rounds": ""} | cells
        draw_paper([{"rows": [row, row | {"Figure 9": "*differs:* all"}]}], tmp_path / "paper.svg")
        return (tmp_path / "paper.svg").read_text().count("c0392b")

    assert marks() < marks(here="1,500") == marks(here="0.5", rounds="0.1 to 2")
