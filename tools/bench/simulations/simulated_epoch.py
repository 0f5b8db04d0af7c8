"""The requests between the nodes of a job under a plan: the real order, partition and placement.

Simulated: a dataset of files of one size, and the cost on links and processors. A few groups represent an epoch.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bench.harness.figures import Row
from bench.simulations.job_simulation import chunk_ids, members_of
from dieselfs.arrays import Numbers
from dieselfs.cluster.placement import Placement
from dieselfs.cluster.pooled_source import PEER_BATCH_BYTES
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.shuffle.order import Layout, Order
from dieselfs.shuffle.partition import Partition
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs_client.memory.budget import SPAN_BYTES

GROUP_CHUNKS = 100
"""As in the DIESEL paper."""
BATCH_FILES = 32
"""Of one step and node."""
FILES_MAX = 4_000_000
"""In all simulated spans, unless one has more."""
SPANS_MAX = 8
READ_BYTES_PER_S = 200_000_000
"""Of each node, as 1,800 images of 110 KB."""
ASKING_S, ANSWERING_S = 0.000_13, 0.000_19
"""Processor time of one request for an extent of 4 KB on its two sides, measured over loopback."""


class GroupShares(NamedTuple):
    """Of each file of one group, in plan order: rank of the reader, chunk, rank of the owner. Shape (files,)."""

    readers: Numbers
    chunks: Numbers
    owners: Numbers


def order_of(
    nodes: int, group_chunks: int, file_bytes: int, groups: int, seed: int = 1
) -> tuple[Order, Numbers]:
    """The order of an epoch of `groups` groups, and the rank of each chunk's owner."""
    files_per_chunk = CHUNK_TARGET_BYTES // file_bytes
    ids = chunk_ids(groups * group_chunks)
    files = np.arange(len(ids) * files_per_chunk, dtype=np.uint32)
    layout = Layout(ids.view(">u8").astype(np.uint64), files, np.repeat(np.arange(len(ids)), files_per_chunk))
    return Order(layout, PlanSpec(seed, 0, group_chunks)), Placement(members_of(nodes)).owners(ids).astype(
        np.int64
    )


def group_shares(
    nodes: int, group_chunks: int, file_bytes: int, together: int = 1, seed: int = 1
) -> Iterator[GroupShares]:
    """Some groups of an epoch: a multiple of `together`."""
    files_per_chunk = CHUNK_TARGET_BYTES // file_bytes
    spans = min(max(FILES_MAX // (together * group_chunks * files_per_chunk), 1), SPANS_MAX)
    groups = spans * together
    order, of_chunk = order_of(nodes, group_chunks, file_bytes, groups, seed)
    deals = [
        Partition(int(order.bounds[-1]), ReaderSpec(rank, nodes, BATCH_FILES * nodes))
        for rank in range(nodes)
    ]
    for group in range(len(order.bounds) - 1):
        first, end = order.bounds[group : group + 2].tolist()
        readers = np.empty(end - first, np.int64)
        for rank, deal in enumerate(deals):
            readers[deal.positions(deal.count_before(first), deal.count_before(end)) - first] = rank
        chunks = order.nodes(group, group + 1).astype(np.int64) // files_per_chunk
        yield GroupShares(readers, chunks, of_chunk[chunks])


def groups_together(nodes: int, group_chunks: int = GROUP_CHUNKS) -> int:
    """Groups that a node fetches together, with enough memory."""
    return max(SPAN_BYTES * nodes // (group_chunks * CHUNK_TARGET_BYTES), 1)


def traffic(nodes: int, file_bytes: int, groups: int, group_chunks: int = GROUP_CHUNKS) -> Row:
    """Requests between nodes that read at READ_BYTES_PER_S and fetch `groups` groups together.

    Of one node and one span, as means over the nodes, without reads of a node's own chunks. `of chunks`: the number of
    chunks of which it gets extents; `the order`: the share of a core that computes it; `busiest`: the most that a node
    sends, divided by the mean.
    """
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
    requests_per_s = requests_each * spans_per_s
    return {
        "file, bytes": file_bytes,
        "nodes": nodes,
        "groups together": groups,
        "a node's share of them": (share_bytes / 1e6, "{:.1f} MB"),
        "of chunks": (chunks / nodes / len(spans), "{:,.0f}"),
        "requests": (requests_each, "{:,.0f}"),
        "bytes each": (asked_bytes.sum() / requests.sum() / 1e3, "{:,.0f} KB"),
        "requests a second": (requests_per_s, "{:,.0f}"),
        "of a core": (requests_per_s * (ASKING_S + ANSWERING_S), "{:.0%}"),
        "the order": (_order_s(nodes, group_chunks, file_bytes) * groups * spans_per_s, "{:.0%}"),
        "busiest": ((sent_bytes.max(axis=1) / sent_bytes.mean(axis=1)).mean(), "{:.1f}"),
    }


def _order_s(nodes: int, group_chunks: int, file_bytes: int) -> float:
    """Processor time to compute what one node reads of one group: the best of five."""
    order, _ = order_of(1, group_chunks, file_bytes, 1)
    places = Partition(int(order.bounds[1]), ReaderSpec(0, nodes, BATCH_FILES * nodes)).positions()
    times_s = []
    for _ in range(5):
        began_s = time.process_time()
        order.nodes_at(0, places)
        times_s.append(time.process_time() - began_s)
    return min(times_s)
