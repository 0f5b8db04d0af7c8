"""Known faults, put back into the product by hand, to show that seeds find them. Each replaces one function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dieselfs.chunk.format import PREAMBLE_BYTES
from dieselfs.errors import AlreadyExists, DieselfsError, Unavailable
from dieselfs.snapshot import builder
from dieselfs_server import assemble
from dieselfs_server.datasets import commit, snapshots
from dieselfs_server.maintenance import purge, repack
from dieselfs_server.metadata.redis.apply import ChunkApplication
from dieselfs_server.metadata.redis.store import RedisMetadata
from tests.simulation.job_mutants import JOB_FAULTS
from tests.simulation.job_plan import OUTAGE
from tests.simulation.old_faults import OLD_FAULTS
from tests.simulation.scenario import Scenario


@dataclass(frozen=True)
class Mutant:
    """`what`: the fault, in words. `make`: the faulty function, from the right one."""

    what: str
    owner: Any
    name: str
    make: Callable[[Any], Any]


def _applied_first(_: Any) -> Any:
    def store(
        store: Any, metadata: Any, dataset_id: bytes, preamble: Any, header: Any, data: Any, now_ns: int
    ) -> int:
        generation: int = metadata.apply(dataset_id, preamble, header, now_ns)
        with suppress(AlreadyExists):
            store.put(dataset_id, preamble.chunk_id, [data])
        return generation

    return store


def _without_apply(right: Any) -> Any:
    def store(*args: Any) -> int:
        try:
            result: int = right(*args)
        except Unavailable:  # the chunk is stored, so why not say so
            return 1
        return result

    return store


def _taken_for_done(right: Any) -> Any:
    def store(
        store: Any, metadata: Any, dataset_id: bytes, preamble: Any, header: Any, data: Any, now_ns: int
    ) -> int:
        try:
            store.get_range(dataset_id, preamble.chunk_id, 0, PREAMBLE_BYTES)
        except DieselfsError:
            result: int = right(store, metadata, dataset_id, preamble, header, data, now_ns)
            return result
        return 1  # stored by an earlier try, but perhaps not applied

    return store


def _record_first(right: Any) -> Any:
    """Purge with a store whose deletes come after the record."""

    def purged(store: Any, metadata: Any, *args: Any, **options: Any) -> Any:
        pending: list[tuple[bytes, bytes]] = []

        class Store:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
                pending.append((dataset_id, chunk_id))

        class Metadata:
            def __getattr__(self, name: str) -> Any:
                return getattr(metadata, name)

            def forget_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
                metadata.forget_chunk(dataset_id, chunk_id)
                for each in pending:
                    store.delete(*each)
                pending.clear()

        return right(Store(), Metadata(), *args, **options)

    return purged


def _new_versions(right: Any) -> Any:
    """A purge whose copies get new versions, and so win over what was written meanwhile."""

    class Writer(right):  # type: ignore[misc]  # a class that is given
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            add = self.builder.add_file

            def added(
                path: bytes, content: bytes, mode: int, mtime_ns: int, size: int, place: int, _: int
            ) -> Any:
                return add(path, content, mode, mtime_ns, size, place, self.reserve(1))

            self.builder.add_file = added

    return Writer


def _versions_of_clock(_: Any) -> Any:
    def reserve(self: Any, dataset_id: bytes, count: int, now_ns: int) -> int:
        return now_ns

    return reserve


def _generation_alone(right: Any) -> Any:
    def path(self: Any, dataset_id: bytes, state: Any) -> Any:
        return self._folder / f"{dataset_id.hex()}-{0:016x}-{state.generation:x}.snapshot"

    return path


def _of_others(right: Any) -> Any:
    """Contents that repack reads, each in the place of another one of its length."""

    def read(*args: Any) -> Any:
        contents = right(*args)
        by_length: dict[int, list[Any]] = {}
        for key, content in contents.items():
            by_length.setdefault(len(content), []).append(key)
        return {
            key: contents[other]
            for keys in by_length.values()
            for key, other in zip(keys, keys[1:] + keys[:1], strict=True)
        }

    return read


MUTANTS = {
    "no-catch-up": Mutant(
        "a starting server does not apply what is stored", assemble, "catch_up", lambda right: lambda *_: 0
    ),
    "applied-first": Mutant("a chunk is applied before it is stored", commit, "_store", _applied_first),
    "without-apply": Mutant(
        "a chunk that is stored, but could not be applied, is acknowledged", commit, "_store", _without_apply
    ),
    "taken-for-done": Mutant(
        "a chunk that is stored already is acknowledged without being applied",
        commit,
        "_store",
        _taken_for_done,
    ),
    "no-overlap": Mutant(
        "catching up looks only at chunks after the newest applied one",
        commit,
        "CATCH_UP_OVERLAP_S",
        lambda right: -1,
    ),
    "versions-of-clock": Mutant(
        "versions are the time of the server's clock alone",
        RedisMetadata,
        "reserve_versions",
        _versions_of_clock,
    ),
    "no-grace": Mutant(
        "purge removes dead chunks at once",
        purge,
        "removable",
        lambda right: lambda dead, pins, tagged, before_ns: list(dead),
    ),
    "snapshot-by-generation": Mutant(
        "snapshots are kept by their generation, without its time",
        snapshots.SnapshotCache,
        "_path",
        _generation_alone,
    ),
    "dead-chunks": Mutant(
        "a snapshot lists dead chunks too, until a purge removes them",
        builder,
        "listed_chunks",
        lambda right: np.ones_like,
    ),
    "new-versions": Mutant("purge gives new versions to what it copies", purge, "ChunkWriter", _new_versions),
    "repacked-as-others": Mutant("a repack takes the bytes of other files", repack, "_read", _of_others),
    "repacked-as-new": Mutant(
        "repack gives new versions to what it copies", repack, "ChunkWriter", _new_versions
    ),
    "rebuilt-twice": Mutant(
        "with Redis, a rebuild restores what is not counted yet, so nobody counts it",
        ChunkApplication,
        "_resolve",
        lambda right: lambda self, chunk, is_restored=False: right(self, chunk, self.is_again),
    ),
    "record-first": Mutant(
        "purge removes the record of a chunk before its object",
        purge,
        "purge",
        _record_first,
    ),
    **{name: Mutant(*fault) for name, fault in (OLD_FAULTS | JOB_FAULTS).items()},
}


NEEDS: dict[str, set[str]] = {
    "rebuilt-twice": {"redis", "rebuild"},
    "versions-of-clock": {"redis", "two servers", "other clocks"},
    "record-first": {"purge", "crash after store"},
    "D1": {"long outage", "crash"},
    "D2": {"metadata lost"},
    "D4": {"store unmounted"},
    "D6": {"rebuild"},
    "D7": {"clock jumps"},
    "F2": {"redis restarts"},
    "F4": {"empty listing", "rebuild"},
    "late-unnoted": {"late writer", "power cut", "sqlite"},
    "tag-replaced": {"tag", "two servers"},
    "tags-ignored": {"tag", "close clocks"},
    "pins-ignored": {"pin", "close clocks"},
    "holds-ignored": {"usage", "close clocks"},
    "leases-short": {"lease"},
    "member-lost": {"lease"},
    "old-versions": {"lease", "redis restarts"},
    "maintenance-shared": {"two servers", "second maintenance"},
    "dropped-but-kept": {"drop"},
    "repacked-as-others": {"repack"},
    "repacked-as-new": {"repack"},
    **{name: {"job"} for name in JOB_FAULTS},
    "lists-unsettled": {"outage"},
}
"""What a seed must have, so that it may find a mutant; other seeds are left out."""


def may_find(name: str, scenario: Scenario) -> bool:
    servers = [f"server{number}" for number in range(scenario.servers)]
    has = {
        "redis": scenario.has_redis,
        "sqlite": not scenario.has_redis,
        "two servers": scenario.servers > 1,
        "other clocks": len({scenario.skews_s.get(server, 0.0) for server in servers}) > 1,
        "late writer": -9000.0 in scenario.skews_s.values(),
        "close clocks": scenario.has_close_clocks,
        "job": scenario.job is not None,
        "outage": scenario.job is not None and scenario.job.what_fails == OUTAGE,
        "second maintenance": any(step.actor == "admin1" for step in scenario.steps),
    }
    found = {kind for kind, is_there in has.items() if is_there} | scenario.chances.keys()
    return NEEDS.get(name, set()) <= found | {step.kind for step in scenario.steps}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The product with a fault in the block."""
    mutant = MUTANTS[name]
    right = getattr(mutant.owner, mutant.name)
    setattr(mutant.owner, mutant.name, mutant.make(right))
    try:
        yield
    finally:
        setattr(mutant.owner, mutant.name, right)
