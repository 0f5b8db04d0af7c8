"""Upload by the library, by `dlcmd put -r` as a whole command (with one process, and with one for each processor), and
of a tar archive as by `dlcmd import`, with an embedded server, compared with `cp -r` to the same file system.

The source is warm. dieselfs has synced everything when it answers, unlike `cp`: another copy is followed by `sync`.
Copies stay until the end, as some file systems are slow to reuse the inodes of removed files.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path

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
from dieselfs_tools.archives.formats import AUTO
from dieselfs_tools.archives.importing.records import RecordOptions, Records
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.patterns import ALL
from dieselfs_tools.cli.session import Session


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
            "the bytes alone, in synced files of 4 MiB": _write,
        }
        sides = [
            Side(name, partial(way, tree), files, "files", tree.size_bytes) for name, way in ways.items()
        ]
        yield Trial(f"Upload of {tree.title}", sides, scale.rounds, base="cp -r")


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
    records = Records(Session(output=Output(is_quiet=True)), options)

    def store(home: Home) -> None:
        with home.dataset(must_exist=False) as dataset:
            run = TreeUpload(dataset.client, dataset.create(), None)
            report = run.run(records.all)
        if report.failures or report.done_bytes != tree.size_bytes:
            raise RunFailed(f"stored {report.done_bytes} of {tree.size_bytes} bytes: {report.failures[:1]}")

    with closing(records), running_home(_new_folder(tree)) as home:
        os.sync()
        return measure(lambda: store(home), {"server": [home.server_process()]})


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
