"""Lists of what readers will read: how they reach other processes, and what is followed in them."""

import multiprocessing
import os
import pickle  # noqa: TID251  # as loaders send datasets to their workers
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dieselfs.arrays import Nodes
from dieselfs.samples.mixture import Mixture
from dieselfs.samples.order import SamplePlaces
from dieselfs.samples.reading_list import Listed, Reading, ReadingList, announce, loader_worker
from dieselfs.samples.sampler_state import SamplerState
from dieselfs.samples.source import LibrarySource
from dieselfs.shuffle.plan import Share
from tests.support.dataset import TreeEntry, pack_entries

FILES = 24
PACKED = pack_entries(
    [TreeEntry(b"f/%02d" % n, 0o100644, 0, b"x" * 10) for n in range(FILES)], chunk_bytes=60
)
NODES: Nodes = np.array([PACKED.snapshot.require(b"f/%02d" % n) for n in range(FILES)], np.uint32)


class Data:
    """The part of a dataset that a source uses; records what is followed: the files to come, and whether by reads."""

    def __init__(self) -> None:
        self.snapshot, self.fetches_next = PACKED.snapshot, 0
        self.followed: list[tuple[list[int], bool]] = []
        self.look_ahead = SimpleNamespace(follow=self._follow, fetches=0)

    def _follow(self, share: Share, position: int, is_reader: bool) -> None:
        self.followed.append((share.nodes()[position:].tolist(), is_reader))

    def get_nodes(self, nodes: Any, is_shared_plan: bool) -> list[bytes]:
        self.look_ahead.fetches += self.fetches_next
        return [b""] * len(nodes)

    def __reduce__(self) -> tuple[type["Data"], tuple[()]]:
        return Data, ()

    def taken(self) -> list[tuple[list[int], bool]]:
        taken, self.followed = self.followed, []
        return taken


def places() -> tuple[SamplePlaces, Data]:
    data: Any = Data()
    return SamplePlaces(LibrarySource(data), b"f", NODES), data


def listed(ends: list[int], is_tracked: bool = False) -> Listed:
    return Listed(NODES[: ends[-1]], np.array(ends, np.int64), is_tracked)


# -- lists in shared memory ----------------------------------------------------------------------------------


def test_the_steps_of_a_worker() -> None:
    found = listed([2, 5, 6, 9])
    assert found.of_worker(0, 1).tolist() == NODES[:9].tolist()
    assert found.of_worker(0, 2).tolist() == NODES[[0, 1, 5]].tolist()
    assert found.of_worker(1, 2).tolist() == NODES[[2, 3, 4, 6, 7, 8]].tolist()
    assert found.of_worker(2, 3).tolist() == NODES[[5]].tolist()


def test_another_process_reads_the_newest_list() -> None:
    own = ReadingList()
    other = pickle.loads(pickle.dumps(own))
    assert other.version == 0 and other.read() is None
    for ends, is_tracked in (([4, 9], True), ([3], False), ([2, 12, 24], True)):
        own.publish(listed(ends, is_tracked))
        found = other.read()
        assert found is not None and other.version == own.version
        assert found.nodes.tolist() == NODES[: ends[-1]].tolist() and found.ends.tolist() == ends
        assert found.is_tracked == other.is_tracked == is_tracked
    other.publish(listed([1]))
    assert other.read().ends.tolist() == [2, 12, 24], "another process changes nothing"


def test_a_list_that_is_being_changed_is_left_out() -> None:
    own = ReadingList()
    own.publish(listed([4]))
    own._head[0] += 1
    assert own.read() is None
    own._head[0] += 1
    assert own.read() is not None


def test_the_list_of_a_process_that_has_ended_is_empty() -> None:
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(pickle.dumps(ReadingList())))
    process.start()
    content = mine.recv()
    process.join()
    assert pickle.loads(content).read() is None


# -- places ----------------------------------------------------------------------------------------------------


def test_places_of_reads() -> None:
    files = NODES[[3, 1, 4, 1, 5, 9, 2, 6]]
    reading = Reading(PACKED.snapshot, files)
    assert reading.place(files[:2].tolist()) == 0
    assert reading.place(files[4:6].tolist()) == 4, "a batch was left out"
    assert reading.place(files[2:4].tolist()) == 2, "threads overtake each other"
    assert reading.place([int(NODES[1])]) == 3, "of equal files the nearest"
    assert reading.place([int(NODES[20])]) is None
    assert reading.place([]) is None
    assert reading.place(files[6:].tolist()) == 6


def test_a_process_that_is_no_worker() -> None:
    assert loader_worker() is None


# -- what is announced -----------------------------------------------------------------------------------------


def test_steps_that_are_handed_out_one_by_one() -> None:
    samples, data = places()
    taken = announce(samples, np.arange(9), np.array([2, 5, 9]), False, 0, 1)
    for step, start in enumerate((0, 2, 5)):
        taken[0](step)
        assert data.taken() == [(NODES[start:9].tolist(), False)]
    samples.source.read_many(NODES[5:7].tolist())
    assert data.taken() == [], "the sampler tells where readers are"
    taken[0](2)
    assert data.taken() == [(NODES[5:9].tolist(), True)]


def test_steps_of_a_worker_that_hands_them_out_itself() -> None:
    samples, data = places()
    taken = announce(samples, np.arange(9), np.array([2, 5, 6, 9]), False, 1, 2)
    for step in range(4):
        taken[0](step)
    own = NODES[[2, 3, 4, 6, 7, 8]].tolist()
    assert [files for files, _ in data.taken()] == [own, own, own[3:], own[3:]]


def test_reads_are_followed_if_all_steps_are_handed_out_at_once() -> None:
    samples, data = places()
    sampler = SamplerState(samples, 4, seed=3, rank=0, world=1)
    steps = sampler.listed_steps()
    order = [index for _, indices in steps for index in indices]
    assert data.taken() == []
    for start in (0, 8, 4):
        samples.source.read_many(NODES[order[start : start + 4]].tolist())
        assert data.taken() == [(NODES[order[start:]].tolist(), True)]


@pytest.mark.parametrize("is_tracked", [True, False])
def test_workers_of_a_loader_follow_what_nobody_loads_for_them(
    is_tracked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, _ = places()
    announce(samples, np.arange(12), np.array([3, 6, 9, 12]), is_tracked, 0, 1)
    source: Any = pickle.loads(pickle.dumps(samples.source))
    data = source.dataset = Data()
    monkeypatch.setattr("dieselfs.samples.source.loader_worker", lambda: (1, 2))
    source.read_many(NODES[3:6].tolist())
    own = NODES[[3, 4, 5, 9, 10, 11]].tolist()
    assert data.taken() == ([(own, True)] if is_tracked else []), "all may be in the memory of the node"
    data.fetches_next = 3
    source.read_many(NODES[9:12].tolist())
    assert data.taken() == [(own[3:] if is_tracked else [], True)], "what is left after the first fetch"
    source.read_many(NODES[9:12].tolist())
    assert data.taken() == [(own[3:], True)]
    announce(samples, np.arange(12, 24), np.array([6, 12]), is_tracked, 0, 1)
    source.read_many(NODES[18:21].tolist())
    assert data.taken() == [(NODES[18:24].tolist(), True)], "the next epoch, with persistent workers"


def test_a_process_that_is_no_worker_follows_nothing() -> None:
    samples, _ = places()
    announce(samples, np.arange(12), np.array([6, 12]), True, 0, 1)
    source: Any = pickle.loads(pickle.dumps(samples.source))
    data = source.dataset = Data()
    source.read_many(NODES[:6].tolist())
    assert data.taken() == []


def test_a_mixture_lists_all_passes_of_each_source() -> None:
    (first, of_first), (second, of_second) = places(), places()
    mixture = Mixture([first, second.subset(range(6))], [1, 3], 24)  # 18 of the second: three passes
    sampler = SamplerState(mixture, 5, seed=1, group_chunks=2, rank=1, world=2)
    read: dict[int, list[int]] = {0: [], 1: []}
    ahead: dict[int, list[list[int]]] = {0: [], 1: []}
    for _, indices in sampler.steps(0):
        for part, data in enumerate((of_first, of_second)):
            found = data.taken()
            ahead[part] += [files for files, _ in found] or [[]]
            read[part] += [int(NODES[index % FILES]) for index in indices if index // FILES == part]
    for part in read:
        assert ahead[part][0] == read[part] and len(read[part]) > 2
        assert all(read[part][len(read[part]) - len(files) :] == files for files in ahead[part])
    assert len(read[1]) > 6, "more than a pass"


def test_parts_of_one_source_have_one_list() -> None:
    samples, data = places()
    mixture = Mixture([samples.subset(range(12)), samples.subset(range(12, 24))])
    order = np.array([0, 13, 1, 12, 5, 20])
    (tell,) = announce(mixture, order, np.array([3, 6]), False, 0, 1)
    tell(1)
    assert data.taken() == [(NODES[order[3:]].tolist(), False)]


def test_lists_pickle_with_their_source_and_do_not_keep_it_alive() -> None:
    samples, _ = places()
    before = len(os.listdir("/proc/self/fd"))
    copies = [pickle.loads(pickle.dumps(samples.source)) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) > before
    del copies
    assert len(os.listdir("/proc/self/fd")) == before
