"""What the papers on asynchronous I/O, DeepIO, LMDBIO and SHADE report, and which measurements here correspond.

Only numbers that a paper prints in its text or tables; curves are not read off. No I/O.
"""

from bench.papers import lmdbio, lmdbio_disk
from bench.papers.deepio import COMPUTE_MS, OPPORTUNISTIC, SHARES, SHUFFLED, SIZES, share_name
from bench.papers.importance import SHADE, UNIFORM_LRU, UNIFORM_NOPFS
from bench.papers.paper_numbers import ACCURACY, GROUP, THROUGHPUT, Comparison, Experiment, Measure
from bench.papers.strategies import BUFFERS, EXPOSED, STRATEGIES, buffer_name

_READERS = 4
_READ = f", {_READERS} readers"
_AFTER = (
    ("places from the snapshot : from the server (PROV)", 19.44 / 17.18),
    ("coalescing (COAL)", 21.86 / 19.44),
    ("bounded concurrency (a part of STAG)", None),
    ("staggering (STAG)", 81.05 / 21.86),
    ("direct placement (DIO)", None),
    ("one reader a node (LMM)", None),
)
_STEPS = [*lmdbio.STEPS]
_DISK = [*lmdbio_disk.STEPS]
_ONE = next(iter(STRATEGIES))


def _read(side: str) -> Measure:
    return Measure("lmdbio", _READ, side)


def _seek(side: str) -> Measure:
    return Measure("lmdbio_disk", _READ, side)


def _waits(side: str, trial: str = "strategies") -> Measure:
    return Measure("strategies", trial, side, EXPOSED)


def _speed(share: str, side: str) -> Measure:
    return Measure("importance", f"cache of {share}", side, THROUGHPUT)


def _accuracy(percent: int) -> Measure:
    return Measure("opportunistic_training", "", f"{GROUP}{percent}", ACCURACY)


OTHERS = (
    Experiment(
        "Asynchronous I/O, tables II and III, figures 9 and 10",
        "time that a step waits for its samples",
        "one process on a store behind a pipe of 50 MB/s, steps that sleep; there 32 GPUs of Cori read HDF5 files",
        (
            *(
                Comparison(f"{name} : {_ONE} ({there})", exposed / 46.03, _waits(name), _waits(_ONE))
                for name, there, exposed in (
                    ([*STRATEGIES][1], "TF-Pre : TF", 28.91),
                    ([*STRATEGIES][2], "Async I/O : TF", 43.18),
                    ([*STRATEGIES][3], "Async I/O (DB) : TF", 10.71),
                )
            ),
            *(
                Comparison(
                    f"{buffer_name(size)} : of 1",
                    None,
                    _waits(buffer_name(size), "sizes of buffers"),
                    _waits(buffer_name(1), "sizes of buffers"),
                )
                for size in BUFFERS[1:]
            ),
        ),
    ),
    Experiment(
        "DeepIO, figures 9 and 13",
        "reading with memory for a part of the dataset, R",
        "one process on a store behind a pipe of 100 or 200 MB/s, not 8 or 16 nodes with RDMA over BeeGFS",
        (
            *(
                Comparison(
                    f"R = {share:g} : R = 1, {ms} ms a batch",
                    None,
                    Measure("deepio", f" {ms} ms a batch, by memory", share_name(share)),
                    Measure("deepio", f" {ms} ms a batch, by memory", share_name(1)),
                )
                for ms in COMPUTE_MS
                for share in SHARES[:-1]
            ),
            *(
                Comparison(
                    f"files of {size / 1e3:g} KB: opportunistic : full shuffle",
                    1.161 if size == SIZES[0] else None,
                    Measure("deepio", f"files of {size:,} bytes", OPPORTUNISTIC),
                    Measure("deepio", f"files of {size:,} bytes", SHUFFLED),
                )
                for size in SIZES
            ),
        ),
    ),
    Experiment(
        "DeepIO, figures 7 and 8",
        "accuracy in the opportunistic order, against the full shuffle",
        "1,797 digits stored class by class and a small network, not AlexNet on 101 categories",
        tuple(
            Comparison(f"R = {percent / 100:g}", 1.0, _accuracy(percent), _accuracy(0))
            for percent in (25, 50, 100)
        ),
    ),
    Experiment(
        "LMDBIO, figures 15 to 22",
        "each optimisation against the step before it, and all against py-lmdb",
        "four readers on one node whose host caches the disk, not 4,608 processes; other order: there LMM comes first",
        (
            *(
                Comparison(what, printed, _read(step), _read(before))
                for (what, printed), step, before in zip(_AFTER, _STEPS[1:], _STEPS[:-1], strict=True)
            ),
            Comparison("all : LMDB", 81.05, _read(_STEPS[-1]), _read(lmdbio.BASE), 2 * _READERS),
            Comparison(
                "disk that seeks: coalescing : file by file", 21.86 / 19.44, _seek(_DISK[1]), _seek(_DISK[0])
            ),
            Comparison(
                "disk that seeks: one large read : coalescing", None, _seek(_DISK[5]), _seek(_DISK[1])
            ),
            Comparison(
                "disk that seeks: one large read : LMDB", 81.05, _seek(_DISK[5]), _seek(lmdbio_disk.LMDB)
            ),
        ),
    ),
    Experiment(
        "SHADE, figures 9 and 11",
        "throughput, from the misses of trainings",
        "a miss takes 0.25 ms by a model, and a batch 5 ms; synthetic images of ten classes, not CIFAR-10 and ImageNet",
        (
            *(
                Comparison(
                    f"cache of {share}: SHADE : LRU",
                    printed,
                    _speed(share, SHADE),
                    _speed(share, UNIFORM_LRU),
                )
                for share, printed in (("10%", 2.3), ("75%", 2.7))
            ),
            *(
                Comparison(
                    f"cache of {share}: SHADE : NoPFS",
                    printed,
                    _speed(share, SHADE),
                    _speed(share, UNIFORM_NOPFS),
                )
                for share, printed in (("50%", 1.6), ("75%", 2.2))
            ),
        ),
    ),
)
