"""What the page shows of datasets, jobs and failures, as values for JSON. No I/O."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import distinct
from dieselfs.cluster.member import Member
from dieselfs.cluster.node_progress import NodeProgress
from dieselfs.cluster.placement import Placement
from dieselfs.errors import InvalidInput
from dieselfs.limits import SEAL_BYTES
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs.rpc.limit_kinds import NO_LIMIT, QUOTAS, UsageRecord
from dieselfs.rpc.records import TagRecord
from dieselfs_server.access.accounts import Right
from dieselfs_server.leases.lease import Head, Leases, Pin, interval_s, lease_ns
from dieselfs_server.logs import Failure

PAGE_ROWS = 100
GROWTH_POINTS = 240
READERS_MAX = 200
FAILURES_SHOWN_MAX = 200
USERS_SHOWN_MAX = 200
LATE_INTERVALS = 2.5
"""A member that has missed two renewals is suspected."""

_SORTED_BY: Mapping[str, Callable[[DatasetRecord], Any]] = {
    "name": lambda dataset: dataset.name.lower(),
    "size": lambda dataset: dataset.total_bytes,
    "files": lambda dataset: dataset.files,
    "chunks": lambda dataset: dataset.chunks,
    "generation": lambda dataset: dataset.generation,
    "updated": lambda dataset: dataset.updated_ns,
}


def dataset_view(dataset: DatasetRecord) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "id": dataset.dataset_id.hex(),
        "generation": dataset.generation,
        "updated_s": dataset.updated_ns / 1e9,
        "files": dataset.files,
        "bytes": dataset.total_bytes,
        "chunks": dataset.chunks,
    }


def datasets_view(
    datasets: Sequence[DatasetRecord],
    search: str,
    sort: str,
    page: int,
    owner: Callable[[str], str] = lambda name: "",
) -> dict[str, Any]:
    """A page of the datasets whose names contain `search`. `sort`: a column, with `-` before it for the largest first.
    `owner`: of a dataset, empty if there is none, or the caller may not see it.

    Raises InvalidInput.
    """
    key = _SORTED_BY.get(sort.removeprefix("-"))
    if key is None or page < 0:
        raise InvalidInput(f"cannot sort by {sort[:40]!r}, page {page}: use one of {', '.join(_SORTED_BY)}")
    found = [each for each in datasets if _has_words(each.name, search)]
    found.sort(key=key, reverse=sort.startswith("-"))
    pages = max(1, -(-len(found) // PAGE_ROWS))
    page = min(page, pages - 1)
    return {
        "total": len(datasets),
        "matching": len(found),
        "files": sum(each.files for each in found),
        "bytes": sum(each.total_bytes for each in found),
        "page": page,
        "pages": pages,
        "rows": [
            {**dataset_view(each), "owner": owner(each.name)}
            for each in found[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
        ],
    }


def _has_words(name: str, search: str) -> bool:
    return all(word in name.lower() for word in search.lower().split())


def usage_view(usage: UsageRecord) -> dict[str, Any]:
    """The usage of a dataset or a user; a limit is None if there is none. `quotas`: what is used of each kind."""
    limits = {kind: getattr(usage, kind.field) for kind in QUOTAS}
    limits = {kind: None if limit == NO_LIMIT else limit for kind, limit in limits.items()}
    return {
        "name": usage.name,
        "owner": usage.owner,
        "files": usage.files,
        "bytes": usage.total_bytes,
        "stored_bytes": usage.stored_bytes,
        **{kind.field: limit for kind, limit in limits.items()},
        "quotas": [
            {
                "label": kind.label,
                "used": getattr(usage, kind.name),
                "limit": limit,
                "is_bytes": kind.is_bytes,
            }
            for kind, limit in limits.items()
        ],
        "read_bytes": usage.read_bytes,
        "written_bytes": usage.written_bytes,
    }


def users_view(usages: Sequence[UsageRecord], search: str) -> dict[str, Any]:
    """The users whose names contain `search` and who store most, with the most first."""
    found = [each for each in usages if _has_words(each.name, search)]
    found.sort(key=lambda each: (-each.stored_bytes, each.name))
    rows = [usage_view(each) for each in found[:USERS_SHOWN_MAX]]
    labels = [kind.label for kind in QUOTAS]
    return {"total": len(usages), "matching": len(found), "quotas": labels, "rows": rows}


@dataclass(frozen=True, eq=False)
class ChunkFacts:
    """The chunks of a dataset: IDs, uint8 of shape (16 n,); when each was made, in seconds since 1970, and the bytes of
    its payload, shape (n,).
    """

    ids: npt.NDArray[np.uint8]
    times_s: npt.NDArray[np.float64]
    payload_bytes: npt.NDArray[np.int64]
    deleted_entries: int

    @classmethod
    def of(cls, chunks: Sequence[ChunkRecord], time_of: Callable[[bytes], int]) -> "ChunkFacts":
        return cls(
            np.frombuffer(b"".join(chunk.chunk_id for chunk in chunks), np.uint8),
            np.array([time_of(chunk.chunk_id) for chunk in chunks], np.float64),
            np.array([chunk.payload_length for chunk in chunks], np.int64),
            sum(chunk.deleted_entries for chunk in chunks),
        )


def growth_view(facts: ChunkFacts, now_s: float) -> dict[str, list[float]]:
    """How many bytes the chunks that there are had at points of time, until now: `time` and `bytes`."""
    if not len(facts.times_s):
        return {"time": [], "bytes": []}
    order = np.argsort(facts.times_s, kind="stable")
    times_s, total_bytes = facts.times_s[order], np.cumsum(facts.payload_bytes[order])
    points = distinct(np.linspace(0, len(order) - 1, min(len(order), GROWTH_POINTS)).astype(np.int64))
    is_last = np.append(times_s[points][1:] != times_s[points][:-1], True)
    shown = points[is_last]
    return {
        "time": [*times_s[shown].tolist(), max(now_s, float(times_s[-1]))],
        "bytes": [*total_bytes[shown].astype(float).tolist(), float(total_bytes[-1])],
    }


def tag_view(name: str, tag: TagRecord | None) -> dict[str, Any]:
    """`tag` None: it is damaged."""
    if tag is None:
        return {"name": name, "is_damaged": True}
    return {
        "name": name,
        "is_damaged": False,
        "generation": tag.generation,
        "updated_s": tag.updated_ns / 1e9,
        "files": tag.files,
        "bytes": tag.total_bytes,
    }


def readers_view(pins: Iterable[Pin], now_ns: int) -> list[dict[str, Any]]:
    """The first READERS_MAX mounts and programs that hold a generation. `holder`: user, node, process and place."""
    return [
        {"holder": pin.holder, "generation": pin.generation, "expires_in_s": (pin.expires_ns - now_ns) / 1e9}
        for pin in [*pins][:READERS_MAX]
    ]


class Told(NamedTuple):
    """What a node has told about itself, `age_s` ago, and as which user."""

    user: str
    progress: NodeProgress
    age_s: float


@dataclass(frozen=True)
class FoundJob:
    """The membership list of a job, as it is stored. `fingerprint`: of its secret, in hexadecimal."""

    dataset: str
    job: str
    fingerprint: str
    head: Head
    leases: Leases
    told: Mapping[str, Told] = field(default_factory=dict)


def _epoch(told: Sequence[Told]) -> dict[str, Any]:
    """The newest epoch that nodes of a job read, how far the slowest of them is, and their rates together."""
    seen = [each.progress for each in told]
    epoch = max((each.epoch for each in seen), default=-1)
    shares = [each.position / each.positions for each in seen if each.epoch == epoch and each.positions > 0]
    hits = [each.hit_share for each in seen if each.hit_share is not None]
    return {
        "epoch": epoch if epoch >= 0 else None,
        "share": min(shares, default=None),
        "reads": sum(each.reads for each in seen) if seen else None,
        "fetched_bytes": sum(each.fetched_bytes for each in seen) if seen else None,
        "hit_share": sum(hits) / len(hits) if hits else None,
        "age_s": max((each.progress.age_s + each.age_s for each in told), default=None),
    }


def job_summary(found: FoundJob, now_ns: int, right: Right = Right.READ) -> dict[str, Any]:
    """Users are shown to those who may write to the dataset."""
    live = {node: lease for node, lease in found.leases.items() if lease.expires_ns > now_ns}
    members = [Member.of(lease.value[SEAL_BYTES:]) for lease in live.values()]
    return {
        "dataset": found.dataset,
        "job": found.job,
        "id": found.fingerprint[:16],
        "generation": found.head.generation,
        "nodes": len(live),
        "suspected": sum(_is_late(found.head, lease.expires_ns, now_ns) for lease in live.values()),
        "memory_bytes": sum(member.memory_bytes for member in members),
        **_epoch([found.told[node] for node in live if node in found.told]),
        "users": sorted({each.user for each in found.told.values()}) if right >= Right.WRITE else [],
    }


def _silent_s(head: Head, expires_ns: int, now_ns: int) -> float:
    """Since the last renewal of a lease."""
    return max((now_ns - (expires_ns - lease_ns(head.members))) / 1e9, 0.0)


def _is_late(head: Head, expires_ns: int, now_ns: int) -> bool:
    return _silent_s(head, expires_ns, now_ns) > LATE_INTERVALS * interval_s(head.members)


def job_view(found: FoundJob, facts: ChunkFacts, now_ns: int, right: Right) -> dict[str, Any]:
    """The nodes of a job, ordered by rank: memory, share of the chunks, and whether the node is suspected. With the
    right to read alone, numbers take the place of names and addresses.
    """
    live = {node: lease for node, lease in found.leases.items() if lease.expires_ns > now_ns}
    members = {node: Member.of(lease.value[SEAL_BYTES:]) for node, lease in live.items()}
    owned = _owned_bytes(members, facts)
    total_bytes = max(int(facts.payload_bytes.sum()), 1)
    nodes = [
        {
            "node": node,
            "rank": member.rank,
            "address": str(member.address).removeprefix("tcp://"),
            "memory_bytes": member.memory_bytes,
            "owned_bytes": owned.get(node, 0),
            "owned_share": owned.get(node, 0) / total_bytes,
            "silent_s": _silent_s(found.head, live[node].expires_ns, now_ns),
            "is_suspected": _is_late(found.head, live[node].expires_ns, now_ns),
            "told": {**asdict(found.told[node].progress), "told_s": found.told[node].age_s}
            if node in found.told
            else None,
        }
        for node, member in members.items()
    ]
    nodes.sort(key=lambda node: (node["rank"], node["node"]))
    if right < Right.WRITE:
        for number, node in enumerate(nodes, 1):
            node |= {"node": f"node {number}", "address": ""}
    return {**job_summary(found, now_ns, right), "dataset_bytes": total_bytes, "members": nodes}


def _owned_bytes(members: Mapping[str, Member], facts: ChunkFacts) -> dict[str, int]:
    if not members or not len(facts.payload_bytes):
        return {}
    placement = Placement(members.values())
    owners = placement.owners(facts.ids)
    sums = np.bincount(owners, weights=facts.payload_bytes, minlength=len(placement.members))
    return {member.node: int(sums[place]) for place, member in enumerate(placement.members)}


def failures_view(failures: Iterable[Failure], user: str, is_admin: bool) -> list[dict[str, Any]]:
    """The newest failures that a user may see: their own calls; administrators see all, and the log."""
    shown = [each for each in failures if is_admin or (each.user and each.user == user)]
    return [asdict(each) for each in shown[:FAILURES_SHOWN_MAX]]
