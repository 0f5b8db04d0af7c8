"""Accuracy after training in chunk-wise order: Figure 13 of DIESEL, on scikit-learn's handwritten digits.

The digits are stored in small chunks: class by class, the hard case; in mixed order; and class by class, then repacked.
Networks are trained through a mount, fully shuffled and with several group sizes.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from bench.harness.agreement import Storing, storing_rows
from bench.harness.figures import Row, Scale
from bench.harness.forms import mounted, running_home
from bench.papers.digits import CHUNK_BYTES, Entries, Lesson, by_class, mixed, store_digits, write_digits
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.quality import measure
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.shuffle.strata import strata_of_classes

GROUPS = (1, 5, 15, 30, 0)
"""Chunks in a group; 0 shuffles fully."""
WAYS: Mapping[str, Entries] = {"stored class by class": by_class, "stored in mixed order": mixed}
REPACKED = "stored class by class, repacked"


def accuracy(folder: Path, scale: Scale) -> Generator[Iterable[Row]]:
    found = []
    ways = {**WAYS, REPACKED: by_class}
    wanted = {title: entries for title, entries in ways.items() if scale.wants(title)}
    for storing in storings(folder, scale, ways=wanted):
        found.append(storing)
        yield storing_rows(storing)
    if scale.figure is not None:
        from bench.papers.drawing import draw_accuracy

        draw_accuracy(found, scale.figure)


def storings(
    folder: Path, scale: Scale, groups: Sequence[int] = GROUPS, ways: Mapping[str, Entries] = WAYS
) -> Iterator[Storing]:
    """Store the digits in each way, and train on them with groups of these sizes."""
    source = folder / "digits"
    write_digits(source)
    for title, entries in ways.items():
        yield _learn_from(title, entries, source, folder / title.replace(" ", "-"), scale, groups)


def _learn_from(
    title: str, entries: Entries, source: Path, folder: Path, scale: Scale, groups: Sequence[int]
) -> Storing:
    """Store the digits in this order, mount them, and train; the kinds of runs take turns."""
    runs: dict[int, list[list[float]]] = {group: [] for group in groups}
    repeats, seeds = {}, range(scale.seeds)
    with running_home(folder) as home:
        with home.dataset(must_exist=False) as data:
            store_digits(data, entries, source)
            if title == REPACKED:
                strata = strata_of_classes(data.snapshot, "^train/([^/]+)/")
                asked = data.name, data.snapshot.generation, strata, 0, False
                data.client.repack(*asked, chunk_bytes=CHUNK_BYTES)
                data.refresh()
            layout = Layout.of(data.snapshot, b"train")
            for group in groups:
                specs = [PlanSpec(seed, 0, group, folder=layout.folder) for seed in seeds]
                plans = [Plan(data.snapshot, spec, layout) for spec in specs]
                repeats[group] = fmean(measure(plan).folder_repeats for plan in plans)
        for seed in seeds:
            with mounted(home, folder / "mount"):
                lesson = Lesson.on(folder / "mount")
                for group in groups:
                    runs[group].append(lesson.learn(seed, group, scale.epochs))
    return Storing(title, len(layout.counts), repeats, runs)
