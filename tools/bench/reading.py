"""Reading every file once: through mounts and local file systems by one and by four processes, and inside a process.

Cold: the kernel's caches dropped, and for dieselfs a new server and a new mount. Warm: everything was read before on
the same mount. In between: the kernel's pages dropped, the daemon's chunks kept. The random order is the same for all
sides; that of a plan is read from the mount while the clock runs. Several readers read a part each. `seen` is from the
mount's statistics: reads that the daemon answered, those that waited for bytes, and the sum of their waits.

Inside a process (library, LMDB, an indexed tar file), resident: everything is in the library's memory, or in the page
cache. The LMDB cursor reads the file sequentially.
"""

import itertools
import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.figures import Run, RunFailed, Scale, Side, Trial
from bench.forms import (
    LARGE_FILE_BYTES,
    SMALL_FILE_BYTES,
    Forms,
    all_forms,
    can_drop_caches,
    drop_caches,
    filesystem_type,
    lmdb_lack,
    shuffled,
    squashfuse,
    squashfuse_lack,
)
from bench.homes import mounted
from bench.readers import (
    Reader,
    Work,
    get_batches,
    lmdb_reader,
    plain_reader,
    planned_reader,
    python_reader,
    read_together,
    shares_of,
)
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError, MountError
from dieselfs.settings import KERNEL, PYFUSE3
from dieselfs_client.mount.drivers import driver_class

READERS = (1, 4)
COLD_ROUNDS_MAX = 3
"""A cold round has a long setup."""
SEED, GROUP_CHUNKS = 1, 4
SOME_FILES = 5_000
"""Of slow sides, where all files would take minutes."""
BATCH_FILES = 256
UNPAGED_BYTES = 12_000_000
"""Of adjacent files, few enough for the daemon's evictable chunks."""
WARM_S = 20.0
"""What was read earlier is read again before the clock runs: some kernels reclaim pages after about a minute, even with
free memory.
"""

PLAN, RANDOM, FOUND = "mount, plan", "mount, random", "mount, random, after find"
THROUGH_PYFUSE3, SQUASHFUSE = "mount through pyfuse3", "squashfuse_ll"
GET, GET_MANY = "library, get", "library, get_many"
LMDB_GET, LMDB_CURSOR, TAR_PREAD = "py-lmdb, get", "py-lmdb, cursor", "indexed tar, pread"


def reading(folder: Path, scale: Scale) -> Generator[Trial]:
    rounds, cold_rounds = scale.rounds, min(scale.rounds, COLD_ROUNDS_MAX)
    for files, file_bytes in (
        (scale.small_files, SMALL_FILE_BYTES),
        (scale.large_files // 2, LARGE_FILE_BYTES),
    ):
        with all_forms(folder / str(file_bytes), files, file_bytes) as forms:
            if can_drop_caches():
                for readers in READERS:
                    yield _cold_trial(forms, readers, cold_rounds)
                yield _cold_library_trial(forms, cold_rounds)
            yield from _warm_trials(forms, rounds)
            yield from _resident_trials(forms, rounds)


def _title(forms: Forms, readers: int, what: str) -> str:
    return f"{forms.tree.title}, {what.format('1 reader' if readers == 1 else f'{readers} readers')}"


def _side(forms: Forms, name: str, files: int, run: Callable[[], Run]) -> Side:
    name = f"{name} ({files:,} files)" if files < forms.tree.files else name
    return Side(name, run, files, "files", files * forms.tree.file_bytes)


# -- files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to read, and the processes that serve it, by name. `is_ours`: a mount of dieselfs."""

    folder: Path
    processes: Mapping[str, Sequence[int]]
    is_ours: bool = False


Opening = Callable[[], AbstractContextManager[Place]]
FileReader = Callable[[Path, Sequence[str], int], Work]


@dataclass(frozen=True, slots=True)
class Reading:
    """The work of all readers of a run, and its number of files."""

    run: Callable[[Place], Run]
    files: int


def _cold_trial(forms: Forms, readers: int, rounds: int) -> Trial:
    base, left_out = filesystem_type(forms.tree.folder), _lacks()
    all_files, mount = _in_random_order(forms, readers), partial(_new_mount, forms)
    ways: list[tuple[str, tuple[Opening, Reading, Callable[[Path], object]]]] = [
        (base, (partial(_folder, forms.tree.folder), all_files, str)),
        (PLAN, (mount, _in_planned_order(forms, readers), str)),
        (RANDOM, (mount, all_files, str)),
    ]
    if readers == 1:  # lists all files first, as most training programs do
        find = partial(subprocess.run, stdout=subprocess.DEVNULL, check=True)
        ways.append((FOUND, (mount, all_files, lambda folder: find(["find", folder]))))
    some = _in_random_order(forms, readers, SOME_FILES)
    ways += [
        (name, (each, some, str)) for name, each in _slow_openings(forms).items() if name not in left_out
    ]

    def read_cold(opening: Opening, reading: Reading, first: Callable[[Path], object]) -> Run:
        with opening() as place:
            drop_caches()
            first(place.folder)
            return reading.run(place)

    sides = [_side(forms, name, way[1].files, partial(read_cold, *way)) for name, way in ways]
    return Trial(_title(forms, readers, "{}, cold"), sides, rounds, base, left_out)


def _warm_trials(forms: Forms, rounds: int) -> Generator[Trial]:
    """For each number of readers: everything in the page cache; then in the daemons only, as root."""
    base, left_out = filesystem_type(forms.tree.folder), _lacks()
    openings: dict[str, Opening] = {
        base: partial(_folder, forms.tree.folder),
        "tmpfs": partial(_folder, forms.in_memory),
        PLAN: partial(_new_mount, forms, "planned"),
        RANDOM: partial(_new_mount, forms),
        **_slow_openings(forms),
    }
    places: dict[str, Place] = {}

    def reading_of(name: str, readers: int) -> Reading:
        if name == PLAN:
            return _in_planned_order(forms, readers)
        return _in_random_order(forms, readers, SOME_FILES if name in _slow_openings(forms) else None)

    with ExitStack() as stack:
        for name, opening in openings.items():
            if name not in left_out:
                try:
                    place = stack.enter_context(opening())
                    reading_of(name, 1).run(place)
                    places[name] = place
                except (RunFailed, DieselfsError, OSError) as error:
                    left_out[name] = f"it failed: {error}"
        for readers in READERS:
            readings = [(name, places[name], reading_of(name, readers)) for name in places]
            with_open = _in_random_order(forms, readers, SOME_FILES, python_reader)
            kept = [name for name in (base, RANDOM) if name in places]
            readings += [(f"{name}, Python's open()", places[name], with_open) for name in kept]
            sides = [
                _side(forms, name, reading.files, _KeptWarm(place, reading).run)
                for name, place, reading in readings
            ]
            yield Trial(_title(forms, readers, "{}, warm"), sides, rounds, base, left_out)
        if can_drop_caches() and RANDOM in places:
            together = forms.tree.paths()[: UNPAGED_BYTES // forms.tree.file_bytes]
            for readers in READERS:
                reading = _in_order(forms, readers, shuffled(together))
                side = _side(forms, RANDOM, reading.files, partial(_read_unpaged, places[RANDOM], reading))
                what = "{}, in the daemon's memory, not in the page cache"
                yield Trial(_title(forms, readers, what), [side], rounds)


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
    drop_caches("1")
    reading.run(place)  # the daemon caches the chunks
    drop_caches("1")
    return reading.run(place)


def _in_random_order(
    forms: Forms, readers: int, files: int | None = None, reader: FileReader = plain_reader
) -> Reading:
    """The first `files` (default: all) of the random order."""
    return _in_order(forms, readers, shuffled(forms.tree.paths())[:files], reader)


def _in_order(forms: Forms, readers: int, paths: Sequence[str], reader: FileReader = plain_reader) -> Reading:
    def run(place: Place) -> Run:
        shares = shares_of(paths, readers)
        works = [partial(reader, place.folder, share, forms.tree.file_bytes) for share in shares]
        return _watched(place, works, len(paths))

    return Reading(run, len(paths))


def _in_planned_order(forms: Forms, readers: int) -> Reading:
    """Each run reads another epoch."""
    epochs = itertools.count()

    def run(place: Place) -> Run:
        plan = f"seed={SEED},epoch={next(epochs)},group={GROUP_CHUNKS},world={readers}"
        plans = [f"{plan},rank={rank}" for rank in range(readers)]
        works = [partial(planned_reader, place.folder, each, forms.tree.file_bytes) for each in plans]
        return _watched(place, works, forms.tree.files)

    return Reading(run, forms.tree.files)


def _watched(place: Place, readers: Sequence[Reader], files: int) -> Run:
    before = _read_figures(place)
    run, after = read_together(readers, files, place.processes), _read_figures(place)
    return replace(run, seen={name: after[name] - before[name] for name in after})


def _read_figures(place: Place) -> dict[str, float]:
    if not place.is_ours:
        return {}
    reads = json.loads((place.folder / ".dieselfs" / "stats").read_bytes())["reads"]
    waited = reads["waited_s"]
    return {
        "answered": reads["at_once"] + waited["count"],
        "waited": waited["count"],
        "stall s": waited["sum"],
    }


@contextmanager
def _folder(folder: Path) -> Iterator[Place]:
    yield Place(folder, {})


@contextmanager
def _new_mount(forms: Forms, name: str = "mount", driver: str = KERNEL) -> Iterator[Place]:
    """A new server and a new mount."""
    forms.home.stop_server()
    with mounted(forms.home, forms.folder / name, driver) as mount:
        yield Place(forms.folder / name, {"mount": [mount], "server": [forms.home.server_process()]}, True)


@contextmanager
def _new_squashfuse(forms: Forms) -> Iterator[Place]:
    mountpoint = forms.folder / "squashfuse"
    with squashfuse(forms.image, mountpoint) as process:
        yield Place(mountpoint, {"squashfuse": [process]})


def _slow_openings(forms: Forms) -> dict[str, Opening]:
    through_pyfuse3 = partial(_new_mount, forms, PYFUSE3, PYFUSE3)
    return {THROUGH_PYFUSE3: through_pyfuse3, SQUASHFUSE: partial(_new_squashfuse, forms)}


def _lacks() -> dict[str, str]:
    """The sides whose programs are not installed, and what is missing."""
    lack = squashfuse_lack()
    lacks = {} if lack is None else {SQUASHFUSE: lack}
    try:
        driver_class(PYFUSE3)
    except MountError as error:
        lacks[THROUGH_PYFUSE3] = str(error)
    return lacks


# -- inside a process -------------------------------------------------------------------------------------


def _cold_library_trial(forms: Forms, rounds: int) -> Trial:
    paths = shuffled(forms.tree.paths())
    some, lack = paths[:SOME_FILES], lmdb_lack()
    with forms.home.dataset() as dataset:
        in_chunks = list(dataset.shuffle(SEED, 0, GROUP_CHUNKS))

    def read_cold(open_it: Callable[[], Work], files: int) -> Run:
        def reader() -> Work:
            work = open_it()
            drop_caches()
            return work

        return read_together([reader], files)

    def library_cold(get: Callable[[Dataset, Sequence[str]], int], paths: Sequence[str]) -> Run:
        forms.home.stop_server()
        with forms.home.dataset() as dataset:

            def reader() -> Work:
                dataset.snapshot  # noqa: B018  # fetched before the clock runs
                drop_caches()
                return partial(get, dataset, paths)

            return read_together([reader], len(paths), {"server": [forms.home.server_process()]})

    sides = [
        _side(forms, name, len(paths), partial(library_cold, get, paths))
        for name, get, paths in (
            (f"{GET}, chunk-wise", _get, in_chunks),
            (f"{GET_MANY}, chunk-wise", _get_many, in_chunks),
            (GET, _get, some),
        )
    ]
    openings = [(TAR_PREAD, partial(_tar_work, forms, some), len(some))]
    if lack is None:
        openings.append((LMDB_CURSOR, partial(_lmdb_cursor_work, forms), len(paths)))
        openings.append((LMDB_GET, partial(lmdb_reader, forms.lmdb, some), len(some)))
    sides += [_side(forms, name, files, partial(read_cold, work, files)) for name, work, files in openings]
    title, left_out = f"{forms.tree.title}, in the reader's process, cold", _lmdb_left_out()
    return Trial(title, sides, rounds, LMDB_CURSOR, left_out)


def _resident_trials(forms: Forms, rounds: int) -> Generator[Trial]:
    paths = shuffled(forms.tree.paths())
    with forms.home.dataset(memory_bytes=2 * forms.tree.size_bytes) as dataset:
        _get_many(dataset, paths)
        works: dict[str, Callable[[Sequence[str]], Work]] = {
            GET: lambda share: partial(_get, dataset, share),
            GET_MANY: lambda share: partial(_get_many, dataset, share),
            "library, views": lambda share: partial(_views, dataset, share),
            "library, plan": lambda share: partial(_get_planned, dataset, len(share)),
            TAR_PREAD: partial(_tar_work, forms),
        }
        if lmdb_lack() is None:
            works[LMDB_GET] = partial(lmdb_reader, forms.lmdb)
        for readers in READERS:
            sides = []
            for name, work in works.items():
                each = [partial(work, share) for share in shares_of(paths, readers)]
                sides.append(_side(forms, name, len(paths), partial(read_together, each, len(paths))))
            title = _title(forms, readers, "in the reader's process, resident, {}")
            yield Trial(title, sides, rounds, TAR_PREAD, _lmdb_left_out())


def _lmdb_left_out() -> dict[str, str]:
    lack = lmdb_lack()
    return {} if lack is None else {"py-lmdb": lack}


def _get(dataset: Dataset, paths: Sequence[str]) -> int:
    get = dataset.get
    for path in paths:
        get(path)
    return len(paths)


def _get_many(dataset: Dataset, paths: Sequence[str]) -> int:
    return get_batches(dataset.get_many, BATCH_FILES, paths)


def _views(dataset: Dataset, paths: Sequence[str]) -> int:
    """Without a copy, and without access to the bytes."""
    return get_batches(dataset.views, BATCH_FILES, paths)


def _get_planned(dataset: Dataset, files: int) -> int:
    """The first `files` files of an epoch in batches, with the computation of its order."""
    return _get_many(dataset, dataset.plan(SEED, 0, GROUP_CHUNKS).share().paths[:files])


def _lmdb_cursor_work(forms: Forms) -> Work:
    import lmdb

    cursor = lmdb.open(str(forms.lmdb), subdir=False, readonly=True, lock=False).begin().cursor()
    return lambda: sum(1 for _ in cursor)


def _tar_work(forms: Forms, paths: Sequence[str]) -> Work:
    index, archive = forms.tar_index, os.open(forms.tar, os.O_RDONLY)

    def read_all() -> int:
        pread = os.pread
        for path in paths:
            offset, size = index[path]
            pread(archive, size, offset)
        return len(paths)

    return read_all
