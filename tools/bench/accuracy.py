"""`python -m bench.accuracy`: does a network learn as well in chunk-wise order? Figure 13 of DIESEL, on digits.

The digits are stored twice in small chunks: class by class, which is the hard case (a chunk then has images of one
class only), and in mixed order. Networks learn from each through a mount, fully shuffled and in groups of several
sizes. Prints tables as Markdown, and draws the curves.
"""

import json
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import click

from bench.curves import draw
from bench.digits import Entries, by_class, mixed, store_digits, write_digits
from bench.homes import mounted, running_home
from bench.learning import Lesson
from bench.storing import Storing, storing_lines
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.randomness import measure

GROUPS = (1, 5, 15, 30, 0)


STORINGS: dict[str, Entries] = {
    "stored class by class": by_class,
    "stored in mixed order": mixed,
}


@click.command()
@click.option("--seeds", default=10, show_default=True, type=click.IntRange(min=2), help="Runs of each kind.")
@click.option("--epochs", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--figure", type=click.Path(path_type=Path), help="Draw the curves into this SVG file.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write all accuracies to this file."
)
def main(seeds: int, epochs: int, figure: Path | None, json_file: Path | None) -> None:
    """Compare how well networks learn in chunk-wise and in full shuffle, through a mount."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # cleans up
    with tempfile.TemporaryDirectory(prefix="dieselfs-accuracy-") as folder:
        source = Path(folder, "digits")
        write_digits(source)
        storings = [
            learn_from(title, entries, source, Path(folder, f"home-{number}"), seeds, epochs)
            for number, (title, entries) in enumerate(STORINGS.items())
        ]
    for storing in storings:
        print("", *storing_lines(storing), sep="\n", flush=True)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(storing) for storing in storings], indent=1) + "\n")
    if figure is not None:
        draw(storings, figure)


def learn_from(
    title: str,
    entries: Entries,
    source: Path,
    folder: Path,
    seeds: int,
    epochs: int,
) -> Storing:
    """Store the digits in this order, mount them, and train; the kinds of runs take turns."""
    runs: dict[int, list[list[float]]] = {group: [] for group in GROUPS}
    with running_home(folder) as home:
        with home.dataset(is_created=False) as data:
            store_digits(data, entries, source)
            layout = Layout.of(data.snapshot, b"train")
            repeats = {
                group: fmean(
                    measure(Plan(data.snapshot, seed, 0, group, layout=layout)).folder_repeats
                    for seed in range(seeds)
                )
                for group in GROUPS
            }
        for seed in range(seeds):
            with mounted(home, folder / "mount") as mount:
                lesson = Lesson.on(mount.folder)
                for group in GROUPS:
                    runs[group].append(lesson.learn(seed, group, epochs))
            print(f"{title}: {seed + 1} of {seeds} seeds", flush=True)
    return Storing(title, len(layout.counts), repeats, runs)


if __name__ == "__main__":
    main()
