"""dieselfs beside file systems over a network: CephFS, JuiceFS, GlusterFS, and the local file system as reference.

docs/internals/rivals.md has the method. Each run has a new mount on its host, and the kernel's caches were dropped.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from bench.harness.figures import Run, RunFailed, Scale, Side, Trial
from bench.harness.forms import (
    LARGE_FILE_BYTES,
    SMALL_FILE_BYTES,
    SourceTree,
    can_drop_caches,
    drop_caches,
    make_tree,
    shuffled,
)
from bench.harness.readers import plain_reader, python_reader
from bench.harness.stopwatch import measure
from bench.papers.paper_training import EPOCHS, make_images, title_of
from bench.rivals.field import CEPHFS, Field, running_field
from bench.rivals.ours import Dieselfs
from bench.rivals.rival import Files, Rival
from bench.rivals.stage import LINKS, measured_link, running_stage
from bench.rivals.workloads import READERS, WALKED, Workload, listing, reading, reading_a_plan, training
from lab.network import Host, Unsuitable

PLAN = ", plan"
"""The end of the name of a side that reads in chunk-wise order."""
SLOW_SHARE, SLOW_FILES_MIN = 20, 100
"""Rivals read one file in SLOW_SHARE, chosen at random, or SLOW_FILES_MIN: the time of a file does not depend on the
number of files."""
TRAINED_SHARE = 10
"""Small files for each image of the training."""
CONNECTION = "One TCP connection"
CALLS = {"os.open": plain_reader, "Python's open()": python_reader}


def rivals(folder: Path, scale: Scale) -> Generator[Trial]:
    if not can_drop_caches():
        raise Unsuitable("caches are dropped before each run, which needs root")
    small = make_tree(folder / "small", scale.small_files, SMALL_FILE_BYTES)
    large = make_tree(folder / "large", scale.large_files, LARGE_FILE_BYTES)
    few = {
        tree: make_tree(folder / f"few-{tree.folder.name}", _few(tree.files), tree.file_bytes)
        for tree in (small, large)
    }
    images_folder = folder / "images"
    images = make_images(images_folder, replace(scale, small_files=2 * scale.small_files // TRAINED_SHARE))
    trees = [small.folder, large.folder, images_folder]
    links = LINKS[:1] if scale.is_quick else [link for link in LINKS if scale.wants(f"{link}, cold")] or LINKS
    with (
        running_stage(links) as stage,
        running_field(stage, folder, trees) as field,
    ):
        reads = [_Trials(field, host, str(link), scale.rounds) for link, host in stage.clients.items()]
        for at, (link, host) in zip(reads, stage.clients.items(), strict=True):
            side = Side(CONNECTION, partial(_measure_link, host, stage.storage), 1, "")
            yield Trial(f"{CONNECTION}, {link}", [side], scale.rounds)
            for tree in (small, large):
                for call in CALLS:
                    yield at.files(tree, call)
                yield at.upload(tree, few[tree])
            for walk in WALKED:
                yield at.all_of(walk, small.folder, small.files, "files", listing(walk, small.files))
        yield reads[0].all_of(
            title_of(images), images_folder, EPOCHS * images, "images", training(images, folder / "training")
        )


def _measure_link(client: Host, storage: Host) -> Run:
    round_trip_s, bytes_per_s = measured_link(client, storage)
    return Run(
        round_trip_s, seen={"µs of a round trip": 1e6 * round_trip_s, "MB/s of a stream": bytes_per_s / 1e6}
    )


@dataclass(frozen=True, slots=True)
class _Trials:
    """Those of one host."""

    field: Field
    host: Host
    link: str
    rounds: int

    def files(self, tree: SourceTree, call: str) -> Trial:
        """Each file once in random order. With os.open dieselfs also reads in the order of its plans."""
        everything = shuffled(tree.paths())
        some = everything[: _few(len(everything))]
        sides = []
        for name, rival in self.field.running.items():
            paths = some if isinstance(rival, Files) else everything
            work = reading(CALLS[call], paths, tree.file_bytes)
            sides.append(self._side(rival, name, tree, len(paths), work))
            if isinstance(rival, Dieselfs) and call == "os.open":
                sides.append(self._side(rival, name + PLAN, tree, tree.files, reading_a_plan(tree)))
        title = f"{tree.title}, {READERS} readers, {call}, {self.link}, cold"
        return self._trial(title, sides)

    def upload(self, tree: SourceTree, few: SourceTree) -> Trial:
        """A new tree in each run, from files in the page cache. Rivals store `few`."""
        sides = []
        for name, rival in self.field.running.items():
            source = few if isinstance(rival, Files) else tree
            run = partial(self._store, rival, source)
            sides.append(Side(name, run, source.files, "files", source.size_bytes))
        return self._trial(f"Upload of {tree.title}, {self.link}", sides)

    def all_of(self, title: str, tree: Path, amount: int, unit: str, work: Workload) -> Trial:
        """The same work for all rivals."""
        sides = [
            Side(name, partial(self._run, rival, tree.name, work), amount, unit)
            for name, rival in self.field.running.items()
        ]
        of = f" of {amount:,} files" if unit == "files" else ""
        return self._trial(f"{title}{of}, {self.link}, cold", sides)

    def _side(self, rival: Rival, name: str, tree: SourceTree, files: int, work: Workload) -> Side:
        run = partial(self._run, rival, tree.folder.name, work)
        return Side(name, run, files, "files", files * tree.file_bytes)

    def _trial(self, title: str, sides: list[Side]) -> Trial:
        """With sides that fail for all that cannot run."""
        lacking = [Side(name, partial(_fail, reason), 1, "") for name, reason in self.field.lacks.items()]
        return Trial(title, [*sides, *lacking], self.rounds, CEPHFS)

    def _run(self, rival: Rival, tree: str, work: Workload) -> Run:
        rival.forget()
        with rival.mounted(self.host, tree) as place:
            drop_caches()
            return work(place, {"client": place.clients, "servers": rival.servers()})

    def _store(self, rival: Rival, source: SourceTree) -> Run:
        for path in source.paths():
            (source.folder / path).read_bytes()
        with rival.storing(self.host, source.folder, f"stored-{next(_stored)}") as storing:
            return measure(storing.run, {"client": storing.clients, "servers": rival.servers()})


_stored = count()


def _few(files: int) -> int:
    return min(max(-(-files // SLOW_SHARE), SLOW_FILES_MIN), files)


def _fail(reason: str) -> Run:
    raise RunFailed(reason)
