"""Reading every file once: through mounts and local file systems by one and by four processes, and inside a process.

docs/internals/performance.md has the method. Resident: everything is in the library's memory, or in the page cache. The
LMDB cursor reads the file sequentially. New processes find the chunks in memory of the server.
"""

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import (
    LARGE_FILE_BYTES,
    SMALL_FILE_BYTES,
    Forms,
    all_forms,
    can_drop_caches,
    drop_caches,
    filesystem_type,
    mounted,
    shuffled,
    squashfuse,
)
from bench.harness.readers import (
    Work,
    get_batches,
    lmdb_reader,
    open_lmdb,
    plain_reader,
    planned_reader,
    python_reader,
    read_together,
    shares_of,
)
from dieselfs.dataset import Dataset
from dieselfs.settings.table import KERNEL, PYFUSE3
from dieselfs_client.memory.room import PAGE_COPIES
from dieselfs_client.mount.drivers.choice import driver_class

READERS = (1, 4)
SEED, GROUP_CHUNKS = 1, 4
SOME_FILES = 5_000
"""Of slow sides, where all files would take minutes."""
BATCH_FILES = 256
UNPAGED_BYTES = 12_000_000
"""Of adjacent files, few enough for the daemon's evictable chunks."""
PLAN, RANDOM, FOUND = "mount, plan", "mount, random", "mount, random, after find"
THROUGH_PYFUSE3, SQUASHFUSE, TMPFS = "mount through pyfuse3", "squashfuse_ll", "tmpfs"
SLOW = (THROUGH_PYFUSE3, SQUASHFUSE)
GET, GET_MANY, VIEWS = "library, get", "library, get_many", "library, views"
LIBRARY_PLAN = "library, plan"
LMDB_GET, LMDB_CURSOR, TAR_PREAD = "py-lmdb, get", "py-lmdb, cursor", "indexed tar, pread"
LMDB_BATCHES = f"{LMDB_GET}, {BATCH_FILES} at a time"


def reading(folder: Path, scale: Scale) -> Generator[Trial]:
    rounds = scale.rounds
    for files, file_bytes in (
        (scale.small_files, SMALL_FILE_BYTES),
        (scale.large_files // 2, LARGE_FILE_BYTES),
    ):
        with all_forms(folder / str(file_bytes), files, file_bytes) as forms:
            if can_drop_caches():
                for readers in READERS:
                    yield _cold_trial(forms, readers, rounds)
                yield _cold_library_trial(forms, rounds)
            yield from _warm_trials(forms, rounds)
            yield from _resident_trials(forms, rounds)
            yield from _sharing_trials(forms, rounds)


def _title(forms: Forms, readers: int, what: str) -> str:
    return f"{forms.tree.title}, {what.format('1 reader' if readers == 1 else f'{readers} readers')}"


def _side(forms: Forms, name: str, files: int, run: Callable[[], Run]) -> Side:
    return Side(name, run, files, "files", files * forms.tree.file_bytes)


# -- files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to read, and the processes that serve it, by name. `is_ours`: a mount of dieselfs."""

    folder: Path
    processes: Mapping[str, Sequence[int]]
    is_ours: bool = False

    def seen(self) -> dict[str, float]:
        if not self.is_ours:
            return {}
        reads = json.loads((self.folder / ".dieselfs" / "stats").read_bytes())["reads"]
        waited = reads["waited_s"]
        return {
            "answered": reads["at_once"] + waited["count"],
            "waited": waited["count"],
            "stall s": waited["sum"],
        }


@dataclass(frozen=True, slots=True)
class Reading:
    """The work of all readers of a run: `paths`, or without them all files in the order of a plan."""

    forms: Forms
    readers: int
    paths: Sequence[str] | None
    reader: Callable[[Path, Sequence[str], int], Work] = plain_reader

    @classmethod
    def of(cls, forms: Forms, readers: int, name: str) -> "Reading":
        """Of the side `name`."""
        paths = shuffled(forms.tree.paths())[: SOME_FILES if name in SLOW else None]
        return cls(forms, readers, None if name == PLAN else paths)

    @property
    def files(self) -> int:
        return self.forms.tree.files if self.paths is None else len(self.paths)

    def run(self, place: Place, free_bytes: int = 0) -> Run:
        """A planned one reads another epoch each time."""
        if self.paths is None:
            plan = f"seed={SEED},epoch={next(_epochs)},group={GROUP_CHUNKS},world={self.readers}"
            plans = [f"{plan},rank={rank}" for rank in range(self.readers)]
            works = [
                partial(planned_reader, place.folder, each, self.forms.tree.file_bytes) for each in plans
            ]
        else:
            shares = shares_of(self.paths, self.readers)
            works = [partial(self.reader, place.folder, each, self.forms.tree.file_bytes) for each in shares]
        before = place.seen()
        run = read_together(works, self.files, place.processes, free_bytes)
        after = place.seen()
        return replace(run, seen={name: after[name] - before[name] for name in after})


_epochs = itertools.count()


def _cold_trial(forms: Forms, readers: int, rounds: int) -> Trial:
    def read_cold(name: str, reading: Reading) -> Run:
        with _place(forms, name) as place:
            drop_caches()
            if name == FOUND:  # lists all files first, as most training programs do
                subprocess.run(["find", place.folder], stdout=subprocess.DEVNULL, check=True)
            return reading.run(place, PAGE_COPIES * forms.tree.size_bytes)

    base = filesystem_type(forms.tree.folder)
    names = (base, PLAN, RANDOM, *([FOUND] if readers == 1 else []), *SLOW)
    readings = {name: Reading.of(forms, readers, name) for name in names}
    sides = [
        _side(forms, name, each.files, partial(read_cold, name, each)) for name, each in readings.items()
    ]
    return Trial(_title(forms, readers, "{}, cold"), sides, rounds, base)


def _warm_trials(forms: Forms, rounds: int) -> Generator[Trial]:
    """For each number of readers: everything in the page cache; then in the daemons only, as root."""
    base, random_files = filesystem_type(forms.tree.folder), shuffled(forms.tree.paths())
    with ExitStack() as stack:

        @cache
        def place_of(name: str) -> Place:
            return stack.enter_context(_place(forms, name))

        def read_again(name: str, reading: Reading, dropped: str = "") -> Run:
            """Read twice, as some kernels reclaim pages after about a minute, even with free memory."""
            for _ in range(2):
                if dropped:
                    drop_caches(dropped)
                run = reading.run(place_of(name))
            return run

        for readers in READERS:
            readings = {
                name: (name, Reading.of(forms, readers, name)) for name in (base, TMPFS, PLAN, RANDOM, *SLOW)
            }
            with_open = Reading(forms, readers, random_files[:SOME_FILES], python_reader)
            readings |= {f"{name}, Python's open()": (name, with_open) for name in (base, RANDOM)}
            sides = [
                _side(forms, name, way[1].files, partial(read_again, *way)) for name, way in readings.items()
            ]
            yield Trial(_title(forms, readers, "{}, warm"), sides, rounds, base)
        if can_drop_caches():
            together = shuffled(forms.tree.paths()[: UNPAGED_BYTES // forms.tree.file_bytes])
            for readers in READERS:
                run = partial(read_again, RANDOM, Reading(forms, readers, together), "1")
                what = "{}, in the daemon's memory, not in the page cache"
                side = _side(forms, f"{RANDOM} ({len(together):,} files)", len(together), run)
                yield Trial(_title(forms, readers, what), [side], rounds)


@contextmanager
def _place(forms: Forms, name: str) -> Iterator[Place]:
    """Where a side reads; a mount of dieselfs is new, and so is its server."""
    if name in (PLAN, RANDOM, FOUND, THROUGH_PYFUSE3):
        driver = PYFUSE3 if name == THROUGH_PYFUSE3 else KERNEL
        driver_class(driver)
        mountpoint = forms.folder / name.replace(",", "").replace(" ", "-")
        forms.home.stop_server()
        with mounted(forms.home, mountpoint, driver) as mount:
            yield Place(mountpoint, {"mount": [mount], "server": [forms.home.server_process()]}, True)
    elif name == SQUASHFUSE:
        with squashfuse(forms.image, forms.folder / name) as process:
            yield Place(forms.folder / name, {"squashfuse": [process]})
    else:
        yield Place(forms.in_memory if name == TMPFS else forms.tree.folder, {})


# -- inside a process -------------------------------------------------------------------------------------


def _cold_library_trial(forms: Forms, rounds: int) -> Trial:
    paths, free_bytes = shuffled(forms.tree.paths()), PAGE_COPIES * forms.tree.size_bytes
    with forms.home.dataset() as dataset:
        in_chunks = list(dataset.shuffle(SEED, 0, GROUP_CHUNKS))

    def read_cold(open_it: Callable[[Forms, Sequence[str]], Work], paths: Sequence[str]) -> Run:
        def reader() -> Work:
            work = open_it(forms, paths)
            drop_caches()
            return work

        return read_together([reader], len(paths), free_bytes=free_bytes)

    def library_cold(get: Callable[[Dataset, Sequence[str]], int], paths: Sequence[str]) -> Run:
        forms.home.stop_server()
        with forms.home.dataset() as dataset:

            def reader() -> Work:
                dataset.snapshot  # noqa: B018  # fetched before the clock runs
                drop_caches()
                return partial(get, dataset, paths)

            server = {"server": [forms.home.server_process()]}
            return read_together([reader], len(paths), server, free_bytes)

    def mount_cold(paths: Sequence[str]) -> Run:
        with _place(forms, PLAN) as place:
            drop_caches()
            return Reading(forms, 1, None).run(place, free_bytes)

    def library_planned(get: Callable[[Dataset, int], int]) -> Callable[[Sequence[str]], Run]:
        return lambda paths: library_cold(lambda dataset, paths: get(dataset, len(paths)), paths)

    some = paths[:SOME_FILES]
    ways: dict[str, tuple[Callable[[Sequence[str]], Run], Sequence[str]]] = {
        PLAN: (mount_cold, paths),
        f"{LIBRARY_PLAN}, get_many": (library_planned(_get_planned), paths),
        f"{LIBRARY_PLAN}, get": (library_planned(_get_ahead), paths),
        f"{GET}, chunk-wise": (partial(library_cold, _get), in_chunks),
        f"{GET_MANY}, chunk-wise": (partial(library_cold, _get_many), in_chunks),
        GET: (partial(library_cold, _get), some),
        TAR_PREAD: (partial(read_cold, _tar_work), some),
        LMDB_CURSOR: (partial(read_cold, _lmdb_cursor_work), paths),
        LMDB_GET: (partial(read_cold, _lmdb_work), some),
    }
    sides = [_side(forms, name, len(wanted), partial(run, wanted)) for name, (run, wanted) in ways.items()]
    return Trial(f"{forms.tree.title}, in the reader's process, cold", sides, rounds, LMDB_CURSOR)


def _resident_trials(forms: Forms, rounds: int) -> Generator[Trial]:
    paths = shuffled(forms.tree.paths())
    with forms.home.dataset(memory_bytes=2 * forms.tree.size_bytes) as dataset:
        for _ in range(2):  # places of files are remembered the second time
            _get_many(dataset, paths)
        works: dict[str, Callable[[Sequence[str]], Work]] = {
            GET: lambda share: partial(_get, dataset, share),
            GET_MANY: lambda share: partial(_get_many, dataset, share),
            VIEWS: lambda share: partial(get_batches, dataset.views, BATCH_FILES, share),
            LIBRARY_PLAN: lambda share: partial(_get_planned, dataset, len(share)),
            TAR_PREAD: partial(_tar_work, forms),
            LMDB_GET: partial(_lmdb_work, forms),
        }
        for readers in READERS:
            sides = []
            for name, work in works.items():
                each = [partial(work, share) for share in shares_of(paths, readers)]
                sides.append(_side(forms, name, len(paths), partial(read_together, each, len(paths))))
            title = _title(forms, readers, "in the reader's process, resident, {}")
            yield Trial(title, sides, rounds, TAR_PREAD)


def _sharing_trials(forms: Forms, rounds: int) -> Generator[Trial]:
    """What other processes have read: the first pass of processes that have mapped nothing yet."""
    paths = shuffled(forms.tree.paths())
    ways: dict[str, Callable[[Dataset, Sequence[str]], int]] = {
        GET: _get,
        GET_MANY: _get_many,
        VIEWS: lambda dataset, share: get_batches(dataset.views, BATCH_FILES, share),
    }

    def opened(way: Callable[[Dataset, Sequence[str]], int], share: Sequence[str]) -> Work:
        dataset = forms.home.dataset()
        dataset.snapshot  # noqa: B018  # fetched before the clock runs
        return partial(way, dataset, share)

    with forms.home.dataset() as dataset:  # its connection keeps the server, which has the chunks
        _get_many(dataset, paths)
        for readers in READERS:
            works = {name: partial(opened, way) for name, way in ways.items()}
            works[LMDB_GET] = partial(_lmdb_work, forms)
            works[LMDB_BATCHES] = partial(_lmdb_batches, forms)
            sides = []
            for name, work in works.items():
                each = [partial(work, share) for share in shares_of(paths, readers)]
                sides.append(_side(forms, name, len(paths), partial(read_together, each, len(paths))))
            yield Trial(_title(forms, readers, "in new processes, resident, {}"), sides, rounds, LMDB_GET)


def _get(dataset: Dataset, paths: Sequence[str]) -> int:
    get = dataset.get
    for path in paths:
        get(path)
    return len(paths)


def _get_many(dataset: Dataset, paths: Sequence[str]) -> int:
    return get_batches(dataset.get_many, BATCH_FILES, paths)


def _get_planned(dataset: Dataset, files: int) -> int:
    """The first `files` files of an epoch in batches, with the computation of its order."""
    return _get_many(dataset, dataset.plan(SEED, 0, GROUP_CHUNKS).share().paths[:files])


def _get_ahead(dataset: Dataset, files: int) -> int:
    """As `_get_planned`, one by one."""
    get = dataset.get
    for path in dataset.ahead(dataset.plan(SEED, 0, GROUP_CHUNKS).share().paths[:files]):
        get(path)
    return files


def _lmdb_work(forms: Forms, paths: Sequence[str]) -> Work:
    return lmdb_reader(forms.lmdb, paths)


def _lmdb_batches(forms: Forms, paths: Sequence[str]) -> Work:
    """Keeps the values of a batch, as `get_many` does."""
    keys, get = [os.fsencode(path) for path in paths], open_lmdb(forms.lmdb).get
    return partial(get_batches, lambda batch: list(map(get, batch)), BATCH_FILES, keys)


def _lmdb_cursor_work(forms: Forms, paths: Sequence[str]) -> Work:
    """All files, in the order of the database."""
    cursor = open_lmdb(forms.lmdb).cursor()
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
