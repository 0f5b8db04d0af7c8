"""Files opened, read and closed by programs: on mounts of dieselfs, on local file systems, through squashfuse.

Cold: the kernel's caches dropped on every side, and for dieselfs a new server and a new mount, with it an empty daemon.
Warm: everything was read before on the same mount. In between: the kernel's pages dropped, but not what daemons hold.
The random order is the same for all sides; under a plan it is that of the plan, which readers take from the mount while
the clock runs. Several readers read a part each.

What is seen is what the mount's statistics say: reads that the daemon answered, because the page cache could not; those
of them that waited for bytes to come; and for how long, added up over all readers.
"""

import itertools
import json
import math
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.figures import Aim, Quantity, Run, RunFailed, Side, Trial
from bench.forms import Forms
from bench.homes import mounted
from bench.machine import filesystem_type
from bench.peers import squashfuse, squashfuse_lack
from bench.readers import Work, plain_reader, planned_reader, python_reader, read_together
from bench.trees import SMALL_FILE_BYTES, can_drop_caches, drop_caches, drop_pages, shuffled
from dieselfs.errors import DieselfsError, MountError
from dieselfs_client.mount.drivers import check_driver
from dieselfs_client.options import KERNEL, PYFUSE3

COLD_SMALL_AIM = Aim(Quantity.RATIO, 7)
COLD_LARGE_AIM = Aim(Quantity.RATIO, 1.4)
WARM_AIM = Aim(Quantity.RATIO, 0.9)
RESIDENT_AIM = Aim(Quantity.RATE, 15_000)

SEED = 1
GROUP_CHUNKS = 4
SOME_FILES = 5_000
"""Of sides that are so slow that all files would take minutes."""

UNPAGED_BYTES = 12_000_000
"""Of files that lie together, so few that the daemon holds their chunks; what it has pushed it lets go of soon."""

WARM_S = 20.0
"""What was read longer ago is read once more before the clock runs: some kernels take back pages that nobody touched
for about a minute, even with memory free.
"""

PLAN, RANDOM, FOUND = "mount, plan", "mount, random", "mount, random, after find"
THROUGH_PYFUSE3, SQUASHFUSE = "mount through pyfuse3", "squashfuse_ll"
_SLOW = frozenset((THROUGH_PYFUSE3, SQUASHFUSE))


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to read in, and the processes that serve it, by a name. `is_ours`: a mount of dieselfs."""

    folder: Path
    processes: Mapping[str, int]
    is_ours: bool = False


Opening = Callable[[], AbstractContextManager[Place]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What all readers of a run do together, and how many files that are."""

    run: Callable[[Place], Run]
    files: int


def cold_trial(forms: Forms, readers: int, rounds: int) -> Trial:
    everything, some = _in_random_order(forms, readers), _in_random_order(forms, readers, SOME_FILES)
    planned, mount = _in_planned_order(forms, readers), partial(_new_mount, forms)
    base = filesystem_type(forms.tree.folder)
    aim = COLD_SMALL_AIM if forms.tree.file_bytes == SMALL_FILE_BYTES else COLD_LARGE_AIM
    sides = [
        _side(forms, base, everything, partial(_read_cold, partial(_source, forms), everything)),
        _side(forms, PLAN, planned, partial(_read_cold, mount, planned), aim if readers == 1 else None),
        _side(forms, RANDOM, everything, partial(_read_cold, mount, everything)),
    ]
    if readers == 1:
        sides.append(_side(forms, FOUND, everything, partial(_read_cold, mount, everything, _find)))
    left_out = _lacks()
    sides += [
        _side(forms, name, some, partial(_read_cold, opening, some))
        for name, opening in _slow_openings(forms).items()
        if name not in left_out
    ]
    return Trial(f"{_title(forms, readers)}, cold", sides, rounds, base, left_out)


def warm_trials(forms: Forms, readers: Sequence[int], rounds: int) -> Generator[Trial]:
    """For each number of readers: everything in the page cache; then in the daemons only, if we may drop pages."""
    base = filesystem_type(forms.tree.folder)
    openings: dict[str, Opening] = {
        base: partial(_source, forms),
        "tmpfs": partial(_copy_in_memory, forms),
        PLAN: partial(_new_mount, forms, "planned"),
        RANDOM: partial(_new_mount, forms),
        **_slow_openings(forms),
    }
    places: dict[str, Place] = {}
    left_out = _lacks()
    with ExitStack() as stack:
        for name, opening in openings.items():
            if name not in left_out:
                try:
                    places[name] = stack.enter_context(opening())
                    _warm_reading(forms, name, 1).run(places[name])
                except (RunFailed, DieselfsError, OSError) as error:
                    left_out[name] = f"it failed: {error}"
                    places.pop(name, None)
        for count in readers:
            yield _warm_trial(forms, count, places, left_out, rounds)
        if can_drop_caches() and RANDOM in places:
            for count in readers:
                yield _unpaged_trial(forms, count, places[RANDOM], rounds)


def _warm_trial(
    forms: Forms, readers: int, places: Mapping[str, Place], left_out: Mapping[str, str], rounds: int
) -> Trial:
    base = filesystem_type(forms.tree.folder)
    sides = []
    for name, place in places.items():
        reading, aim = _warm_reading(forms, name, readers), WARM_AIM if name in (PLAN, RANDOM) else None
        sides.append(_side(forms, name, reading, _KeptWarm(place, reading).run, aim))
    with_open = _in_random_order(forms, readers, SOME_FILES, python_reader)
    for name in [name for name in (base, RANDOM) if name in places]:
        run = _KeptWarm(places[name], with_open).run
        sides.append(_side(forms, f"{name}, Python's open()", with_open, run))
    return Trial(f"{_title(forms, readers)}, warm", sides, rounds, base, left_out)


def _warm_reading(forms: Forms, side: str, readers: int) -> Reading:
    if side == PLAN:
        return _in_planned_order(forms, readers)
    return _in_random_order(forms, readers, SOME_FILES if side in _SLOW else None)


def _unpaged_trial(forms: Forms, readers: int, mount: Place, rounds: int) -> Trial:
    together = forms.tree.paths()[: UNPAGED_BYTES // forms.tree.file_bytes]
    reading = _in_order(forms, readers, shuffled(together))
    aim = RESIDENT_AIM if forms.tree.file_bytes == SMALL_FILE_BYTES else None
    sides = [_side(forms, RANDOM, reading, partial(_read_unpaged, mount, reading), aim)]
    return Trial(f"{_title(forms, readers)}, in the daemon's memory, not in the page cache", sides, rounds)


def _title(forms: Forms, readers: int) -> str:
    return f"{forms.title}, {readers} reader{'s' if readers > 1 else ''}"


def _side(forms: Forms, name: str, reading: Reading, run: Callable[[], Run], aim: Aim | None = None) -> Side:
    is_part = reading.files < forms.tree.files
    name = f"{name} ({reading.files:,} files)" if is_part else name
    return Side(name, run, reading.files, "files", reading.files * forms.tree.file_bytes, aim)


# -- how it is read --------------------------------------------------------------------------------------


Reader = Callable[[Path, Sequence[str], int], Work]


def _in_random_order(
    forms: Forms, readers: int, files: int | None = None, reader: Reader = plain_reader
) -> Reading:
    """The first `files` of the random order; all by default."""
    return _in_order(forms, readers, shuffled(forms.tree.paths())[:files], reader)


def _in_order(forms: Forms, readers: int, paths: Sequence[str], reader: Reader = plain_reader) -> Reading:
    shares = shares_of(paths, readers)

    def run(place: Place) -> Run:
        works = [partial(reader, place.folder, share, forms.tree.file_bytes) for share in shares]
        return _watched(place, partial(read_together, works, len(paths), place.processes))

    return Reading(run, len(paths))


def shares_of(paths: Sequence[str], readers: int) -> list[Sequence[str]]:
    return [paths[number::readers] for number in range(readers)]


def _in_planned_order(forms: Forms, readers: int) -> Reading:
    """Each run takes the plan of another epoch."""
    epochs = itertools.count()

    def run(place: Place) -> Run:
        plan = f"seed={SEED},epoch={next(epochs)},group={GROUP_CHUNKS},world={readers}"
        works = [
            partial(planned_reader, place.folder, f"{plan},rank={rank}", forms.tree.file_bytes)
            for rank in range(readers)
        ]
        return _watched(place, partial(read_together, works, forms.tree.files, place.processes))

    return Reading(run, forms.tree.files)


def _watched(place: Place, read: Callable[[], Run]) -> Run:
    """With what the daemon says of the reads that reached it: how many, and how long readers waited for bytes."""
    if not place.is_ours:
        return read()
    before, run, after = _read_figures(place.folder), read(), _read_figures(place.folder)
    return replace(run, seen={name: after[name] - before[name] for name in after})


def _read_figures(mountpoint: Path) -> dict[str, float]:
    reads = json.loads((mountpoint / ".dieselfs" / "stats").read_bytes())["reads"]
    return {
        "answered": reads["at_once"] + reads["waited"],
        "waited": reads["waited"],
        "stall s": reads["waited_s"],
    }


def _read_cold(opening: Opening, reading: Reading, first: Callable[[Path], None] = lambda _: None) -> Run:
    """`first` is done before the clock runs."""
    with opening() as place:
        drop_caches()
        first(place.folder)
        return reading.run(place)


class _KeptWarm:
    """A reading of what is in the page cache: read first if it was not read lately."""

    def __init__(self, place: Place, reading: Reading) -> None:
        self._place = place
        self._reading = reading
        self._read_s = -math.inf

    def run(self) -> Run:
        if time.monotonic() - self._read_s > WARM_S:
            self._reading.run(self._place)
        run = self._reading.run(self._place)
        self._read_s = time.monotonic()
        return run


def _read_unpaged(place: Place, reading: Reading) -> Run:
    drop_pages()
    reading.run(place)  # through the daemon, which holds the chunks from now on
    drop_pages()
    return reading.run(place)


def _find(folder: Path) -> None:
    """List all files, as most training programs do at their start."""
    subprocess.run(["find", folder], stdout=subprocess.DEVNULL, check=True)


# -- where it is read ------------------------------------------------------------------------------------


@contextmanager
def _source(forms: Forms) -> Iterator[Place]:
    yield Place(forms.tree.folder, {})


def _slow_openings(forms: Forms) -> dict[str, Opening]:
    return {
        THROUGH_PYFUSE3: partial(_new_mount, forms, PYFUSE3, PYFUSE3),
        SQUASHFUSE: partial(_new_squashfuse, forms),
    }


def _lacks() -> dict[str, str]:
    """The sides that need what is not installed, and why they cannot be run."""
    lacks = {}
    lack = squashfuse_lack()
    if lack is not None:
        lacks[SQUASHFUSE] = lack
    try:
        check_driver(PYFUSE3)
    except MountError as error:
        lacks[THROUGH_PYFUSE3] = str(error)
    return lacks


@contextmanager
def _copy_in_memory(forms: Forms) -> Iterator[Place]:
    yield Place(forms.in_memory, {})


@contextmanager
def _new_mount(forms: Forms, name: str = "mount", driver: str = KERNEL) -> Iterator[Place]:
    """A new server and a new mount."""
    forms.home.stop_server()
    mountpoint = forms.folder / name
    with mounted(forms.home, mountpoint, driver) as mount:
        yield Place(mountpoint, {"mount": mount.process, "server": forms.home.server_process()}, True)


@contextmanager
def _new_squashfuse(forms: Forms) -> Iterator[Place]:
    mountpoint = forms.folder / "squashfuse"
    with squashfuse(forms.image, mountpoint) as process:
        yield Place(mountpoint, {"squashfuse": process})
