"""What the nodes of a job hold in memory now, as distances of chunks. This module runs threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.cluster.member import Member
from dieselfs.errors import ProtocolError, Unavailable
from dieselfs.limits import PEER_REQUESTS_AT_ONCE_MAX, WARMTH_TIMEOUT_S

HERE, NEAR, FAR = range(3)
"""Distances of chunks: in the memory of this node, in that of another node of the job, and elsewhere."""


def encoded(chunk_count: int, chunks: Sequence[int]) -> bytes:
    """The reply of `get_held`: a bit for each chunk of the snapshot, the first in the lowest bit of a byte."""
    is_held = np.zeros(chunk_count, np.bool_)
    is_held[chunks] = True
    return np.packbits(is_held, bitorder="little").tobytes()


def decoded(chunk_count: int, reply: bytes) -> Numbers:
    """The chunks of a reply, ascending. Raises ProtocolError for one of another length."""
    if len(reply) != -(-chunk_count // 8):
        raise ProtocolError(f"{len(reply)} bytes of a bit for each of {chunk_count} chunks")
    bits = np.unpackbits(np.frombuffer(reply, np.uint8), count=chunk_count, bitorder="little")
    return np.flatnonzero(bits)


def distances_in_job(
    chunk_count: int, own: str, members: Sequence[Member], held: Callable[[Member], bytes]
) -> Numbers:
    """The distance of each chunk, shape (chunks,), from node `own`. `held`: asks a member, raises Unavailable. One that
    does not answer within WARMTH_TIMEOUT_S counts as empty.
    """
    found = np.full(chunk_count, FAR)
    threads = ThreadPoolExecutor(PEER_REQUESTS_AT_ONCE_MAX, "held")
    asked = {threads.submit(held, member): member for member in members}
    done, _ = wait(asked, WARMTH_TIMEOUT_S)
    threads.shutdown(wait=False, cancel_futures=True)
    for answer in done:
        with suppress(Unavailable, ProtocolError):
            chunks = decoded(chunk_count, answer.result())
            found[chunks] = np.minimum(found[chunks], HERE if asked[answer].node == own else NEAR)
    return found
