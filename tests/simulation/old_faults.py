"""Faults of earlier versions, and of what clients do besides writing and reading, put back by hand. D1 to D8, F2 and F4
are their numbers in the reviews that found them; D3, D5 and D8 are out of reach (docs/internals/simulator.md).
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from dieselfs.rpc import endpoints
from dieselfs_server.admission import quotas
from dieselfs_server.datasets import catalog, caught_up, commit, tags
from dieselfs_server.handlers import administration, writing
from dieselfs_server.leases import lease
from dieselfs_server.maintenance import jobs, purge, rebuild
from dieselfs_server.store import wrapper


class _Changed:
    """As another object, with other methods."""

    def __init__(self, right: Any, **methods: Any) -> None:
        self._right = right
        self.__dict__ |= methods

    def __getattr__(self, name: str) -> Any:
        return getattr(self._right, name)


def _endless(right: Any) -> Any:
    def following(self: Any) -> Any:
        while True:
            try:
                return right(self)
            except Exception:
                self._failed.clear()
                self._pause(1.0)

    return following


def _old_versions(right: Any) -> Any:
    def with_member(head: Any, leases: Any, request: Any, now_ns: int) -> Any:
        after, admitted = right(head, leases, request, now_ns)
        if head is not None and after.version > head.version:
            after = replace(after, version=head.version + 1)
        return after, admitted

    return with_member


def _losing(right: Any) -> Any:
    """A new master that takes the place of a living one."""

    def with_member(head: Any, leases: Any, request: Any, now_ns: int) -> Any:
        after, admitted = right(head, leases, request, now_ns)
        others = sorted(admitted.keys() - {request.node})
        if others and request.node in leases and not request.known_version:
            del admitted[others[0]]
        return after, admitted

    return with_member


def _in_place(_: Any) -> Any:
    def fill_copy(self: Any) -> bool:
        self.metadata.drop_dataset(self.dataset_id)
        return False

    return fill_copy


def _by_clock(right: Any) -> Any:
    def verified(metadata: Any, *args: Any) -> Any:
        return right(_Changed(metadata, last_version=lambda _: 0), *args)

    return verified


def _replaced(right: Any) -> Any:
    def add(self: Any, *args: Any) -> Any:
        def create(name: str, content: bytes) -> bool:
            self._store.put_record(name, content)
            return True

        other = copy.copy(self)
        other._store = _Changed(self._store, create_record=create)
        return right(other, *args)

    return add


def _kept_chunks(right: Any) -> Any:
    def drop(self: Any, dataset: Any) -> None:
        other = copy.copy(self)
        object.__setattr__(other, "store", _Changed(self.store, delete_dataset=lambda _: None))
        right(other, dataset)

    return drop


def _without_exclusion(right: Any) -> Any:
    def take(metadata: Any, *args: Any) -> None:
        try:
            right(metadata, *args)
        except lease.Excluded:
            return

    return take


OLD_FAULTS: dict[str, tuple[str, Any, str, Callable[[Any], Any]]] = {
    "D1": ("a call that is refused is repeated for ever", endpoints.Tries, "next", _endless),
    "D2": (
        "lost metadata is taken for none: there is no dataset",
        catalog.Catalog,
        "_stored_id",
        lambda right: lambda *_: None,
    ),
    "D4": (
        "storage that is away is taken for empty",
        wrapper.MarkedStore,
        "check",
        lambda right: lambda self: None,
    ),
    "D6": ("a rebuild makes the dataset again in its place", rebuild._Rebuild, "fill_copy", _in_place),
    "D7": ("versions that a wrong clock has reserved are refused", writing, "verified_chunk", _by_clock),
    "F2": (
        "nobody notices that Redis has lost its newest writes",
        caught_up._CaughtUp,
        "_has_lost",
        lambda right: lambda *_: False,
    ),
    "F4": (
        "a rebuild believes a listing that lacks chunks with files",
        rebuild._Rebuild,
        "_check_found",
        lambda right: lambda *_: None,
    ),
    "late-unnoted": (
        "chunks of a clock that is far behind are missed after a crash",
        commit,
        "LATE_S",
        lambda right: inf,
    ),
    "tag-replaced": ("of two servers that make a tag, the later one wins", tags.TagStore, "add", _replaced),
    "tags-ignored": (
        "purge removes chunks that a tag needs",
        tags.TagStore,
        "needed_chunks",
        lambda right: lambda *_: {},
    ),
    "pins-ignored": (
        "purge removes chunks that a pin needs",
        purge,
        "live_pins",
        lambda right: lambda *_: [],
    ),
    "holds-ignored": (
        "chunks that are being stored do not count towards a quota",
        quotas.Holds,
        "amount",
        lambda right: lambda *_: quotas.Amount(),
    ),
    "leases-short": (
        "the leases of members of a job end before they renew them",
        lease,
        "lease_ns",
        lambda right: lambda members: 10**9 // 2,
    ),
    "old-versions": (
        "the list of a job gets a version that members have seen already",
        lease,
        "with_member",
        _old_versions,
    ),
    "member-lost": (
        "where a new master takes the place of another, the list of the job loses a living node",
        lease,
        "with_member",
        _losing,
    ),
    "maintenance-shared": (
        "two jobs maintain a dataset at once",
        jobs,
        "take_lease",
        _without_exclusion,
    ),
    "dropped-but-kept": (
        "a drop forgets a dataset, and leaves its chunks",
        administration.DatasetCalls,
        "_drop",
        _kept_chunks,
    ),
}
