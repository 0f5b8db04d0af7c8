"""What the DIESEL paper (ICPP 2020, doi 10.1145/3404397.3404472) reports, and which measurements here correspond.

Only numbers that the paper prints in its text or tables, with the section that prints them; curves are not read off.
No I/O.
"""

from typing import NamedTuple

from bench.jobs.failover import WAYS
from bench.jobs.hit_ratios import side_of
from bench.jobs.pool import JOB, JOB_AGAIN, LOADED
from bench.jobs.pool_rivals import MEMCACHED
from bench.mounts.reading import GET, LIBRARY_PLAN, PLAN, RANDOM
from bench.papers.little_memory import ALL, LITTLE
from bench.papers.little_memory import JOB as IN_JOB
from bench.storage.servers import CLIENTS, COUNTS
from bench.storage.snapshot import node_count

RATE, BYTE_RATE, DURATION, ACCURACY = "units a second", "bytes a second", "seconds", "accuracy"
LOSS, LEVEL, ENTROPY = "mean squared error", "level by the equations", "entropy of the order"
LEVELS = "randomisation level"
"""A trial of `opportunistic_training`."""
PROCESSOR, PER_PROCESSOR = "processor seconds", "units a processor second"
"""Of all processes that take part and are counted."""
GROUP = "G = "
"""What precedes the group size in the name of a side of `accuracy`."""
BASE = ""
"""The side of a trial that its ratios refer to: the local file system, cp or dd."""


class Measure(NamedTuple):
    """A value of a side. `trial`: a pattern in its title; of several trials, the last one counts. `value`: RATE or one
    of its kind, or the name of something seen.
    """

    benchmark: str
    trial: str
    side: str
    value: str = RATE


class Ratio(NamedTuple):
    """A quotient of medians. `low`, `high`: the smallest and the largest quotient of any two rounds."""

    median: float
    low: float
    high: float


class Compared(NamedTuple):
    """What came out of a comparison. `here`: None if it was not measured. `spent`: processor seconds of both sides;
    `lacks`: the processors that it needs, if there are fewer. `is_share`: not a ratio of two sides.
    """

    what: str
    paper: float | None
    here: Ratio | None
    spent: str = ""
    lacks: int = 0
    is_share: bool = False


class Comparison(NamedTuple):
    """A ratio: `paper` (None if the paper prints no numbers), and here that of `ours` to `base`, or without a base
    `ours` itself, a share. `processors`: fewer cannot decide it, where readers, rivals, servers or nodes share them.
    """

    what: str
    paper: float | None
    ours: Measure
    base: Measure | None
    processors: int = 1


class Experiment(NamedTuple):
    """`where`: a figure or table, and the section whose text prints its numbers; `differs`: on one small machine."""

    where: str
    title: str
    differs: str
    comparisons: tuple[Comparison, ...]


_NODES_PROCESSORS = 16
"""A reader and a server on each of eight nodes."""
_SMALL, _LARGE = "of 4,096 bytes", "of 110,000 bytes"
_COLD = "{}, 4 readers, cold"
_INSIDE = "{}, in the reader's process, cold"
_LOSS, _LOADED, _ONE_BY_ONE = (f"nodes, .* {what}" for what in ("read once by", LOADED, "one by one"))
_RESIDENT = f"{_SMALL}, in the reader's process, resident, 4 readers"
_DATA_ACCESS = "data access, ms a step"

TABLE_2_MB_PER_S = {1: 33.54, 4: 128.28, 16: 464.44, 64: 1317.04, 256: 2725.93, 1024: 3104.26, 4096: 3197.68}
"""By the size of a file in KB."""


def _beside_files(size: str) -> tuple[Measure, Measure]:
    cold = _COLD.format(size)
    return Measure("reading", cold, PLAN), Measure("reading", cold, BASE)


def _library_beside_mount(size: str) -> tuple[Measure, Measure]:
    inside = _INSIDE.format(size)
    return Measure("reading", inside, f"{LIBRARY_PLAN}, get_many"), Measure("reading", inside, PLAN)


def _beside_memcached(trial: str, side: str = JOB) -> tuple[Measure, Measure, int]:
    return Measure("pool", trial, side), Measure("pool", trial, MEMCACHED), _NODES_PROCESSORS


def _after_loss(value: str) -> tuple[Measure, Measure]:
    killed = Measure("failover", "", next(iter(WAYS)), value)
    return killed, killed._replace(side="no node is lost")


def _beside_full_shuffle(storing: str, group: int) -> tuple[Measure, Measure]:
    full = Measure("accuracy", storing, f"{GROUP}0", ACCURACY)
    return full._replace(side=f"{GROUP}{group}"), full


def _trained(value: str) -> tuple[Measure, Measure]:
    files = Measure("paper_training", "", "files", value)
    return files._replace(side="dieselfs, mount"), files


_COLD_FILES = Measure("reading", _COLD.format(_SMALL), BASE)
_SIZED = Measure("read_sizes", "", "4 KB", BYTE_RATE)
_ALL_HITS = Measure("hit_ratios", "", side_of(100))
_ONE_NODE = Measure("snapshot", "by nodes", node_count(1))
_TEN_NODES = _ONE_NODE._replace(side=node_count(10))
_PUT = Measure("upload", _SMALL, "dieselfs")
_COPIED = _PUT._replace(side="cp -r, then sync")
_STAT = Measure("servers", "Redis: stat", "1 server")

EXPERIMENTS = (
    Experiment(
        "Table 2, section 4.2",
        "bandwidth of a store by the size of a read",
        "four readers and one virtual disk whose host caches it, not six machines with six NVMe disks each",
        tuple(
            Comparison(
                f"{size} KB : 4 KB",
                bandwidth / TABLE_2_MB_PER_S[4],
                _SIZED._replace(side=f"{size} KB"),
                _SIZED,
            )
            for size, bandwidth in TABLE_2_MB_PER_S.items()
            if size != 4
        ),
    ),
    Experiment(
        "Figure 6, section 4.2",
        "reading speed after the loss of a cache node, against before",
        "one node of memcached, not 20, and one reader; a miss is read from a local disk; the job has few nodes",
        (
            *(
                Comparison(
                    f"memcached, {hits} % hits : 100 %",
                    printed,
                    _ALL_HITS._replace(side=side_of(hits)),
                    _ALL_HITS,
                )
                for hits, printed in ((99, None), (95, 0.1), (90, None), (80, None), (0, None))
            ),
            Comparison("the cache of a job: another job", 1.0, *_after_loss("another job")),
            Comparison("the cache of a job: its lowest rate (there it ends)", 0.0, *_after_loss("lowest")),
        ),
    ),
    Experiment(
        "Figure 9, section 6.2",
        "files written a second",
        "one process; cp -r and a sync on a local file system, not 64 processes on Lustre; one node of memcached",
        (
            Comparison("4 KB, DIESEL : file system", 366.7, _PUT, _COPIED),
            Comparison(
                "4 KB, DIESEL : memcached",
                1.79,
                _PUT,
                Measure("pool", f"^1 node, .*{_SMALL}, {LOADED}", MEMCACHED),
            ),
            Comparison(
                "128 KB, DIESEL : file system",
                127.3,
                _PUT._replace(trial=_LARGE),
                _COPIED._replace(trial=_LARGE),
            ),
            Comparison(
                "128 KB, DIESEL : memcached",
                17.3,
                _PUT._replace(trial=_LARGE),
                Measure("pool", f"^1 node, .*{_LARGE}, {LOADED}", MEMCACHED),
            ),
        ),
    ),
    Experiment(
        "Figure 10, section 6.3",
        "metadata requests a second, listings",
        "servers and clients share the processors; one Python thread looks up; a local file system instead of Lustre",
        (
            *(
                Comparison(
                    f"10a: {count} servers : 1 server, over Redis",
                    None,
                    _STAT._replace(side=f"{count} servers"),
                    _STAT,
                    count + CLIENTS,
                )
                for count in COUNTS[1:]
            ),
            Comparison(
                "10b: snapshot on one node : requests to the server",
                8.83e6 / 68_000,
                Measure("snapshot", "^Snapshot", "stat, one path a call"),
                _STAT,
            ),
            Comparison("10b: snapshot, 10 nodes : 1 node", 88.77 / 8.83, _TEN_NODES, _ONE_NODE, 10),
            Comparison(
                "10b: as before, for each processor second (linear: 1)",
                88.77 / 8.83 / 10,
                _TEN_NODES._replace(value=PER_PROCESSOR),
                _ONE_NODE._replace(value=PER_PROCESSOR),
            ),
            Comparison(
                "10c: ls -R, DIESEL-FUSE : file system (both 30 to 40 s)",
                1.0,
                Measure("listing", "^ls -R .*cold", "mount"),
                Measure("listing", "^ls -R .*cold", BASE),
            ),
            Comparison(
                "10c: ls -lR (170 s, DIESEL-FUSE as for ls -R)",
                170 / 35,
                Measure("listing", "^ls -lR .*cold", "mount"),
                Measure("listing", "^ls -lR .*cold", BASE),
            ),
        ),
    ),
    Experiment(
        "Figure 11, section 6.4",
        "a cache in the memory of the nodes",
        "nodes are network namespaces of one machine, not ten; the recovery fetches the share of one lost node",
        (
            Comparison("11a: DIESEL-API : memcached, 4 KB", 1.2e6 / 560e3, *_beside_memcached(_ONE_BY_ONE)),
            Comparison(
                "11a: as before, by a library that has read its files",
                1.2e6 / 560e3,
                *_beside_memcached(_ONE_BY_ONE, JOB_AGAIN),
            ),
            Comparison(
                "11a: DIESEL-FUSE : DIESEL-API",
                800e3 / 1.2e6,
                Measure("reading", f"{_SMALL}, 4 readers, warm", RANDOM),
                Measure("reading", _RESIDENT, GET),
            ),
            Comparison(
                "11a: DIESEL-API : file system",
                1.2e6 / 40e3,
                Measure("pool", _ONE_BY_ONE, JOB),
                _COLD_FILES,
                _NODES_PROCESSORS,
            ),
            Comparison(
                "11b: loading, DIESEL : memcached (all in 10 s, a fifth in 100 s)",
                5 * 100 / 10,
                *_beside_memcached(_LOADED),
            ),
            Comparison("11b: recovery, DIESEL : memcached", 100 / 10, *_beside_memcached(_LOSS)),
        ),
    ),
    Experiment(
        "Figure 12, section 6.5",
        "reading in chunk-wise order, cold",
        "one or four readers and a local file system, not 160 and Lustre; 110 kB; memory for an eighth",
        (
            Comparison("4 KB, DIESEL-FUSE : file system", 3483.7 / 60.2, *_beside_files(_SMALL)),
            Comparison("4 KB, DIESEL-API : DIESEL-FUSE", 4317 / 3483.7, *_library_beside_mount(_SMALL)),
            Comparison("128 KB, DIESEL-FUSE : file system", 8712.5 / 2001.8, *_beside_files(_LARGE)),
            Comparison("128 KB, DIESEL-API : DIESEL-FUSE", 10095.3 / 8712.5, *_library_beside_mount(_LARGE)),
            Comparison(
                "4 KB, DIESEL-API: memory for a part : all in the memory of a job",
                0.8812,
                Measure("little_memory", "", LITTLE),
                Measure("little_memory", "", IN_JOB),
            ),
            Comparison(
                "4 KB, DIESEL-API: memory for a part : all in the own memory",
                None,
                Measure("little_memory", "", LITTLE),
                Measure("little_memory", "", ALL),
            ),
        ),
    ),
    Experiment(
        "Figure 13, section 6.5",
        "accuracy in chunk-wise order, against the full shuffle",
        "a small network and 1,797 digits, not ResNets on CIFAR-10 and ImageNet; groups of 15 and 30 chunks, as there",
        tuple(
            Comparison(f"{storing}, G = {group}", 1.0, *_beside_full_shuffle(storing, group))
            for storing in ("stored in mixed order", "stored class by class")
            for group in (15, 30)
        ),
    ),
    Experiment(
        "Figure 14, section 6.6",
        "time that a step waits for its images, mount against files",
        "a narrow ResNet-18 on a processor and a local file system, not 32 GPUs and Lustre; two epochs",
        (Comparison("data access, DIESEL-FUSE : file system", 0.5, *_trained(_DATA_ACCESS)),),
    ),
    Experiment(
        "Figure 15, section 6.6",
        "time of a whole training, mount against files",
        "as for figure 14; the processor computes and reads at once, so reading takes time from computing",
        (Comparison("total, DIESEL-FUSE : file system (0.73 to 0.85)", 0.79, *_trained(DURATION)),),
    ),
)
