"""Files got inside the reader's process: by the library, from LMDB, from an indexed tar file.

Resident: everything is in memory, ours in the library's, theirs in the page cache; several readers are forked from one
process, and read a part each. Cold: the kernel's caches dropped once all is open, and for dieselfs a new server. The
cursor goes through the LMDB file from one end to the other, which is what read-ahead is good at; all else is in random
order, or in the chunk-wise one, whose groups fit into the library's memory.
"""

import os
from collections.abc import Callable, Generator, Sequence
from functools import partial

from bench.figures import Aim, Quantity, Run, Side, Trial
from bench.forms import Forms
from bench.peers import lmdb_lack
from bench.readers import Reader, Work, read_together
from bench.reading_files import GROUP_CHUNKS, SEED, SOME_FILES, shares_of
from bench.trees import SMALL_FILE_BYTES, drop_caches, shuffled
from dieselfs.dataset import Dataset

BATCH_FILES = 256

GET, GET_MANY = "library, get", "library, get_many"
LMDB_GET, LMDB_CURSOR, TAR_PREAD = "py-lmdb, get", "py-lmdb, cursor", "indexed tar, pread"
GET_AIM = Aim(Quantity.RATIO, 1, of=(LMDB_GET, TAR_PREAD))
GET_MANY_AIM = Aim(Quantity.RATIO, 2, of=(GET,))

Getting = Callable[[Dataset, Sequence[str]], int]


def cold_library_trial(forms: Forms, rounds: int) -> Trial:
    everything = shuffled(forms.tree.paths())
    some = everything[:SOME_FILES]
    with forms.home.dataset() as dataset:
        in_chunks = list(dataset.shuffle(SEED, 0, GROUP_CHUNKS))
    sides = [
        _side(forms, f"{GET}, chunk-wise", in_chunks, partial(_get_cold, forms, _get, in_chunks)),
        _side(forms, f"{GET_MANY}, chunk-wise", in_chunks, partial(_get_cold, forms, _get_many, in_chunks)),
        _side(forms, GET, some, partial(_get_cold, forms, _get, some)),
        _side(forms, TAR_PREAD, some, _run_cold(partial(_tar_work, forms, some), some)),
    ]
    lack = lmdb_lack()
    if lack is None:
        sides += [
            _side(forms, LMDB_CURSOR, everything, _run_cold(partial(_lmdb_cursor_work, forms), everything)),
            _side(forms, LMDB_GET, some, _run_cold(partial(_lmdb_work, forms, some), some)),
        ]
    title = f"{forms.title}, in the reader's process, cold"
    return Trial(title, sides, rounds, LMDB_CURSOR, {} if lack is None else {"py-lmdb": lack})


def resident_trials(forms: Forms, readers: Sequence[int], rounds: int) -> Generator[Trial]:
    everything = shuffled(forms.tree.paths())
    lack = lmdb_lack()
    aims = {GET: GET_AIM, GET_MANY: GET_MANY_AIM} if forms.tree.file_bytes == SMALL_FILE_BYTES else {}
    with forms.home.dataset(memory_bytes=2 * forms.tree.size_bytes) as dataset:
        _get_many(dataset, everything)
        for count in readers:
            shares = shares_of(everything, count)
            works: dict[str, Callable[[Sequence[str]], Work]] = {
                GET: lambda share: partial(_get, dataset, share),
                GET_MANY: lambda share: partial(_get_many, dataset, share),
                "library, views": lambda share: partial(_views, dataset, share),
                "library, plan": lambda share: partial(_get_planned, dataset, len(share)),
                TAR_PREAD: partial(_tar_work, forms),
            }
            if lack is None:
                works[LMDB_GET] = partial(_lmdb_work, forms)
            sides = [
                _side(
                    forms,
                    name,
                    everything,
                    _run([partial(work, share) for share in shares], everything),
                    aims.get(name),
                )
                for name, work in works.items()
            ]
            title = (
                f"{forms.title}, in the reader's process, resident, {count} reader{'s' if count > 1 else ''}"
            )
            yield Trial(title, sides, rounds, TAR_PREAD, {} if lack is None else {"py-lmdb": lack})


def _side(
    forms: Forms, name: str, paths: Sequence[str], run: Callable[[], Run], aim: Aim | None = None
) -> Side:
    is_part = len(paths) < forms.tree.files
    name = f"{name} ({len(paths):,} files)" if is_part else name
    return Side(name, run, len(paths), "files", len(paths) * forms.tree.file_bytes, aim)


def _run(readers: Sequence[Reader], paths: Sequence[str]) -> Callable[[], Run]:
    return partial(read_together, readers, len(paths))


def _run_cold(reader: Reader, paths: Sequence[str]) -> Callable[[], Run]:
    return _run([partial(_then_cold, reader)], paths)


def _then_cold(reader: Reader) -> Work:
    work = reader()
    drop_caches()
    return work


def _get_cold(forms: Forms, get: Getting, paths: Sequence[str]) -> Run:
    forms.home.stop_server()
    with forms.home.dataset() as dataset:

        def reader() -> Work:
            dataset.snapshot  # noqa: B018  # fetched before the clock runs
            return partial(get, dataset, paths)

        server = {"server": forms.home.server_process()}
        return read_together([partial(_then_cold, reader)], len(paths), server)


# -- ways to read, each in a process of its own ----------------------------------------------------------


def _get(dataset: Dataset, paths: Sequence[str]) -> int:
    get = dataset.get
    for path in paths:
        get(path)
    return len(paths)


def _get_many(dataset: Dataset, paths: Sequence[str]) -> int:
    return sum(
        len(dataset.get_many(paths[first : first + BATCH_FILES]))
        for first in range(0, len(paths), BATCH_FILES)
    )


def _views(dataset: Dataset, paths: Sequence[str]) -> int:
    """Without a copy: the bytes of every file are there, and looked at by nobody."""
    return sum(
        len(dataset.views(paths[first : first + BATCH_FILES])) for first in range(0, len(paths), BATCH_FILES)
    )


def _get_planned(dataset: Dataset, files: int) -> int:
    """An epoch's first `files` files in the plan's order, in batches, working out the order included."""
    return _get_many(dataset, dataset.plan(SEED, 0, GROUP_CHUNKS).share().paths[:files])


def _lmdb_work(forms: Forms, paths: Sequence[str]) -> Work:
    import lmdb

    keys = [os.fsencode(path) for path in paths]
    transaction = lmdb.open(str(forms.lmdb), subdir=False, readonly=True, lock=False).begin()

    def get_all() -> int:
        get = transaction.get
        for key in keys:
            get(key)
        return len(keys)

    return get_all


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
