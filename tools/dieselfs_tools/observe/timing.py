"""Times small and large files in a mount, in a plain folder, in a tar file and in LMDB, and chunks from the servers.

This module writes a scratch folder, starts a server and mounts, and reads the clock. Everything is removed at the end.
"""

import json
import os
import random
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from dieselfs.dataset import Dataset
from dieselfs.errors import MountError
from dieselfs.limits import MIB
from dieselfs.settings import Settings
from dieselfs.sources.server import ServerSource
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_tools.cli.private_home import private_home
from dieselfs_tools.observe.prediction import Cost, Point, Speeds

PREFETCH_REQUESTS = 8
"""At a time, as many as a server reads from its store."""
ROUNDS_S = 120.0
"""From the first written file on; no round begins later."""
FETCH_S, FETCH_BYTES = 5.0, 1024 * MIB
"""Chunks are fetched until one of these is reached."""
GROUP_CHUNKS = 4
FILES_OF_FOLDER = 1000
MOUNT_MEMORY_BYTES_MIN, LMDB_BYTES_MIN = 256 * MIB, 64 * MIB
MOUNT, PLAIN, TAR, LMDB = "dieselfs mount", "plain files", "tar, indexed", "LMDB"


@dataclass(frozen=True, slots=True)
class Form:
    """Files of one size."""

    name: str
    files: int
    file_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.files * self.file_bytes

    def paths(self) -> list[str]:
        return [f"{number // FILES_OF_FOLDER:04}/{number:07}" for number in range(self.files)]


FORMS = (Form("small", 10_000, 4 << 10), Form("large", 1_500, 128 << 10))
QUICK_FORMS = (Form("small", 1_000, 4 << 10), Form("large", 100, 128 << 10))
FEW = Form("few", 100, 4 << 10)
"""A form whose epochs are little more than the beginning of one; its files are as large as the small ones."""

Times = tuple[float, float]
"""Seconds of a first and of a later epoch."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of all files of a form: first with nothing in the page cache, later with everything."""

    form: Form
    reader: str
    first_s: float
    later_s: float


@dataclass(frozen=True, slots=True)
class SpeedTest:
    """`view`: of the mounts. `rounds`: how many there were. `seconds`: what all of it took."""

    timings: Sequence[Timing]
    fetch_bytes_s: float
    view: str
    rounds: int
    seconds: float
    few: Times
    """Seconds of FEW in the mount."""

    @property
    def speeds(self) -> Speeds:
        times = [(each.form, (each.first_s, each.later_s)) for each in self.timings if each.reader == MOUNT]
        return speeds_of([(FEW, self.few), *times], self.fetch_bytes_s)


def speeds_of(epochs: Sequence[tuple[Form, Times]], fetch_bytes_s: float) -> Speeds:
    """`epochs`: of FEW, small and large files."""

    def cost(which: int) -> Cost:
        few, small, large = (Point(times[which], form.files, form.size_bytes) for form, times in epochs)
        return Cost.of(few, small, large)

    return Speeds(cost(0), cost(1), fetch_bytes_s)


def run(
    folder: Path | None,
    forms: Sequence[Form],
    rounds: int,
    chunks: ServerSource | None,
    note: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> SpeedTest:
    """`folder`: on the file system that is compared; None: where temporary files are. `rounds`: fewer, if they take
    longer than ROUNDS_S. `chunks`: fetched from; None: the scratch store. `clock`: in seconds.

    Raises MountError if nothing can be mounted; DieselfsError, OSError.
    """
    began_s = clock()
    rate = None
    if chunks is not None:  # first, for servers that do not answer
        note("fetching chunks")
        rate = fetch_rate(chunks)
    with private_home(folder) as home:
        settings = Settings(home=home, cache=home / "cache")
        store(FEW, settings)
        readers: dict[tuple[Form, str], Reader] = {(FEW, MOUNT): MountTimer(FEW, settings)}
        for form in forms:
            note(f"writing {form.files:,} files of {form.file_bytes >> 10} KiB in each form")
            readers[form, MOUNT] = mount = MountTimer(form, settings)
            readers |= {(form, name): read for name, read in _stored(form, settings).items()}
        seen: dict[tuple[Form, str], list[Times]] = {each: [] for each in readers}
        # A round has all of them, so that a change of the machine's load is not taken for a cost of bytes.
        done = 0
        for number in rounds_in_time(rounds, began_s + ROUNDS_S, clock):
            note(f"reading, round {number + 1} of {rounds}")
            for each, read in readers.items():
                seen[each].append(read(number))
            done += 1
        if done < rounds:
            note(f"no more rounds: {ROUNDS_S:.0f} s have passed")
        medians = {each: _medians(times) for each, times in seen.items()}
        few = medians.pop((FEW, MOUNT))
        timings = [Timing(form, name, *times) for (form, name), times in medians.items()]
        if rate is None:
            note("fetching chunks")
            rate = scratch_fetch_rate(forms[-1], settings)
    return SpeedTest(timings, rate, mount.view, done, clock() - began_s, few)


def rounds_in_time(rounds: int, end_s: float, clock: Callable[[], float]) -> Iterator[int]:
    """The numbers of rounds: the first one, and the others that begin before the clock shows `end_s`."""
    for number in range(rounds):
        if number and clock() >= end_s:
            return
        yield number


def _medians(times: Sequence[Times]) -> Times:
    first_s, later_s = zip(*times, strict=True)
    return median(first_s), median(later_s)


def scratch_fetch_rate(form: Form, settings: Settings) -> float:
    """The `fetch_rate` of a stored form, whose chunks are dropped from the page cache before."""
    with Dataset(settings, form.name) as data:
        forget(settings.home / "chunks")
        return fetch_rate(data.chunks)


def fetch_rate(chunks: ServerSource, seconds: float = FETCH_S) -> float:
    """Bytes per second of whole chunks in random order, several requests at a time, verified."""
    lengths = chunks.snapshot.column("chunk_payload_lengths").tolist()
    order = [number for number, length in enumerate(lengths) if length]
    random.Random(1).shuffle(order)
    end_s = time.monotonic() + seconds

    def fetch(chunk: int) -> int:
        if time.monotonic() >= end_s:
            return 0
        return len(memoryview(chunks.fetch_chunk(chunk)).cast("B"))

    wanted, known = [], 0
    for chunk in order:
        if known >= FETCH_BYTES:
            break
        wanted.append(chunk)
        known += lengths[chunk]
    start_s = time.perf_counter()
    with ThreadPoolExecutor(PREFETCH_REQUESTS) as threads:
        try:
            fetched = sum(threads.map(fetch, wanted))
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return fetched / (time.perf_counter() - start_s)


def forget(place: Path) -> None:
    """Drop a file, or all files below a folder, from the page cache as far as they are on the disk; needs no rights."""
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    for path in files:
        with suppress(OSError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


Reader = Callable[[int], Times]
"""Reads all files with nothing in the page cache, and again; seconds of each. Called with the number of the round."""


@dataclass
class MountTimer:
    """Two epochs of a new mount, in the orders of plans; the time to read a plan counts."""

    form: Form
    settings: Settings
    view: str = ""

    def __call__(self, number: int) -> Times:
        home, form = self.settings.home, self.form
        mountpoint = home / f"mount-{form.name}"
        mountpoint.mkdir(exist_ok=True)
        memory_bytes = 4 * form.size_bytes + MOUNT_MEMORY_BYTES_MIN
        options = MountOptions(home=str(home), memory_bytes=memory_bytes, log_file=f"{mountpoint}.log")
        forget(home / "chunks")
        control.mount(form.name, mountpoint, options)
        try:
            self.view = json.loads((mountpoint / ".dieselfs" / "info").read_bytes())["view"]
            times = []
            for epoch in (2 * number, 2 * number + 1):
                start_s = time.perf_counter()
                read_plan(mountpoint, f"seed=1,epoch={epoch},group={GROUP_CHUNKS}")
                times.append(time.perf_counter() - start_s)
        finally:
            try:
                control.unmount(mountpoint)
            except MountError:  # interrupted in the middle of a read
                control.unmount(mountpoint, lazily=True)
        return times[0], times[1]


def store(form: Form, settings: Settings) -> None:
    """Store a form as a new dataset of its name."""
    with Dataset(settings, form.name, must_exist=False) as data:
        data.create()
        for path, content in _contents(form):
            data.put(path, content)


def _contents(form: Form) -> Iterator[tuple[str, bytes]]:
    """Distinct contents that no file system can compress."""
    content = random.Random(1).randbytes(form.file_bytes)
    for number, path in enumerate(form.paths()):
        yield path, number.to_bytes(8, "little") + content[8:]


def _stored(form: Form, settings: Settings) -> dict[str, Reader]:
    """Store a form as a dataset, and in every other way that is possible here; the readers of the others."""
    store(form, settings)
    plain = settings.home / f"{form.name}-files"
    for path, content in _contents(form):
        (plain / path).parent.mkdir(parents=True, exist_ok=True)
        (plain / path).write_bytes(content)
    archive = settings.home / f"{form.name}.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(plain, ".")
    readers: dict[str, Reader] = {
        PLAIN: partial(_time_files, form, plain),
        TAR: partial(_time_tar, form, archive),
    }
    with suppress(ImportError):
        import lmdb

        file = settings.home / f"{form.name}.lmdb"
        map_bytes = 4 * form.size_bytes + LMDB_BYTES_MIN
        with (
            closing(lmdb.open(str(file), subdir=False, map_size=map_bytes)) as database,
            database.begin(write=True) as change,
        ):
            for path, content in _contents(form):
                change.put(path.encode(), content)
        readers[LMDB] = partial(_time_lmdb, form, file)
    os.sync()  # the kernel keeps pages that it has not written
    return readers


def read_plan(mountpoint: Path, plan: str) -> int:
    """Read the list of a plan from a mount, then its files; their number."""
    paths = (mountpoint / ".dieselfs" / "shuffle" / plan).read_text().splitlines()
    _read_files(mountpoint, paths)
    return len(paths)


def _shuffled(form: Form, number: int) -> list[str]:
    paths = form.paths()
    random.Random(number).shuffle(paths)
    return paths


def _read_files(folder: Path, paths: Sequence[str]) -> None:
    for path in paths:
        with open(f"{folder}/{path}", "rb") as file:
            file.read()


def _time_files(form: Form, folder: Path, number: int) -> Times:
    forget(folder)
    return _twice(partial(_read_files, folder, _shuffled(form, number)))


def _time_tar(form: Form, archive: Path, number: int) -> Times:
    with tarfile.open(archive) as tar:
        places = {member.name.removeprefix("./"): member.offset_data for member in tar if member.isfile()}
    paths = _shuffled(form, number)
    with archive.open("rb", buffering=0) as file:
        forget(archive)

        def read() -> None:
            for path in paths:
                os.pread(file.fileno(), form.file_bytes, places[path])

        return _twice(read)


def _time_lmdb(form: Form, path: Path, number: int) -> Times:
    """Opened in each round: the kernel keeps pages of a file that is mapped."""
    import lmdb

    keys = [each.encode() for each in _shuffled(form, number)]
    forget(path)
    with closing(lmdb.open(str(path), subdir=False, readonly=True, lock=False)) as database:

        def read() -> None:
            with database.begin() as reader:
                for key in keys:
                    reader.get(key)

        return _twice(read)


def _twice(read: Callable[[], None]) -> Times:
    times = []
    for _ in range(2):
        start_s = time.perf_counter()
        read()
        times.append(time.perf_counter() - start_s)
    return times[0], times[1]
