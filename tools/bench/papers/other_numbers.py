"""What the papers on asynchronous I/O, DeepIO, LMDBIO and SHADE report, and which measurements here correspond.

Only numbers that a paper prints in its text or tables; curves are not read off. No I/O.
"""

from bench.jobs import pool
from bench.jobs.pool_rivals import MEMCACHED
from bench.papers import lmdbio, lmdbio_disk, loading
from bench.papers.deepio import COMPUTE_MS, OPPORTUNISTIC, SHARES, SHUFFLED, SIZES, share_name
from bench.papers.importance import BY_BATCH, SHADE, UNIFORM, UNIFORM_LRU, UNIFORM_NOPFS
from bench.papers.paper_numbers import (
    ACCURACY,
    ENTROPY,
    GROUP,
    LEVEL,
    LEVELS,
    LOSS,
    Comparison,
    Experiment,
    Measure,
)
from bench.papers.shade import (
    AGAIN,
    AGAIN_LAST,
    CONVERGED,
    HITS,
    IMPORTANCE_SAMPLING,
    IMPORTANT,
    LOADING,
    LOADING_SPREAD,
    OURS,
    PUBLISHED,
    THRICE_LAST,
    THROUGHPUT,
    TRAINING,
    UNIFORM_SAMPLING,
    hits_title,
    speed_title,
)
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


def _over_link(side: str) -> Measure:
    return Measure("lmdbio_ceph", "", side)


def _seek(side: str) -> Measure:
    return Measure("lmdbio_disk", _READ, side)


def _waits(side: str, trial: str = "strategies") -> Measure:
    return Measure("strategies", trial, side, EXPOSED)


def _trained(value: str, side: str = IMPORTANCE_SAMPLING) -> Measure:
    return Measure("importance", TRAINING, side, value)


def _hits(share: float, side: str) -> Measure:
    return Measure("importance", hits_title(share), side, HITS)


def _speed(share: float, side: str, value: str = THROUGHPUT) -> Measure:
    return Measure("importance", speed_title(share), side, value)


def _accuracy(percent: int) -> Measure:
    return Measure("opportunistic_training", "^stored", f"{GROUP}{percent}", ACCURACY)


def _order(percent: int, value: str) -> Measure:
    return Measure("opportunistic_training", LEVELS, f"{GROUP}{percent}", value)


def _loss(storing: str, group: int) -> Measure:
    return Measure("regression", storing, f"{GROUP}{group}", LOSS)


def _on_nodes(nodes: int, side: str) -> Measure:
    return Measure("pool", f"^{nodes} nodes?, .* {_BATCHES}", side)


def _loaded(size: int, where: str, side: str) -> Measure:
    return Measure("loading", f"of {size:,} bytes, .* {where}", side)


_BATCHES = f"{pool.BATCHES[-1]} at a time"
_LRU = _hits(0.1, f"{UNIFORM}LRU")

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
        "Asynchronous I/O, figures 3 and 4",
        "loss of a regression with images from groups of chunks, against the full shuffle",
        "four moments of 1,797 digits and a small network, not CosmoFlow and Neuron-Inverter; there the losses are "
        "0.002344 and 0.028126, and differ by less than 0.0005; it prints no regression of times",
        tuple(
            Comparison(f"{storing}, {what}", printed, _loss(storing, group), _loss(storing, 0))
            for storing in ("stored in mixed order", "stored class by class")
            for group, what, printed in (
                (30, "G = 30 of 58 (32 processes, 64 files)", 1.0),
                (1, "G = 1 (one process)", None),
            )
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
        "accuracy in the opportunistic order, against the full shuffle; the randomness of orders",
        "1,797 digits stored class by class and a small network, not AlexNet on 101 categories; RL by the printed "
        "equations is above 1, so they do not give the printed levels; the entropy is that of the orders that are "
        "possible",
        (
            *(
                Comparison(f"R = {percent / 100:g}", 1.0, _accuracy(percent), _accuracy(0))
                for percent in (25, 50, 100)
            ),
            *(
                Comparison(f"R = {percent / 100:g}: {what}", printed, _order(percent, value), None)
                for percent, printed in ((25, 0.9696), (50, 0.9854))
                for what, value in (
                    ("RL, by equations 1, 4, 5 as printed", LEVEL),
                    ("own entropy ratio", ENTROPY),
                )
            ),
        ),
    ),
    Experiment(
        "DeepIO, figure 10",
        "random reads by several nodes of what they hold in memory together",
        "nodes are network namespaces of one machine; files of 4 KB, 256 at a time, not of 256 KB; memcached, not "
        "Octopus; reads where the bytes lie stand for the opportunistic order; a quick run has two nodes",
        (
            *(
                Comparison(
                    f"{nodes} nodes : 1 node, full shuffle (Base)",
                    None,
                    _on_nodes(nodes, pool.JOB),
                    _on_nodes(1, pool.JOB),
                    2 * nodes,
                )
                for nodes in pool.NODES[1:]
            ),
            *(
                Comparison(
                    f"{nodes} nodes: {what}",
                    printed,
                    _on_nodes(nodes, ours),
                    _on_nodes(nodes, base),
                    2 * nodes,
                )
                for nodes in pool.NODES[1:]
                for what, printed, ours, base in (
                    ("where the bytes lie : full shuffle (Opp : Base)", None, pool.JOB_LOCAL, pool.JOB),
                    ("full shuffle : memcached (Base : Octopus, at least)", 1.17, pool.JOB, MEMCACHED),
                    (
                        "where the bytes lie : memcached (Opp : Octopus, at least)",
                        1.21,
                        pool.JOB_LOCAL,
                        MEMCACHED,
                    ),
                )
            ),
        ),
    ),
    Experiment(
        "DeepIO, table I",
        "loading with the own API, against that of a framework, on the same file system",
        "PyTorch's DataLoader without workers and a file for each image, not TensorFlow and large files; one virtual "
        "disk, read cold; no BeeGFS",
        tuple(
            Comparison(
                f"{there}, {size // 1000} KB: DeepIO API : Dataset API",
                ours / base,
                _loaded(size, where, loading.LIBRARY),
                _loaded(size, where, loading.DATA_LOADER),
            )
            for there, where, speeds in (
                ("Ext4-disk", loading.DISK, ((122.363, 105.641), (103.267, 95.971))),
                ("Ext4-ssd", loading.DISK, ((572.116, 324.927), (987.103, 438.183))),
                ("tmpfs", loading.MEMORY, ((907.193, 384.07), (2034.814, 478.433))),
            )
            for size, (ours, base) in zip(loading.SIZES, speeds, strict=True)
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
        "LMDBIO, over a network",
        "random reads, each optimisation against the step before it, and against LMDB on CephFS",
        "one node, four readers, ceph-fuse, and an OSD in memory behind 1 Gb/s and 1 ms; there 4,608 processes on GPFS "
        "read in order; LMDB reads ahead; the server of dieselfs is on the node",
        (
            *(
                Comparison(what, printed, _over_link(step), _over_link(before))
                for (what, printed), step, before in zip(_AFTER, _STEPS[1:], _STEPS[:-1], strict=True)
            ),
            Comparison("none : LMDB on CephFS", None, _over_link(_STEPS[0]), _over_link(lmdbio.ON_CEPHFS)),
            Comparison(
                "all : LMDB on CephFS",
                81.05,
                _over_link(_STEPS[-1]),
                _over_link(lmdbio.ON_CEPHFS),
                2 * _READERS,
            ),
        ),
    ),
    Experiment(
        "SHADE, figures 2 to 4",
        "importance sampling by the losses of whole batches: shares of the samples, and accuracy",
        "synthetic images of ten classes and 8 epochs, not CIFAR-10 (fig. 4: CIFAR-100) and 100; scores divided by the "
        "largest",
        (
            Comparison(
                "fig. 2: read more than once in the second epoch (there 1)", 0.265, _trained(AGAIN), None
            ),
            Comparison(
                "fig. 2: read more than once in the last epoch (there 89)", 0.262, _trained(AGAIN_LAST), None
            ),
            Comparison(
                "fig. 2: read 3 times or more in the last epoch (there 89)",
                0.096,
                _trained(THRICE_LAST),
                None,
            ),
            Comparison(
                "fig. 3: scores above 30 % in the last epoch (there 20)", 0.4991, _trained(IMPORTANT), None
            ),
            Comparison(
                "fig. 4: accuracy after a fifth of the epochs : uniform, all epochs (above 1)",
                None,
                _trained(ACCURACY),
                _trained(ACCURACY, UNIFORM_SAMPLING),
            ),
        ),
    ),
    Experiment(
        "SHADE, figures 7 and 12",
        "hits of caches; a single side: the hits of a request",
        "synthetic images of ten classes and a small network, not CIFAR-10 and ResNets; after two epochs; CoorDL and "
        "Quiver are emulated, there too",
        (
            Comparison("10%: LRU, uniform sampling", None, _LRU, None),
            Comparison("10%: SHADE : LRU", 4.5, _hits(0.1, OURS), _LRU),
            Comparison("10%: APP, scores of batches : LRU", 2.67, _hits(0.1, f"{BY_BATCH}APP"), _LRU),
            *(
                Comparison(
                    f"10%: {name}, scores of batches : LRU", 1.94, _hits(0.1, f"{BY_BATCH}{name}"), _LRU
                )
                for name in ("priority, LFU", "priority", "LRU", "LFU", "random")
            ),
            Comparison(
                "10%, equal requests, scores of batches: APP : LRU",
                2.67 / 1.94,
                _hits(0.1, f"{BY_BATCH}APP"),
                _hits(0.1, f"{BY_BATCH}LRU"),
            ),
            Comparison("20%: SHADE", 0.725, _hits(0.2, OURS), None),
            Comparison("20%: SHADE as its published code has it", 0.725, _hits(0.2, PUBLISHED), None),
            *(
                Comparison(
                    f"20%: SHADE : {name}, scores of batches",
                    3.6,
                    _hits(0.2, OURS),
                    _hits(0.2, f"{BY_BATCH}{name}"),
                )
                for name in ("CoorDL", "Quiver, emulated")
            ),
        ),
    ),
    Experiment(
        "SHADE, figures 8 to 11",
        "throughput, loading and convergence of trainings",
        "loaded for real, from a server on one machine; a step computes for 5 ms by a model; synthetic images of ten "
        "classes, not CIFAR-10 and ImageNet; converged: half a point from the best of uniform sampling; "
        "*not measured*: with no seed do both converge",
        (
            *(
                Comparison(
                    f"fig. 8: time to converge, LRU : SHADE, cache of {share:.0%}",
                    printed,
                    _speed(share, UNIFORM_LRU, CONVERGED),
                    _speed(share, SHADE, CONVERGED),
                )
                for share, printed in ((0.1, 3.0), (0.75, 3.3))
            ),
            *(
                Comparison(
                    f"fig. 9: images a second, SHADE {ours:.0%} : LRU {theirs:.0%}",
                    printed,
                    _speed(ours, SHADE),
                    _speed(theirs, UNIFORM_LRU),
                )
                for ours, theirs, printed in ((0.1, 0.1, 2.3), (0.75, 0.75, 2.7), (0.5, 0.75, 1.14))
            ),
            *(
                Comparison(
                    f"fig. 10: loading a batch, LRU {theirs:.0%} : SHADE {ours:.0%}{of}",
                    printed,
                    _speed(theirs, UNIFORM_LRU, value),
                    _speed(ours, SHADE, value),
                )
                for theirs, ours, of, value, printed in (
                    (0.5, 0.5, "", LOADING, 2.5),
                    (0.75, 0.5, "", LOADING, 1.7),
                    (0.75, 0.75, ", standard deviation", LOADING_SPREAD, 3.9),
                )
            ),
            *(
                Comparison(
                    f"fig. 11: images a second, SHADE : NoPFS, cache of {share:.0%}",
                    printed,
                    _speed(share, SHADE),
                    _speed(share, UNIFORM_NOPFS),
                )
                for share, printed in ((0.5, 1.6), (0.75, 2.2))
            ),
            *(
                Comparison(
                    f"fig. 11: time to converge, NoPFS : SHADE, cache of {share:.0%}",
                    printed,
                    _speed(share, UNIFORM_NOPFS, CONVERGED),
                    _speed(share, SHADE, CONVERGED),
                )
                for share, printed in ((0.5, 2.4), (0.75, 4.5))
            ),
        ),
    ),
)
