"""Hostile snapshots: columns altered, all digests and the digest right. There must be one way to read what passes."""

import random
from contextlib import suppress
from itertools import islice

import numpy as np
import pytest

from dieselfs.errors import Damaged, NotFound
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX
from dieselfs.names import check_path
from dieselfs.snapshot import check
from dieselfs.snapshot.format import SECTION_TYPES
from dieselfs.snapshot.reader import Snapshot
from tests.support.decoders import refused
from tests.support.snapshots import SAMPLE, SOURCE, snapshot_bytes, with_columns, with_element


@pytest.fixture(params=[1, 3, check.BLOCK_NODES], autouse=True)
def block_nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "BLOCK_NODES", request.param)


DATA = snapshot_bytes(SAMPLE)
NODES = [
    b"",
    b"latest",
    b"test",
    b"train",
    b"test/dog.txt",
    b"train/cat.txt",
    b"train/empty",
    b"train/video.mp4",
]
ROOT, LATEST, TEST, TRAIN, DOG, CAT, EMPTY, VIDEO = range(8)
HUGE = (1 << 64) - 1
HUGE_32 = (1 << 32) - 1


def decode(data: bytes) -> None:
    Snapshot(data, SOURCE).verify()


def test_the_sample_is_numbered_as_these_tests_assume() -> None:
    snapshot = Snapshot(DATA, SOURCE)
    assert [snapshot.path(node) for node in range(len(snapshot))] == NODES
    assert with_columns(DATA) == DATA


def with_bytes(column: str, text: bytes) -> bytes:
    return with_columns(DATA, **{column: np.frombuffer(text, np.uint8)})


def with_paths(*paths: bytes) -> bytes:
    """The sample with other paths; name lengths to fit."""
    return with_columns(
        DATA,
        paths=np.frombuffer(b"".join(paths), np.uint8),
        path_ends=np.cumsum([len(path) for path in paths]),
        name_lengths=np.array([len(path.rpartition(b"/")[2]) for path in paths]),
    )


def moved(path: bytes, other: bytes) -> bytes:
    return with_paths(*(other if each == path else each for each in NODES))


HOSTILE: dict[str, tuple[str, bytes]] = {
    "ends not ascending": ("path_ends", with_element(DATA, "path_ends", TEST, 0)),
    "ends past the end": ("path_ends", with_element(DATA, "path_ends", VIDEO, 1000)),
    "ends huge": ("path_ends", with_element(DATA, "path_ends", VIDEO, HUGE)),
    "the root has a name": ("path_ends", with_element(DATA, "path_ends", ROOT, 1)),
    "a node has no name": ("path_ends", with_element(DATA, "path_ends", LATEST, 0)),
    "path with NUL": ("paths", moved(b"latest", b"la\0est")),
    "path ..": ("paths", moved(b"latest", b"..")),
    "path with .. inside": ("paths", moved(b"train/cat.txt", b"train/../x")),
    "path with an empty part": ("paths", moved(b"train/cat.txt", b"train//cat")),
    "path with a leading slash": ("paths", moved(b"latest", b"/latest")),
    "path in another folder": ("paths", moved(b"train/cat.txt", b"trail/cat.txt")),
    "path deeper than its folder": ("paths", moved(b"train/cat.txt", b"train/cat/txt")),
    "path less deep than its folder": ("paths", moved(b"train/cat.txt", b"traincat.txt")),
    "two nodes of one path": ("paths", moved(b"train/empty", b"train/cat.txt")),
    "names not ascending": ("paths", moved(b"train/cat.txt", b"train/fat.txt")),
    "name too short": ("name_lengths", with_element(DATA, "name_lengths", CAT, 6)),
    "name with a slash": ("name_lengths", with_element(DATA, "name_lengths", CAT, 13)),
    "name longer than its path": ("name_lengths", with_element(DATA, "name_lengths", LATEST, 255)),
    "the root in a folder": ("parents", with_element(DATA, "parents", ROOT, 3)),
    "node in another folder": ("parents", with_element(DATA, "parents", CAT, TEST)),
    "node in a file": ("parents", with_element(DATA, "parents", CAT, DOG)),
    "node in itself": ("parents", with_element(DATA, "parents", TEST, TEST)),
    "parent huge": ("parents", with_element(DATA, "parents", CAT, HUGE_32)),
    "no type": ("modes", with_element(DATA, "modes", CAT, 0o644)),
    "device": ("modes", with_element(DATA, "modes", CAT, 0o020644)),
    "type and more": ("modes", with_element(DATA, "modes", CAT, 0o1_100644)),
    "the root a file": ("modes", with_element(DATA, "modes", ROOT, 0o100644)),
    "file as a link": ("modes", with_element(DATA, "modes", EMPTY, 0o120777)),
    "file as a folder": ("firsts", with_element(DATA, "modes", EMPTY, 0o040755)),
    "folder as a file": ("counts", with_element(DATA, "modes", TEST, 0o100644)),
    "folder that begins at itself": ("firsts", with_element(DATA, "firsts", TRAIN, TRAIN)),
    "folder that begins at the root": ("firsts", with_element(DATA, "firsts", TRAIN, ROOT)),
    "folder that begins huge": ("firsts", with_element(DATA, "firsts", TRAIN, HUGE_32)),
    "folder of too many": ("counts", with_element(DATA, "counts", TRAIN, 4)),
    "folder of too few": ("counts", with_element(DATA, "counts", TRAIN, 2)),
    "folder of very many": ("counts", with_element(DATA, "counts", TRAIN, HUGE_32)),
    "folder with a size": ("sizes", with_element(DATA, "sizes", TRAIN, 1)),
    "file longer than its extents": ("sizes", with_element(DATA, "sizes", CAT, 6)),
    "file shorter than its extents": ("sizes", with_element(DATA, "sizes", CAT, 4)),
    "file without extents with a size": ("sizes", with_element(DATA, "sizes", EMPTY, 1)),
    "file of huge size": ("sizes", with_element(DATA, "sizes", CAT, HUGE)),
    "file of too many extents": ("counts", with_element(DATA, "counts", CAT, 2)),
    "file of another's extents": ("firsts", with_element(DATA, "firsts", CAT, 0)),
    "link with extents": ("counts", with_element(DATA, "counts", LATEST, 1)),
    "extent in no chunk": ("extent_chunks", with_element(DATA, "extent_chunks", 0, 2)),
    "extent past its chunk": ("extent_offsets", with_element(DATA, "extent_offsets", 0, 1 << 16)),
    "extent at the far end": ("extent_offsets", with_element(DATA, "extent_offsets", 0, HUGE_32)),
    "extent too long": ("extent_offsets", with_element(DATA, "extent_lengths", 0, HUGE_32)),
    "extent longer than its file": ("sizes", with_element(DATA, "extent_lengths", 1, 6)),
    "extent empty": ("extent_lengths", with_element(DATA, "extent_lengths", 1, 0)),
    "extent with a gap before": ("extent_places", with_element(DATA, "extent_places", 3, 101)),
    "extent over another": ("extent_places", with_element(DATA, "extent_places", 3, 99)),
    "extent at a huge place": ("extent_places", with_element(DATA, "extent_places", 3, HUGE)),
    "chunk too large": (
        "chunk_payload_lengths",
        with_element(DATA, "chunk_payload_lengths", 0, CHUNK_PAYLOAD_BYTES_MAX + 1),
    ),
    "chunk too small": ("extent_offsets", with_element(DATA, "chunk_payload_lengths", 0, 104)),
    "chunks not ascending": ("chunk_ids", with_element(DATA, "chunk_ids", 0, 1)),
    "one chunk twice": ("chunk_ids", with_element(DATA, "chunk_ids", 31, 1)),
    "link that is none": ("link_nodes", with_element(DATA, "link_nodes", 0, CAT)),
    "target past the end": ("link_ends", with_element(DATA, "link_ends", 0, 14)),
    "target of no bytes": ("link_ends", with_bytes("links", b"")),
    "target with NUL": ("links", with_bytes("links", b"train\0cat.txt")),
    "target of another length": ("sizes", with_element(DATA, "sizes", LATEST, 12)),
    "slot of no node": ("hash_slots", with_element(DATA, "hash_slots", 0, 9)),
    "slot taken at the end": ("hash_slots", with_element(DATA, "hash_slots", -1, 1)),
    "slots all free": ("hash_slots", with_columns(DATA, hash_slots=np.zeros(17, np.uint64))),
    "slots all of one node": ("hash_slots", with_columns(DATA, hash_slots=np.ones(17, np.uint64))),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_columns_that_cannot_be(case: str) -> None:
    section, data = HOSTILE[case]
    offset = Snapshot(data, SOURCE).header.sections[section].offset
    message = refused(decode, data, SOURCE)
    assert message.startswith(f"snapshot 7: offset {offset}: column {section!r}: "), message


def exercise(snapshot: Snapshot) -> None:
    """Ask for everything that a mount or a reader may ask for."""
    payloads = [snapshot.chunk_payload_length(chunk) for chunk in range(snapshot.chunk_count)]
    for node in islice(snapshot.walk(), 100):
        path = snapshot.path(node)
        assert len(snapshot.name(node)) <= 255
        snapshot.parent(node)
        snapshot.find(path)
        snapshot.find(b"other")
        list(islice(snapshot.children(node), 100))
        said = snapshot.stat(node)
        if said.is_link:
            snapshot.target(node)
        for extent in snapshot.extents(node, 0, 10) + snapshot.extents(node):
            snapshot.chunk_id(extent.chunk)
            assert payloads[extent.chunk] >= 0
    for path in NODES:
        node = snapshot.find(path)
        assert node == -1 or snapshot.path(node) == path


def mutated(chance: random.Random) -> bytes:
    """The sample with one to three elements of its columns changed."""
    data = DATA
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(list(SECTION_TYPES))
        column = Snapshot(data, SOURCE).column(name)
        limit = 1 << (63 if name == "mtimes_ns" else 8 * column.itemsize)
        value = (
            chance.choice([0, 1, 2, 7, 8, 9, 100, limit // 2, limit - 2, limit - 1, chance.randrange(limit)])
            % limit
        )
        data = with_element(data, name, chance.randrange(len(column)), value)
    return data


def test_mutated_columns_are_refused_or_harmless() -> None:
    """What verify lets pass shows the whole tree, consistently. What it refuses does no harm either."""
    chance = random.Random(20_240_302)
    refusals = 0
    for _ in range(4_000):
        snapshot = Snapshot(mutated(chance), SOURCE)
        try:
            snapshot.verify()
        except Damaged as error:
            assert str(error).startswith("snapshot 7: offset ")
            refusals += 1
            with suppress(IndexError, NotFound, AssertionError):
                exercise(snapshot)
        else:
            exercise(snapshot)
            assert sorted(snapshot.walk()) == list(range(1, len(NODES)))
            for node in snapshot.walk():
                folder = snapshot.path(snapshot.parent(node))
                assert snapshot.path(node) == (folder + b"/" if folder else b"") + snapshot.name(node)
                assert check_path(snapshot.path(node))
                assert snapshot.size(node) == sum(extent.length for extent in snapshot.extents(node)) + (
                    len(snapshot.target(node)) if snapshot.stat(node).is_link else 0
                )
    assert 3_000 < refusals < 4_000
