"""Building, fetching and opening a snapshot, and lookups in random order, in one process."""

import os
import random
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import Home, running_home, store_entries
from bench.harness.many_entries import DATASET_ID, FILE_BYTES, add_entries
from bench.harness.readers import Work, read_together
from bench.harness.stopwatch import measure
from dieselfs.chunk.format import Op
from dieselfs.digests import DIGEST_BYTES, EXTENT_DIGEST_BYTES
from dieselfs.records import ChunkRecord, DatasetRecord, Extent, FileRecord
from dieselfs.snapshot.builder import SnapshotBuilder
from dieselfs.snapshot.delta import apply_delta
from dieselfs.snapshot.delta_format import decode_delta, encode_delta
from dieselfs.snapshot.encoding import unsigned
from dieselfs.snapshot.erofs_image import ErofsImage, ImageOwner, Serving
from dieselfs.snapshot.files import put_file, write_aside
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.stored_image import stored_image
from dieselfs.snapshot.successor import NextSnapshot, with_folders
from dieselfs_client.prefetch.tripwires import Tripwires
from dieselfs_server.assemble import open_metadata

_SEED = 7
_OPENS = 20
NODES = (1, 2, 5, 10)
_LOOKUPS_MAX = 100_000
"""Of each node."""
_MANY = 8
"""Times the entries of the other trials: 10 million."""
_SAMPLE_S = 0.02


def snapshot(folder: Path, scale: Scale) -> Generator[Trial]:
    with running_home(folder / "home") as home:
        store_entries(home, scale.entries)
        fetched = _fetch(home, scale.entries)
        with home.dataset() as dataset:
            path = Path(dataset.snapshot.source)
    title = f"Snapshot of {scale.entries:,} files ({path.stat().st_size / 1e6:.0f} MB)"
    built = Side("built by the server, sent, verified", lambda: fetched, scale.entries, "entries")
    yield Trial(title, [built], 1)
    verify = Side("verified", lambda: measure(Snapshot.open(path).verify), scale.entries, "entries")
    yield Trial(title, [Side("opened", lambda: _open(path), 1, "opens"), verify], scale.rounds)
    yield Trial(title, _lookups(Snapshot.open(path)), scale.rounds)
    yield _on_nodes(path, title, scale.rounds)
    title = f"Snapshot of {_MANY * scale.entries:,} entries of SQLite, in one process"
    if scale.wants(title) or scale.wants(f"{title}, one file more"):
        url = f"sqlite://{folder / 'many.db'}"
        open_metadata(url).close()
        add_entries(folder / "many.db", "many", _MANY * scale.entries)
        build = Side("read and built", lambda: _build(url, folder), _MANY * scale.entries, "entries")
        yield Trial(title, [build], 1)
        if not scale.wants(f"{title}, one file more"):
            return
        if not (folder / "many.snapshot").exists():  # of an earlier session
            _build(url, folder)
        more = one_more(Snapshot.open(folder / "many.snapshot"), folder)
        yield Trial(f"{title}, one file more", more, scale.rounds)


def _build(url: str, folder: Path) -> Run:
    def build() -> None:
        with closing(open_metadata(url)) as metadata, open(folder / "many.snapshot", "w+b") as file:
            metadata.read_entries(DATASET_ID, lambda: SnapshotBuilder(str(folder))).write(file)

    return _with_memory(build)


def one_more(base: Snapshot, folder: Path) -> list[Side]:
    """What one file more costs the server, each client, and each mount in the view `image`, in files that are not there
    before.
    """
    path, chunk_id = b"train/n00000000/more.JPEG", b"\xff" * 16
    chunks = [
        ChunkRecord(
            base.chunk_id(chunk), 0, 0, base.chunk_payload_length(chunk), base.chunk_digest(chunk), 1, 0, b""
        )
        for chunk in range(base.chunk_count)
    ] + [ChunkRecord(chunk_id, 0, 0, FILE_BYTES, bytes(DIGEST_BYTES), 1, 0, b"")]
    extent = Extent(0, chunk_id, 0, FILE_BYTES, bytes(EXTENT_DIGEST_BYTES))
    live = dict.fromkeys(with_folders([path]))
    file = FileRecord(path, Op.FILE, 0o644, 0, FILE_BYTES, 1, b"", (extent,))
    header = base.header
    dataset = DatasetRecord(
        header.dataset_id,
        header.dataset,
        header.generation + 1,
        header.updated_ns + 1,
        header.files + 1,
        header.total_bytes + FILE_BYTES,
        len(chunks),
    )
    next_path, applied_path = folder / "next.snapshot", folder / "applied.snapshot"

    def serve() -> None:
        made = NextSnapshot(base, dataset, chunks, {**live, path: file})
        write_aside(next_path, lambda file: made.write(file, unsigned))
        put_file(folder / "next.delta", encode_delta(made.delta(Snapshot.open(next_path))))

    def apply() -> None:
        delta = decode_delta((folder / "next.delta").read_bytes(), "delta")
        parts = write_aside(applied_path, partial(apply_delta, base, delta, "delta"))
        Snapshot.open(applied_path).verify(parts)

    def make_image() -> ErofsImage:
        snapshot = Snapshot.open(next_path)
        is_guarded = Tripwires(snapshot).usual_of_all()
        image, descriptor = stored_image(snapshot, ImageOwner(0, 0), Serving(b".dieselfs", is_guarded))
        os.close(descriptor)
        return image

    def read_image() -> None:
        image = make_image()
        image.fill(0, len(image.metadata))

    def alone(work: Callable[[], object]) -> Run:
        for path in (applied_path, *folder.glob("next.*.erofs")):
            path.unlink(missing_ok=True)
        if work not in (make_image, read_image):
            next_path.unlink(missing_ok=True)
        elif not next_path.exists():
            serve()
        return _with_memory(work)

    serve()
    works: dict[str, Callable[[], object]] = {
        "server": serve,
        "client": apply,
        "image of the view": make_image,
        "the same, and all its metadata": read_image,
    }
    return [Side(name, partial(alone, work), len(base), "entries") for name, work in works.items()]


def _with_memory(work: Callable[[], object]) -> Run:
    """Also sees by how many MB the memory of this process rises at its peak, without mapped files."""
    before_kb, peaks_kb, is_done = _anonymous_kb(), [0], Event()

    def sample() -> None:
        while not is_done.wait(_SAMPLE_S):
            peaks_kb.append(_anonymous_kb())

    sampler = Thread(target=sample)
    sampler.start()
    try:
        run = measure(work)
    finally:
        is_done.set()
        sampler.join()
    return replace(run, seen={"MB of memory": max(0, max(peaks_kb) - before_kb) * 1024 / 1e6})


def _anonymous_kb() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def _fetch(home: Home, entries: int) -> Run:
    with home.dataset() as dataset:
        run = measure(lambda: dataset.snapshot, {"server": [home.server_process()]})
        assert dataset.snapshot.header.files == entries
        return run


def _open(path: Path) -> Run:
    """The mean of _OPENS new objects, over a file in the page cache."""
    return Run(measure(lambda: [Snapshot.open(path) for _ in range(_OPENS)]).duration_s / _OPENS)


def _on_nodes(path: Path, title: str, rounds: int) -> Trial:
    """Each node is a process, which has opened the snapshot, and looks up the same number of paths."""
    opened = Snapshot.open(path)
    files = [opened.path(node) for node in opened.walk() if not opened.stat(node).is_folder]
    paths = random.Random(_SEED).sample(files, min(len(files), _LOOKUPS_MAX))
    sides = []
    for nodes in NODES:
        run = partial(read_together, [partial(_looking, path, paths)] * nodes, nodes * len(paths))
        sides.append(Side(node_count(nodes), run, nodes * len(paths), "stat"))
    return Trial(f"{title}, by nodes", sides, rounds, node_count(NODES[0]))


def node_count(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"


def _looking(path: Path, paths: Sequence[bytes]) -> Work:
    opened = Snapshot.open(path)

    def stat_each() -> int:
        find, stat = opened.find, opened.stat
        for path in paths:
            stat(find(path))
        return len(paths)

    return stat_each


def _lookups(opened: Snapshot) -> list[Side]:
    folders = [node for node in range(len(opened)) if opened.stat(node).is_folder]
    paths = [opened.path(node) for node in opened.walk() if not opened.stat(node).is_folder]
    random.Random(_SEED).shuffle(paths)

    def stat_each() -> None:
        find, stat = opened.find, opened.stat
        for path in paths:
            stat(find(path))

    def list_folders() -> None:
        for folder in folders:
            for node in opened.children(folder):
                opened.name(node)

    return [
        Side("stat, one path a call", lambda: measure(stat_each), len(paths), "stat"),
        Side("names of all folders", lambda: measure(list_folders), len(opened) - 1, "names"),
    ]
