"""What the nodes of a job ask each other for, group by group of a plan, from the real code: the order of the files, how
they are dealt out, and whose each chunk is.

What is simulated: a dataset of files of one size, and what links and processors would need. Of an epoch a few groups
are looked at; all others are like them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.job_simulation import chunk_ids, members_of
from dieselfs.cache.placement import Placement
from dieselfs.limits import CHUNK_TARGET_BYTES, PEER_BATCH_BYTES
from dieselfs.shuffle.deal import Deal
from dieselfs.shuffle.order import Layout, Order

Numbers = npt.NDArray[np.int64]

BATCH_FILES = 32
"""Of one step, for each node."""
FILES_MAX = 4_000_000
"""In all groups that are looked at, unless one group has more."""
GROUPS_MAX = 8
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
    """Of one node and one group, as means over the nodes but where it says otherwise; what a node reads of its own
    chunks is not counted. `busiest` is in relation to the mean: the most that one node has to send.
    """

    nodes: int
    group_chunks: int
    file_bytes: int
    share_bytes: float
    requests: float
    request_bytes: float
    requests_per_s: float
    sent_bytes_per_s: float
    busiest: float
    processor_share: float


def group_shares(nodes: int, group_chunks: int, file_bytes: int, seed: int = 1) -> Iterator[GroupShares]:
    """Some groups of an epoch that all nodes read together."""
    files_per_chunk = CHUNK_TARGET_BYTES // file_bytes
    groups = min(max(FILES_MAX // (group_chunks * files_per_chunk), 1), GROUPS_MAX)
    ids = chunk_ids(groups * group_chunks)
    of_chunk = Placement(members_of(nodes)).owners(ids)
    files = np.arange(len(ids) * files_per_chunk, dtype=np.uint32)
    layout = Layout(ids.view(">u8").astype(np.uint64), files, np.repeat(np.arange(len(ids)), files_per_chunk))
    order = Order(layout, seed, 0, group_chunks)
    deals = [Deal(len(files), rank=rank, world=nodes, batch=BATCH_FILES * nodes) for rank in range(nodes)]
    for group in range(order.group_count):
        first, end = order.bounds[group : group + 2].tolist()
        readers = np.empty(end - first, np.int64)
        for rank, deal in enumerate(deals):
            readers[deal.positions(deal.count_before(first), deal.count_before(end)) - first] = rank
        chunks = order.nodes(group, group + 1).astype(np.int64) // files_per_chunk
        yield GroupShares(readers, chunks, of_chunk[chunks].astype(np.int64))


def traffic(nodes: int, group_chunks: int, file_bytes: int) -> Traffic:
    """How much nodes ask each other for while they read at READ_BYTES_PER_S."""
    asked: list[npt.NDArray[np.int64]] = []
    for group in group_shares(nodes, group_chunks, file_bytes):
        pairs = group.readers * nodes + group.owners
        files = np.bincount(pairs, minlength=nodes * nodes).reshape(nodes, nodes)
        np.fill_diagonal(files, 0)
        asked.append(files * file_bytes)
    asked_bytes = np.array(asked)
    requests = -(-asked_bytes // PEER_BATCH_BYTES)
    share_bytes = group_chunks * CHUNK_TARGET_BYTES / nodes
    groups_per_s = READ_BYTES_PER_S / share_bytes
    requests_each = float(requests.sum()) / nodes / len(asked)
    sent_bytes = asked_bytes.sum(axis=1)
    return Traffic(
        nodes,
        group_chunks,
        file_bytes,
        share_bytes,
        requests_each,
        float(asked_bytes.sum() / requests.sum()),
        requests_each * groups_per_s,
        float(sent_bytes.mean() * groups_per_s),
        float((sent_bytes.max(axis=1) / sent_bytes.mean(axis=1)).mean()),
        requests_each * groups_per_s * (ASKING_S + ANSWERING_S),
    )
