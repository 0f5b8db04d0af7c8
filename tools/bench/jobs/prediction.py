"""How near `dlcmd plan` is: epochs of files of sizes that `dlcmd bench` does not measure, and of jobs of several nodes.

Each round measures the numbers of `dlcmd bench` and what they predict, so that a change of the machine's load is not
taken for an error of the prediction. The ratio of a measurement is predicted : measured.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.jobs.predicted_jobs import CASES, QUICK_CASES, running_lab
from dieselfs.settings import Settings
from dieselfs_tools.cli.private_home import private_home
from dieselfs_tools.observe.prediction import Epoch, Job, Speeds, first_epoch, later_epoch
from dieselfs_tools.observe.timing import (
    FEW,
    FORMS,
    QUICK_FORMS,
    Form,
    MountTimer,
    Times,
    scratch_fetch_rate,
    speeds_of,
    store,
)

OTHER_FORMS = (
    Form("of8", 10_000, 8 << 10),
    Form("of16", 10_000, 16 << 10),
    Form("of32", 6_000, 32 << 10),
    Form("of64", 4_000, 64 << 10),
    Form("of256", 1_000, 256 << 10),
)
OTHER_QUICK_FORMS = (Form("of16", 500, 16 << 10),)
MEASURED, PREDICTED = "measured", "predicted"


@dataclass(frozen=True, slots=True)
class Pair:
    """An epoch of some files, as it was predicted and as it was measured in the same round."""

    title: str
    files: int
    size_bytes: int
    predicted: Epoch
    measured: Run


def prediction(folder: Path, scale: Scale) -> Generator[Trial]:
    """Raises Unsuitable where there can be no network, after the trials of one node."""
    forms, others = (QUICK_FORMS, OTHER_QUICK_FORMS) if scale.is_quick else (FORMS, OTHER_FORMS)
    with private_home(folder) as home:
        machine = Machine(Settings(home=home, cache=home / "cache"), (FEW, *forms), others)
        yield from trials(pair for number in range(scale.rounds) for pair in machine.round(number))
        with running_lab() as lab:
            cases = QUICK_CASES if scale.is_quick else CASES
            pairs = (
                Pair(title, lab.stored.files, lab.size_bytes, epoch, run)
                for number in range(scale.rounds)
                for title, epoch, run in lab.round(cases, machine.speeds(scale.rounds + number))
            )
            yield from trials(pairs)


class Machine:
    """Mounts of stored files, each timed with an empty page cache and again."""

    def __init__(self, settings: Settings, forms: Sequence[Form], others: Sequence[Form]) -> None:
        """`forms`: those that give the speeds."""
        self._settings, self._forms, self._others = settings, forms, others
        for form in (*forms, *others):
            store(form, settings)
        self._timers = {form: MountTimer(form, settings) for form in (*forms, *others)}

    def speeds(self, number: int) -> Speeds:
        return self._speeds({form: self._timers[form](number) for form in self._forms})

    def round(self, number: int) -> Iterator[Pair]:
        """Forms of both kinds in turn, in the other direction each time."""
        count = max(len(self._forms), len(self._others))
        turns = [
            form for at in range(count) for form in (*self._forms[at : at + 1], *self._others[at : at + 1])
        ]
        times = {form: self._timers[form](number) for form in (turns if number % 2 == 0 else turns[::-1])}
        speeds = self._speeds(times)
        for form in self._others:
            job = Job(1, form.size_bytes, speeds.fetch_bytes_s, speeds.fetch_bytes_s)
            for name, predict, time_s in zip(
                ("first", "later"), (first_epoch, later_epoch), times[form], strict=True
            ):
                title = f"{form.files:,} files of {form.file_bytes >> 10} KiB, {name} epoch of a mount"
                epoch = predict(form.files, form.size_bytes, job, speeds)
                yield Pair(title, form.files, form.size_bytes, epoch, Run(time_s))

    def _speeds(self, times: dict[Form, Times]) -> Speeds:
        rate = scratch_fetch_rate(self._forms[-1], self._settings)
        return speeds_of([(form, times[form]) for form in self._forms], rate)


def trials(pairs: Iterable[Pair]) -> Iterator[Trial]:
    """Of what was measured before, one for each title."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair.title, []).append(pair)
    for title, rounds in found.items():
        runs = {
            MEASURED: [pair.measured for pair in rounds],
            PREDICTED: [Run(pair.predicted.seconds, seen=_seen(pair.predicted)) for pair in rounds],
        }
        sides = [
            Side(name, partial(next, iter(each)), rounds[0].files, "files", rounds[0].size_bytes)
            for name, each in runs.items()
        ]
        yield Trial(title, sides, len(rounds), PREDICTED)


def _seen(epoch: Epoch) -> dict[str, float]:
    parts = {f"{name} s": time_s for name, time_s in epoch.parts_s.items() if time_s}
    traffic = {"server MB": epoch.from_servers_bytes / 1e6, "peer MB": epoch.from_peers_bytes / 1e6}
    return {**parts, **traffic}
