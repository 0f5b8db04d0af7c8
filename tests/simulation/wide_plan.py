"""What a seed means for tags, pins, leases, quotas, copies, drops and attached files: the steps of their clients. No
I/O.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SHARE = 0.3
"""Of all seeds that have a kind of these steps."""
FILES = (8, 12, 20)
BYTES = (15_000, 40_000, 200_000)

Add = Callable[..., None]
"""Adds a step: actor, kind, arguments."""


@dataclass(frozen=True)
class Quota:
    """The first quota of the dataset."""

    files: int
    stored_bytes: int


def add_wide_steps(source: random.Random, add: Add) -> Quota | None:
    """Add steps; returns the quota that is set before them, if there is one."""
    for kind in (_tags, _pins, _leases, _copies, _drops, _maintenance):
        if source.random() < SHARE:
            kind(source, add)
    if source.random() >= SHARE:
        return None
    for _ in range(source.randint(1, 3)):
        add("quotas", "usage")
        add("quotas", "quota", source.choice(FILES), source.choice(BYTES))
        add("quotas", "usage")
    return Quota(source.choice(FILES), source.choice(BYTES))


def add_exchange_steps(source: random.Random, writer: str, paths: Sequence[bytes], add: Add) -> str:
    """Add steps that reach beyond the dataset. `paths`: those of the writer. Returns the account of the quota."""
    if source.random() < SHARE:
        _copies_elsewhere(source, writer, paths, add)
    if source.random() < SHARE:
        _attached(source, add)
    return source.choice(["dataset:data", "user:admin"])


def add_repacks(source: random.Random, add: Add) -> None:
    """Into chunks of a file, of a few, and of all."""
    if source.random() < SHARE:
        for _ in range(source.randint(1, 4)):
            add("repacker", "repack", source.choice([40, 1000, 1_000_000]))


def _copies_elsewhere(source: random.Random, writer: str, paths: Sequence[bytes], add: Add) -> None:
    for _ in range(source.randint(1, 4)):
        add("exporter", "copy elsewhere", source.choice([b"a", b"b", b"c"]))
    if source.random() < 0.5:
        add(writer, "move elsewhere", source.choice(paths))
    for _ in range(source.randint(1, 3)):
        add("visitor", "read elsewhere")


def _attached(source: random.Random, add: Add) -> None:
    """Files that may be kept before their objects are replaced, or after that."""
    for _ in range(source.randint(1, 4)):
        numbers = source.sample(range(4), source.randint(1, 3))
        add("attacher", "attach", [(b"t/%d" % number, source.choice((1, 40, 3000))) for number in numbers])
    kinds = ["keep attached", "replace objects", "read attached"]
    for kind in source.sample(kinds, source.randint(1, len(kinds))):
        add("attacher", kind)
    for _ in range(source.randint(1, 4)):
        add("auditor", "read attached")


def _tags(source: random.Random, add: Add) -> None:
    """Two clients take names from the same few."""
    names = [f"v{number}" for number in range(source.randint(1, 3))]
    for tagger in ("tagger0", "tagger1"):
        for _ in range(source.randint(1, 4)):
            add(tagger, source.choice(["tag", "tag", "read tag"]), source.choice(names))
    if source.random() < 0.3:
        add("tagger0", "untag", source.choice(names))


def _pins(source: random.Random, add: Add) -> None:
    for holder in range(source.randint(1, 2)):
        for _ in range(source.randint(1, 2)):
            lease_s, rounds = source.choice([10, 60, 300]), source.randint(1, 6)
            add(f"holder{holder}", "pin", lease_s, rounds, source.random() < 0.5)


def _leases(source: random.Random, add: Add) -> None:
    """Each node has a master; some get another one while the first lives."""
    nodes = source.randint(2, 4)
    for member in range(nodes + source.randint(0, 2)):
        for _ in range(source.randint(1, 2)):
            node = f"n{member % nodes}"
            add(f"member{member}", "lease", node, source.randint(5, 60), source.random() < 0.5)


def _copies(source: random.Random, add: Add) -> None:
    for _ in range(source.randint(1, 4)):
        add("copier", "copy", source.choice([b"a", b"b", b"c"]))
    for _ in range(source.randint(0, 3)):
        add("sharer", "share", source.choice([b"a", b"b", b"c"]))


def _maintenance(source: random.Random, add: Add) -> None:
    """By a second administrator, beside the first one."""
    for _ in range(source.randint(1, 4)):
        add("admin1", source.choice(["purge", "purge", "rebuild", "fsck"]))


def _drops(source: random.Random, add: Add) -> None:
    for _ in range(source.randint(1, 3)):
        for _ in range(source.randint(1, 2)):
            numbers = source.sample(range(4), source.randint(1, 3))
            add("maker", "make", [(b"s/%d" % number, source.choice((1, 40, 3000))) for number in numbers])
        add("maker", "drop")
    if source.random() < 0.5:
        add("maker", "make", [(b"s/0", 40)])
    for _ in range(source.randint(2, 6)):
        add("looker", "read scratch")
