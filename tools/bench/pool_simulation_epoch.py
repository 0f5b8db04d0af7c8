"""What the nodes of a job ask each other for, span by span of a plan, from the real code: the order of the files, how
they are dealt out, and whose each chunk is.

What is simulated: a dataset of files of one size, and what links and processors would need. Of an epoch a few groups
are looked at; all others are like them.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.job_simulation import chunk_ids, members_of
from dieselfs.cache.placement import Placement
from dieselfs.limits import CHUNK_TARGET_BYTES, PEER_BATCH_BYTES
from dieselfs.shuffle.deal import Deal
from dieselfs.shuffle.order import DEFAULT_GROUP_CHUNKS, Layout, Order
from dieselfs_client.memory import SPAN_BYTES

Numbers = npt.NDArray[np.int64]

BATCH_FILES = 32
"""Of one step, for each node."""
FILES_MAX = 4_000_000
"""In all spans that are looked at, unless one has more."""
SPANS_MAX = 8
READ_BYTES_PER_S = 200_000_000
"""What each node reads for its training, as 1,800 images of 110 KB."""
ASKING_S, ANSWERING_S = 0.000_13, 0.000_19
"""Processor time of one request for a piece of 4 KB on its two sides, as measured over loopback."""


@dataclass(frozen=True, slots=True)
class GroupShares:
    """The files of one group, in the order of the plan: who reads each, in which chunk it is, and who owns that."""

    readers: Numbers
    chunks: Numbers
    owners: Numbers


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one node and one span, as means over the nodes but where it says otherwise; what a node reads of its own
    chunks is not counted. `chunks`: of how many it gets something. `busiest` is in relation to the mean: the most that
    one node has to send. `order_share`: of a core, to find what it reads.
    """

    nodes: int
    groups: int
    file_bytes: int
    share_bytes: float
    chunks: float
    requests: float
    request_bytes: float
    requests_per_s: float
    sent_bytes_per_s: float
    busiest: float
    processor_share: float
    order_share: float


def order_of(
    nodes: int, group_chunks: int, file_bytes: int, groups: int, seed: int = 1
) -> tuple[Order, Numbers]:
    """The order of an epoch of so many groups; and who owns each of their chunks, of so many nodes."""
    files_per_chunk = CHUNK_TARGET_BYTES // file_bytes
    ids = chunk_ids(groups * group_chunks)
    files = np.arange(len(ids) * files_per_chunk, dtype=np.uint32)
    layout = Layout(ids.view(">u8").astype(np.uint64), files, np.repeat(np.arange(len(ids)), files_per_chunk))
    return Order(layout, seed, 0, group_chunks), Placement(members_of(nodes)).owners(ids).astype(np.int64)


def group_shares(
    nodes: int, group_chunks: int, file_bytes: int, together: int = 1, seed: int = 1
) -> Iterator[GroupShares]:
    """Some groups of an epoch that all nodes read together: a multiple of `together`."""
    files_per_chunk = CHUNK_TARGET_BYTES // file_bytes
    spans = min(max(FILES_MAX // (together * group_chunks * files_per_chunk), 1), SPANS_MAX)
    groups = spans * together
    order, of_chunk = order_of(nodes, group_chunks, file_bytes, groups, seed)
    deals = [
        Deal(int(order.bounds[-1]), rank=rank, world=nodes, batch=BATCH_FILES * nodes)
        for rank in range(nodes)
    ]
    for group in range(order.group_count):
        first, end = order.bounds[group : group + 2].tolist()
        readers = np.empty(end - first, np.int64)
        for rank, deal in enumerate(deals):
            readers[deal.positions(deal.count_before(first), deal.count_before(end)) - first] = rank
        chunks = order.nodes(group, group + 1).astype(np.int64) // files_per_chunk
        yield GroupShares(readers, chunks, of_chunk[chunks])


def groups_together(nodes: int, group_chunks: int = DEFAULT_GROUP_CHUNKS) -> int:
    """How many groups a node has fetched together, if its memory has the room."""
    return max(SPAN_BYTES * nodes // (group_chunks * CHUNK_TARGET_BYTES), 1)


def traffic(nodes: int, file_bytes: int, groups: int, group_chunks: int = DEFAULT_GROUP_CHUNKS) -> Traffic:
    """How much nodes ask each other for while they read at READ_BYTES_PER_S, and fetch so many groups together."""
    spans: list[Numbers] = []
    chunks = 0
    for place, shares in enumerate(group_shares(nodes, group_chunks, file_bytes, groups)):
        if place % groups == 0:
            spans.append(np.zeros((nodes, nodes), np.int64))
        pairs = shares.readers * nodes + shares.owners
        spans[-1] += np.bincount(pairs, minlength=nodes * nodes).reshape(nodes, nodes) * file_bytes
        is_other = shares.readers != shares.owners
        chunks += len(np.unique(np.stack([shares.readers, shares.chunks])[:, is_other], axis=1).T)
    asked_bytes = np.array(spans)
    asked_bytes[:, range(nodes), range(nodes)] = 0
    requests = -(-asked_bytes // PEER_BATCH_BYTES)
    share_bytes = groups * group_chunks * CHUNK_TARGET_BYTES / nodes
    spans_per_s = READ_BYTES_PER_S / share_bytes
    requests_each = float(requests.sum()) / nodes / len(spans)
    sent_bytes = asked_bytes.sum(axis=1)
    return Traffic(
        nodes,
        groups,
        file_bytes,
        share_bytes,
        chunks / nodes / len(spans),
        requests_each,
        float(asked_bytes.sum() / requests.sum()),
        requests_each * spans_per_s,
        float(sent_bytes.mean() * spans_per_s),
        float((sent_bytes.max(axis=1) / sent_bytes.mean(axis=1)).mean()),
        requests_each * spans_per_s * (ASKING_S + ANSWERING_S),
        _order_s(nodes, group_chunks, file_bytes) * groups * spans_per_s,
    )


def _order_s(nodes: int, group_chunks: int, file_bytes: int) -> float:
    """Processor time to find what one node reads of one group: the best of a few, as others are at work."""
    order, _ = order_of(1, group_chunks, file_bytes, 1)
    places = Deal(int(order.bounds[1]), rank=0, world=nodes, batch=BATCH_FILES * nodes).positions()
    times_s = []
    for _ in range(5):
        began_s = time.process_time()
        order.nodes_at(0, places)
        times_s.append(time.process_time() - began_s)
    return min(times_s)
