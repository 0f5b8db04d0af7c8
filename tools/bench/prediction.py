"""How near `dlcmd plan` is: epochs of files of sizes that `dlcmd bench` did not measure, beside what it predicts."""

from collections.abc import Generator
from functools import partial
from pathlib import Path

from bench.figures import Run, Scale, Side, Trial
from dieselfs.prediction import Job, Speeds, first_epoch, later_epoch
from dieselfs.settings import Settings
from dieselfs_tools.private_home import private_home
from dieselfs_tools.timing import FORMS, QUICK_FORMS, Form, MountTimer, run, store

ROUNDS_OF_SPEEDS = 3
OTHER_FORMS = (Form("of16", 10_000, 16 << 10), Form("of64", 4_000, 64 << 10))
OTHER_QUICK_FORMS = (Form("of16", 500, 16 << 10),)
MEASURED, PREDICTED = "measured", "predicted"


def prediction(folder: Path, scale: Scale) -> Generator[Trial]:
    forms, others = (QUICK_FORMS, OTHER_QUICK_FORMS) if scale.is_quick else (FORMS, OTHER_FORMS)
    speeds = run(folder, forms, 1 if scale.is_quick else ROUNDS_OF_SPEEDS, None, lambda _: None).speeds
    for form in others:
        with private_home(folder) as home:
            settings = Settings(home=home, cache=home / "cache")
            store(form, settings)
            timer = MountTimer(form, settings)
            for number, name in enumerate(("first", "later")):
                sides = [
                    Side(MEASURED, partial(_measure, timer, number), form.files, "files", form.size_bytes),
                    Side(
                        PREDICTED,
                        partial(_predict, form, speeds, number),
                        form.files,
                        "files",
                        form.size_bytes,
                    ),
                ]
                title = f"{form.files:,} files of {form.file_bytes >> 10} KiB, {name} epoch of a mount"
                yield Trial(title, sides, scale.rounds, MEASURED)


def _measure(timer: MountTimer, number: int) -> Run:
    return Run(timer(0)[number])


def _predict(form: Form, speeds: Speeds, number: int) -> Run:
    job = Job(1, 4 * form.size_bytes, speeds.fetch_bytes_s, speeds.fetch_bytes_s)
    epoch = (first_epoch, later_epoch)[number]
    return Run(epoch(form.files, form.size_bytes, job, speeds).seconds)
