"""The faults that `dlcmd chaos` rehearses, each in a scratch home, and readers that verify every byte meanwhile. This
module starts and kills processes and threads, mounts, and changes stored files.
"""

import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import dieselfs
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError, InvalidInput, StorageFull, Unavailable
from dieselfs.limits import MIB
from dieselfs.settings.table import EMBEDDED
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.mounting import unmount
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import SupervisorStatus, processes_serving, supervision_of
from dieselfs_tools.cli.private_home import private_home, stop_server

READERS_EACH = 2
PATIENCE_S = 40.0
"""Longer than the longest read, which ends within 30 s."""
FAILURES_KEPT = 5
_POLL_S = 0.01


def content_of(name: str, length_bytes: int) -> bytes:
    """The content of the file with a name, by which a reader knows what is right."""
    return random.Random(name).randbytes(length_bytes)


def read_and_drop(path: Path) -> bytes:
    """The content of a file, whose pages are then dropped, so that the next read asks the daemon. Raises OSError."""
    with path.open("rb", 0) as file:
        content = file.read()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return content


@dataclass(slots=True)
class Seen:
    """What readers saw: reads that ended, how many of them failed or gave wrong bytes, and the longest, in seconds."""

    reads: int = 0
    failed: int = 0
    wrong: int = 0
    worst_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Seen") -> None:
        self.reads += other.reads
        self.failed += other.failed
        self.wrong += other.wrong
        self.worst_s = max(self.worst_s, other.worst_s)
        self.failures = (self.failures + other.failures)[:FAILURES_KEPT]


class _Reader:
    """A thread that reads files of one mount in random order. It alone changes `seen`, but for `begin`."""

    def __init__(self, place: Path, contents: Mapping[str, bytes], seed: int, stop: threading.Event) -> None:
        self._place, self._contents, self._stop = place, contents, stop
        self._choice = random.Random(seed)
        self._names = sorted(contents)
        self.seen = Seen()
        self.since_s = time.monotonic()  # the begin of the read in progress
        self.thread = threading.Thread(target=self._run, name=f"reader {place}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            name = self._choice.choice(self._names)
            self.since_s = time.monotonic()
            single = Seen(reads=1)
            try:
                single.wrong = int(read_and_drop(self._place / name) != self._contents[name])
                if single.wrong:
                    single.failures = [f"{name}: wrong bytes"]
            except OSError as error:
                single.failed = 1
                single.failures = [f"{name}: {error.strerror}"]
            single.worst_s = time.monotonic() - self.since_s
            self.seen.add(single)


class Readers:
    """The readers that `reading` starts."""

    def __init__(self, readers: Sequence[_Reader]) -> None:
        self._readers = readers

    def begin(self) -> None:
        """Count from now on. A read in progress counts where it ends."""
        for reader in self._readers:
            reader.seen = Seen()

    def seen(self) -> Seen:
        """All together so far. A read in progress counts with the time that it has taken."""
        total, now_s = Seen(), time.monotonic()
        for reader in self._readers:
            total.add(reader.seen)
            total.worst_s = max(total.worst_s, now_s - reader.since_s)
        return total

    def wait_for_reads(self, reads: int) -> Seen:
        """Until each reader has ended this many reads since `begin`. Raises Unavailable after PATIENCE_S."""
        wait_for(lambda: all(reader.seen.reads >= reads for reader in self._readers), f"{reads} reads")
        return self.seen()


@contextmanager
def reading(places: Sequence[Path], contents: Mapping[str, bytes]) -> Iterator[Readers]:
    """READERS_EACH readers on each mount until the end of the block; each has read once."""
    stop = threading.Event()
    readers = [
        _Reader(place, contents, number, stop)
        for number, place in enumerate(place for place in places for _ in range(READERS_EACH))
    ]
    try:
        found = Readers(readers)
        found.wait_for_reads(1)
        yield found
    finally:
        stop.set()
        for reader in readers:
            reader.thread.join(PATIENCE_S)


class TooLate(Unavailable):
    """What was waited for has not happened in time."""


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> float:
    """Poll until the condition holds; returns how long it took. Raises TooLate after the timeout."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > timeout_s:
            raise TooLate(f"not within {timeout_s:g} s: {what}")
        time.sleep(_POLL_S)
    return time.monotonic() - began_s


DATASET = "rehearsal"
FILES, FILE_BYTES = 384, 64 << 10
"""24 MB, in six chunks."""
MEMORY_BYTES = 24 * MIB
NODES = 3
READS = 150
"""How often each reader reads after the fault."""
DISK_MIB = 96
KILLS, KILL_EVERY_S = 20, 0.1
_NO_RESENDS = "; this kernel sends no request again (Linux 6.9), so open files fail"


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a fault did. `remedy`: what let the readers continue. `is_as_promised`: whether they saw what the
    documentation says.
    """

    fault: str
    seen: Seen
    remedy: str
    is_as_promised: bool


class Scratch:
    """A home with one dataset, and its mounts."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self._stack = home, stack
        self.contents = {f"{number:03}.bin": content_of(f"{number}", FILE_BYTES) for number in range(FILES)}

    def store(self, names: Mapping[str, bytes] | None = None) -> None:
        """Raises what the library raises."""
        with self.connect() as data:
            for name, content in (names or self.contents).items():
                data.put(name, content)
            data.flush()

    def connect(self) -> Dataset:
        return dieselfs.connect(DATASET, server=EMBEDDED, home=self.home, job="", create=True)

    def mount(self, number: int = 0, nodes: int = 0) -> Path:
        """A mount; with `nodes`, as one node of a job of this many."""
        place = self.home / f"mount-{number}"
        place.mkdir()
        self._stack.callback(_clear, place)
        options = MountOptions(
            server=EMBEDDED,
            home=str(self.home),
            memory_bytes=MEMORY_BYTES,
            log_file=str(self.home / "log" / f"mount-{number}.log"),
        )
        if nodes:
            options = replace(
                options,
                job="rehearsal",
                job_nodes=nodes,
                job_node=f"node-{number}",
                job_rank=number,
                job_host="127.0.0.1",
                job_secret=str(self.home / "job-secret"),
            )
        control.mount(DATASET, place, options)
        return place

    def is_readable(self, place: Path) -> bool:
        """Whether each file of a mount has its content."""
        with suppress(OSError):
            return all(read_and_drop(place / name) == content for name, content in self.contents.items())
        return False

    def mount_job(self) -> list[Path]:
        """They wait for each other."""
        secret = self.home / "job-secret"
        secret.touch(0o600)
        secret.write_text(os.urandom(32).hex())
        with ThreadPoolExecutor(NODES) as threads:
            return list(threads.map(lambda number: self.mount(number, NODES), range(NODES)))


@contextmanager
def scratch() -> Iterator[Scratch]:
    """With the files of the dataset. At the end nothing of it is left: no mount, no process, no file."""
    with private_home() as home, ExitStack() as stack:
        here = Scratch(home, stack)
        here.store()
        yield here


def _clear(place: Path) -> None:
    """Unmount, and kill what serves it."""

    def are_gone() -> bool:
        processes = processes_serving(str(place))
        for process in processes:
            _send(process, signal.SIGKILL)
        return not processes

    wait_for(are_gone, f"the processes of {place} end")
    while mount_at(str(place)) is not None:
        unmount(str(place), lazily=True)


def _send(process: int, number: signal.Signals) -> None:
    if process:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _supervision(place: Path) -> SupervisorStatus:
    status = supervision_of(str(place))
    if status is None or not status.daemon:
        raise Unavailable(f"{place}: its daemon is not there")
    return status


def lost_node() -> Rehearsed:
    """One of three nodes of a job answers no more, as after a power failure: its connections stay open."""
    with scratch() as here:
        *others, lost = here.mount_job()
        with reading(others, here.contents) as readers:
            readers.wait_for_reads(READS // 3)
            status = _supervision(lost)
            readers.begin()
            for process in (status.supervisor, status.daemon):
                _send(process, signal.SIGSTOP)
            took_s = wait_for(lambda: _is_avoided(others), "the others avoid the lost node")
            seen = readers.wait_for_reads(READS)
        remedy = f"the others avoided the node after {took_s:.1f} s, and got its chunks from the server"
        return Rehearsed("lost-node", seen, remedy, not seen.failed and not seen.wrong)


def _is_avoided(places: Sequence[Path]) -> bool:
    """Whether each of these nodes suspects another one, or has it no longer in its list."""
    jobs = [control.job_of(str(place)) for place in places]
    return all(
        job is not None and job.get("members") and (job.get("suspected") or len(job["members"]) < NODES)
        for job in jobs
    )


def killed_daemon() -> Rehearsed:
    """The daemon of a mount is killed."""
    with scratch() as here:
        place = here.mount()
        with reading([place], here.contents) as readers:
            status = _supervision(place)
            readers.begin()
            _send(status.daemon, signal.SIGKILL)

            def is_replaced() -> bool:
                now = supervision_of(str(place))
                return now is not None and now.restarts > status.restarts and now.is_served

            took_s = wait_for(is_replaced, "another daemon serves the mount")
            seen = readers.wait_for_reads(READS)
        remedy = f"the supervisor started another daemon within {took_s:.1f} s"
        if not status.resends:
            remedy += _NO_RESENDS
        return Rehearsed(
            "killed-daemon", seen, remedy, not seen.wrong and (not seen.failed or not status.resends)
        )


def killed_mount() -> Rehearsed:
    """Any process of a mount is killed, one after another, whatever state the others are in."""
    with scratch() as here:
        place, choice, killed = here.mount(), random.Random(KILLS), 0
        resends = _supervision(place).resends
        with reading([place], here.contents) as readers:
            readers.begin()
            for _ in range(KILLS):
                time.sleep(KILL_EVERY_S)
                if processes := processes_serving(str(place)):
                    _send(choice.choice(processes), signal.SIGKILL)
                    killed += 1
            seen = readers.wait_for_reads(READS)
        remedy = f"{killed} processes were killed in {KILLS * KILL_EVERY_S:g} s, and the others replaced each"
        if not resends:
            remedy += _NO_RESENDS
        return Rehearsed("killed-mount", seen, remedy, not seen.wrong and (not seen.failed or not resends))


def full_disk() -> Rehearsed:
    """The disk of the store is full while a program stores files."""
    with private_home() as outer, ExitStack() as stack:
        disk = outer / "disk"
        disk.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "dieselfs-chaos", str(disk)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InvalidInput(f"needs root, to mount a small disk: {done.stderr.strip()}")
        unmount = ["umount", "--lazy", str(disk)]
        stack.callback(subprocess.run, unmount, capture_output=True, check=False)
        home = disk / "home"
        home.mkdir()
        stack.callback(stop_server, home)
        here = Scratch(home, stack)
        here.store()
        place = here.mount()
        more = {f"more-{number}": content_of(f"more-{number}", MIB) for number in range(DISK_MIB)}
        with reading([place], here.contents) as readers:
            readers.begin()
            refusal = ""
            try:
                here.store(more)
            except StorageFull as error:
                refusal = str(error)
            seen = readers.wait_for_reads(READS)
        with here.connect() as data:
            is_whole = here.contents.keys() <= set(data.files())
        remedy = "the writer got an error, and no file was lost; with more room the same command continues"
        is_as_promised = bool(refusal) and is_whole and not seen.failed and not seen.wrong
        return Rehearsed("full-disk", seen, remedy, is_as_promised)


def corrupt_chunk() -> Rehearsed:
    """A stored chunk has wrong bytes, as of a disk that fails."""
    with scratch() as here:
        chunk = max(
            (path for path in (here.home / "chunks").rglob("*") if path.is_file()), key=os.path.getsize
        )
        original = chunk.read_bytes()
        chunk.chmod(0o600)
        damaged = bytearray(original)
        for offset in range(len(damaged) // 2, len(damaged), FILE_BYTES):
            damaged[offset] ^= 0xFF
        chunk.write_bytes(damaged)
        place = here.mount()
        with reading([place], here.contents) as readers:
            seen = readers.wait_for_reads(READS)
        with here.connect() as data:
            found = data.client.fsck(DATASET, is_deep=True, is_repair=False).problem_count
        chunk.write_bytes(original)
        wait_for(lambda: here.is_readable(place), "its files can be read again")
        remedy = f"fsck --deep named {found} problems; with the chunk restored, its files are read again"
        is_as_promised = 0 < seen.failed < seen.reads and not seen.wrong and found > 0
        return Rehearsed("corrupt-chunk", seen, remedy, is_as_promised)


def lost_metadata() -> Rehearsed:
    """The server and its metadata are lost; the chunks are there."""
    with scratch() as here:
        place = here.mount()
        with reading([place], here.contents) as readers:
            readers.begin()
            stop_server(here.home)
            for path in here.home.glob("metadata.db*"):
                path.unlink()
            seen = readers.wait_for_reads(READS)
            with here.connect() as data:
                report = data.client.rebuild(DATASET)
        with here.connect() as data:
            is_whole = {name: data.get(name) for name in here.contents} == here.contents
        remedy = f"dlcmd rebuild made the metadata of {report.files} files again, from {report.chunks} chunks"
        return Rehearsed("lost-metadata", seen, remedy, is_whole and not seen.failed and not seen.wrong)


def lost_chunks() -> Rehearsed:
    """The stored chunks are away, as after a disk that was not mounted, and somebody rebuilds the metadata."""
    with scratch() as here:
        place = here.mount()
        (chunks,) = (path for path in (here.home / "chunks").iterdir() if path.name != "records")
        with reading([place], here.contents) as readers:
            seen = readers.wait_for_reads(READS)
        chunks.rename(here.home / "away")
        refusal = ""
        with here.connect() as data:
            try:
                data.client.rebuild(DATASET)
            except DieselfsError as error:
                refusal = str(error)
            found = data.client.fsck(DATASET, is_deep=False, is_repair=False).problem_count
            (here.home / "away").rename(chunks)
            is_whole = {name: data.get(name) for name in here.contents} == here.contents
        remedy = (
            f"rebuild refused, fsck named {found} problems, and with the chunks back every file was there"
        )
        is_as_promised = bool(refusal) and found > 0 and is_whole and not seen.failed and not seen.wrong
        return Rehearsed("lost-chunks", seen, remedy, is_as_promised)


def older_metadata() -> Rehearsed:
    """The metadata goes back to an older state while the server runs, as by a restored copy."""
    with scratch() as here:
        place, metadata, copy = here.mount(), here.home / "metadata.db", here.home / "copy.db"
        more = {f"more-{number}": content_of(f"more-{number}", FILE_BYTES) for number in range(FILES)}
        with reading([place], here.contents) as readers, here.connect() as data:
            readers.begin()
            with closing(sqlite3.connect(metadata)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            here.store(more)
            copy.replace(metadata)
            is_whole = here.contents.keys() | more.keys() == set(data.files())
            seen = readers.wait_for_reads(READS)
        remedy = (
            f"the server applied the chunks that were missing, and all {len(more)} newer files were there"
        )
        return Rehearsed("older-metadata", seen, remedy, is_whole and not seen.failed and not seen.wrong)


FAULTS: Mapping[str, Callable[[], Rehearsed]] = {
    "lost-node": lost_node,
    "killed-daemon": killed_daemon,
    "killed-mount": killed_mount,
    "full-disk": full_disk,
    "corrupt-chunk": corrupt_chunk,
    "lost-metadata": lost_metadata,
    "older-metadata": older_metadata,
    "lost-chunks": lost_chunks,
}
