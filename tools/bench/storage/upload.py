"""Upload by the library, by `dlcmd put -r` as a whole command (with one process, and with one for each processor), and
of a tar archive as by `dlcmd import`, with an embedded server, compared with `cp -r` and `tar cf` to the same file
system. What the process costs that reads sources of an import: the same reading by the process that stores.

The source is warm. dieselfs has synced everything when it answers, unlike `cp`: another copy is followed by `sync`.
Copies stay until the end, as some file systems are slow to reuse the inodes of removed files.
"""

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np

from bench.harness.figures import Run, RunFailed, Scale, Side, Trial
from bench.harness.forms import (
    DATASET,
    LARGE_FILE_BYTES,
    SMALL_FILE_BYTES,
    Home,
    SourceTree,
    make_tree,
    put_tree,
    running_home,
    store_tree,
)
from bench.harness.stopwatch import measure
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.names import SCHEME
from dieselfs.transfer.upload import TreeUpload
from dieselfs_tools.archives.formats import AUTO, format_of, required
from dieselfs_tools.archives.importing.inputs import DirectOpener, Input
from dieselfs_tools.archives.importing.reader import Readers
from dieselfs_tools.archives.importing.record import Record
from dieselfs_tools.archives.importing.records import RecordOptions, Records
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.patterns import ALL
from dieselfs_tools.cli.session import Session

_QUIET = Output(is_quiet=True)


def upload(folder: Path, scale: Scale) -> Generator[Trial]:
    processors = len(os.sched_getaffinity(0))
    for files, file_bytes in ((scale.small_files, SMALL_FILE_BYTES), (scale.large_files, LARGE_FILE_BYTES)):
        tree = make_tree(folder / f"source-{file_bytes}", files, file_bytes)
        for path in tree.paths():
            (tree.folder / path).read_bytes()
        archive = folder / f"source-{file_bytes}.tar"
        subprocess.run(["tar", "cf", str(archive), "-C", str(tree.folder), "."], check=True)
        ways: dict[str, Callable[[SourceTree], Run]] = {
            "dieselfs": _put,
            **{
                f"dlcmd put, --jobs {jobs}": partial(_command, jobs)
                for jobs in dict.fromkeys((1, processors))
            },
            "dieselfs, from a tar archive": partial(_import, archive),
            "cp -r": partial(_copy, 'cp -r "$1" "$2"'),
            "cp -r, then sync": partial(_copy, 'cp -r "$1" "$2" && sync -f "$2"'),
            "tar cf, then sync": partial(_copy, 'tar cf "$2/tar" -C "$1" . && sync -f "$2"'),
            "the bytes alone, in synced files of 4 MiB": _write,
        }
        sides = [
            Side(name, partial(way, tree), files, "files", tree.size_bytes) for name, way in ways.items()
        ]
        yield Trial(f"Upload of {tree.title}", sides, scale.rounds, base="cp -r")
        if file_bytes == SMALL_FILE_BYTES:
            rows = _make_rows(folder / "rows.h5", files, file_bytes)
            yield _reading(archive, tree, scale)
            yield _reading(rows, tree, scale)


def _new_folder(tree: SourceTree) -> Path:
    return Path(tempfile.mkdtemp(dir=tree.folder.parent))


def _put(tree: SourceTree) -> Run:
    with running_home(_new_folder(tree)) as home:
        os.sync()
        server = {"server": [home.server_process()]}
        return measure(lambda: store_tree(home, tree.folder, tree.size_bytes), server)


def _command(jobs: int, tree: SourceTree) -> Run:
    with running_home(_new_folder(tree)) as home:
        os.sync()
        server = {"server": [home.server_process()]}
        return measure(lambda: put_tree(home, tree.folder, jobs), server)


def _import(archive: Path, tree: SourceTree) -> Run:
    options = RecordOptions(
        names=[str(archive), f"{SCHEME}{DATASET}/"],
        format_name=AUTO,
        template=None,
        is_renaming=False,
        is_dry_run=False,
        patterns=ALL,
        chunk_bytes=CHUNK_TARGET_BYTES,
    )
    records = Records(Session(output=_QUIET), options)

    def store(home: Home) -> None:
        with home.dataset(must_exist=False) as dataset:
            run = TreeUpload(dataset.client, dataset.create(), None)
            report = run.run(records.all)
        if report.failures or report.done_bytes != tree.size_bytes:
            raise RunFailed(f"stored {report.done_bytes} of {tree.size_bytes} bytes: {report.failures[:1]}")

    with closing(records), running_home(_new_folder(tree)) as home:
        os.sync()
        return measure(lambda: store(home), {"server": [home.server_process()]})


def _make_rows(path: Path, rows: int, row_bytes: int) -> Path:
    """A file of HDF5 with one dataset."""
    with required("h5py").File(path, "w") as file:
        file["rows"] = np.random.default_rng(0).random((rows, row_bytes // 4), np.float32)
    return path


def _reading(source: Path, tree: SourceTree, scale: Scale) -> Trial:
    """All records of a source with their content. The start of the other process is part of it."""
    ways = {"by this process": _records_here, "by another process, as dlcmd import": _records_apart}
    sides = [
        Side(name, partial(_read, way, source, tree.files), tree.files, "files", tree.size_bytes)
        for name, way in ways.items()
    ]
    title = f"Reading of an archive {source.suffix} of {tree.title}"
    return Trial(title, sides, scale.rounds, base="by this process")


def _read(records: Callable[[str], Iterator[Record]], source: Path, files: int) -> Run:
    found = Counter[bool]()
    run = measure(lambda: found.update(record.content is not None for record in records(str(source))))
    if found[True] != files:
        raise RunFailed(f"read {found[True]} of {files} files")
    return run


def _records_here(source: str) -> Iterator[Record]:
    with ExitStack() as stack:
        opened = Input(source, stack, DirectOpener(source, _QUIET))
        for record in format_of(opened, AUTO).read()(opened):
            record.load()
            yield record


def _records_apart(source: str) -> Iterator[Record]:
    with closing(Readers(_QUIET)) as readers, readers.read(source) as opened:
        yield from opened


def _copy(command: str, tree: SourceTree) -> Run:
    arguments = ["sh", "-c", command, "sh", str(tree.folder), str(_new_folder(tree))]
    os.sync()
    return measure(lambda: subprocess.run(arguments, check=True))


def _write(tree: SourceTree) -> Run:
    """The limit of the disk: the same bytes in files of the size of a chunk, each synced."""
    folder, content = _new_folder(tree), os.urandom(CHUNK_TARGET_BYTES)

    def write() -> None:
        for number in range(-(-tree.size_bytes // CHUNK_TARGET_BYTES)):
            with open(folder / str(number), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())

    os.sync()
    return measure(write)
