"""`python -m dieselfs_tools.demo [FOLDER]`: upload, mount, compare, read, on this machine alone.

It uploads a folder, mounts it, compares the mount with the folder byte for byte, reads it in shuffled order, and
unmounts. All its files are in a temporary folder, which it removes. The exit code is 0 if nothing differed.
"""

import os
import signal
import sys
import sysconfig
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import dieselfs
from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_INTERRUPTED, EXIT_OK, DieselfsError, InvalidInput, NotFound
from dieselfs.settings.table import EMBEDDED
from dieselfs.transfer.upload import Failed, SourceEntry, TreeUpload, walk_source
from dieselfs.units import count, format_duration, format_size
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mounting import DEVICE
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_tools.cli.private_home import private_home
from dieselfs_tools.transfers.comparison import compare_trees

DATASET = "demo"
SEED, EPOCH = 1, 0

_INSTALLED = frozenset([b"site-packages", b"dist-packages"])
"""Folders in that of the standard library that are no part of it."""


class Failure(DieselfsError):
    """A step had a wrong result."""


def main() -> NoReturn:
    # The source may be the standard library, so no process of the demo may write compiled modules into it.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up too
    try:
        demonstrate(*chosen_source(sys.argv[1:]))
    except DieselfsError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("demo: interrupted; its files and mounts are removed", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_OK)


def chosen_source(arguments: list[str]) -> tuple[Path, frozenset[bytes]]:
    """The folder to upload, and names of folders in it to leave out. Raises InvalidInput, NotFound."""
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        raise InvalidInput("usage: python -m dieselfs_tools.demo [FOLDER]")
    if not arguments:
        return Path(sysconfig.get_path("stdlib")).resolve(), _INSTALLED
    source = Path(arguments[0]).absolute()
    if not source.is_dir():
        raise NotFound(f"{source}: there is no such folder")
    return source, frozenset()


def demonstrate(source: Path, left_out: frozenset[bytes]) -> None:
    """All steps. Raises Failure, and the errors of the library."""
    if not os.path.exists(DEVICE):
        raise InvalidInput(
            f"this machine has no {DEVICE}, which a mount needs: as root, run 'modprobe fuse'; "
            "a container has to be started with --device /dev/fuse --cap-add SYS_ADMIN"
        )
    print("dieselfs packs many small files into few large chunks, and shows them as a folder of files again.")
    print(f"Example: {source}. All new files are in a temporary folder.\n", flush=True)
    with private_home() as home, dieselfs.connect(DATASET, server=EMBEDDED, home=home, create=True) as data:
        upload(data, source, left_out)
        with mounted(data, home) as mountpoint:
            compare(source, mountpoint, left_out)
            read_shuffled(data, mountpoint)
    print("\nAll steps succeeded. All files of the demo are removed.")


class Step:
    """A numbered line: the title is printed at the start, the result at the end."""

    number = 0

    def __init__(self, title: str) -> None:
        Step.number += 1
        print(f"{Step.number}. {title}: ", end="", flush=True)
        self._started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return max(time.monotonic() - self._started_s, 1e-6)

    def rate(self, files: int, size_bytes: int) -> str:
        """The time it took, and the speed."""
        elapsed_s = self.elapsed_s
        speed = f"{files / elapsed_s:,.0f} files/s, {format_size(size_bytes / elapsed_s)}/s"
        return f"{format_duration(elapsed_s)} ({speed})"

    def done(self, text: str) -> None:
        print(text, flush=True)


def upload(data: Dataset, source: Path, left_out: frozenset[bytes]) -> None:
    step = Step("Upload, each file packed into a chunk with its checksum")
    left_out_places = {os.path.join(os.fsencode(source), name) for name in left_out}

    def entries(failed: Failed) -> Iterator[SourceEntry]:
        def is_left_out(entry: SourceEntry) -> bool:
            return entry.source in left_out_places

        for entry in walk_source(os.fsencode(source), b"", failed, is_left_out):
            if not is_left_out(entry):
                yield entry

    report = TreeUpload(data.client, data.create(), None).run(entries)
    record = data.record()
    step.done(
        f"{count(record.files, 'file')}, {format_size(record.total_bytes)}, are now "
        f"{count(record.chunks, 'chunk')}, in {step.rate(record.files, record.total_bytes)}"
    )
    if report.failures:
        path, reason = report.failures[0]
        raise Failure(f"{report.failed_files} entries cannot be uploaded; the first: {path}: {reason}")


@contextmanager
def mounted(data: Dataset, home: Path) -> Iterator[Path]:
    """The dataset as a folder, in the context."""
    mountpoint = home / "mount"
    mountpoint.mkdir()
    step = Step("Mount the chunks as a folder")
    options = MountOptions(server=EMBEDDED, home=str(home), log_file=str(home / "log" / "mount.log"))
    try:
        control.mount(data.name, mountpoint, options)
        step.done(f"any program can read {mountpoint}, after {format_duration(step.elapsed_s)}")
        yield mountpoint
    except BaseException:
        with suppress(DieselfsError):  # the first error is the one to report
            control.unmount(mountpoint, lazily=True)
        raise
    step = Step("Unmount")
    control.unmount(mountpoint)
    step.done(f"done in {format_duration(step.elapsed_s)}")


def compare(source: Path, mountpoint: Path, left_out: Collection[bytes]) -> None:
    step = Step("Compare mount and source, every name, type, mode, time, link and byte")
    found = compare_trees(os.fsencode(source), os.fsencode(mountpoint), left_out, is_mount=True)
    if found.differences:
        step.done(f"{count(found.differences, 'difference')}")
        raise Failure("; ".join(found.shown))
    step.done(
        f"{count(found.files, 'file')}, {count(found.folders, 'folder')} and {count(found.links, 'link')} "
        f"are the same, in {step.rate(found.files, found.total_bytes)}"
    )


def read_shuffled(data: Dataset, mountpoint: Path) -> None:
    step = Step("Read all files through the mount in random order, as training does")
    paths = data.shuffle(SEED, EPOCH)
    total_bytes = 0
    for path in paths:
        with open(os.path.join(mountpoint, path), "rb", 0) as file:
            total_bytes += len(file.read())
    record = data.record()
    if (len(paths), total_bytes) != (record.files, record.total_bytes):
        step.done("something is missing")
        raise Failure(
            f"read {len(paths)} files, {total_bytes} bytes of {record.files} and {record.total_bytes}"
        )
    step.done(f"{step.rate(len(paths), total_bytes)}")


if __name__ == "__main__":
    main()
