"""Any sequence of writes, purges and rebuilds at two servers, beside a model: what is used, and what still fits."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from dieselfs.chunk.format import Op
from dieselfs_server.access.accounts import with_owner
from dieselfs_server.admission.quotas import QuotaExceeded
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.maintenance.purge import purge
from dieselfs_server.maintenance.rebuild import rebuild
from tests.server.admission.test_quotas import OTHER, OTHER_ID, Make, Server, make, redis_server
from tests.support.catch_up import catch_up
from tests.support.identity import IDENTITY
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, chunk_id, delete, encode

__all__ = ["make", "redis_server"]  # fixtures

IDS = {DATASET: DATASET_ID, OTHER: OTHER_ID}
FOLDER = b"c/"
PATHS = [b"a", b"b", b"c/d", b"c/e"]
EXTENT_BYTES = 200

names = st.sampled_from(sorted(IDS))
paths = st.lists(st.sampled_from(PATHS), min_size=1, unique=True)
servers = st.integers(0, 1)
sizes = st.integers(0, 1500)
byte_limits, file_limits = st.none() | st.integers(0, 6000), st.none() | st.integers(0, 6)


@dataclass
class Used:
    """The files of a dataset with their versions, and those that are not whole yet, with version and extents."""

    files: dict[bytes, int] = field(default_factory=dict)
    halves: dict[bytes, tuple[int, set[int]]] = field(default_factory=dict)

    def add(self, put: Put) -> None:
        self.files[put.path] = put.version
        self.halves.pop(put.path, None)

    def folders(self) -> set[bytes]:
        return {FOLDER for path in self.files if path.startswith(FOLDER)}

    def counted(self) -> int:
        """Folders above files count as files."""
        return len(self.files) + len(self.folders())

    def asked(self, puts: list[Put]) -> int:
        """What a chunk adds to that, as a server counts before it stores the chunk."""
        made = [put for put in puts if put.op != Op.DELETE]
        new = {FOLDER for put in made if put.path.startswith(FOLDER)} - self.folders()
        return max(len(made), sum(put.op == Op.FILE for put in made) + len(new))

    def remove(self, put: Put) -> None:
        del self.files[put.path]
        self.halves.pop(put.path, None)


class Accounting(RuleBasedStateMachine):
    def __init__(self, servers: list[Server]) -> None:
        super().__init__()
        self.servers = servers
        self.store, self.metadata = self.servers[0].store, self.servers[0].metadata
        self.model = {name: Used() for name in IDS}
        self.owned = set(IDS)
        self.limits: dict[str, tuple[float, float]] = {}
        self.versions, self.chunks = iter(range(10, 1 << 40)), iter(range(1, 1 << 40))
        self.later_ns = NOW_NS
        self.servers[0].limit("user:*", 1 << 60)  # the first quota of all is not announced
        for server in self.servers:
            server.users.newest()

    def stored_bytes(self, name: str) -> int:
        """As the object store has it."""
        return sum(self.store.size(IDS[name], chunk) for chunk in self.store.list_chunks(IDS[name]))

    def fits(self, name: str, chunk_bytes: int, files: int) -> bool:
        accounts = [(f"dataset:{name}", {name})]
        if name in self.owned:
            accounts.append(("user:ada", self.owned))
        for account, counted in accounts:
            most_bytes, most_files = self.limits.get(account, (math.inf, math.inf))
            if sum(map(self.stored_bytes, counted)) + chunk_bytes > most_bytes:
                return False
            if sum(self.model[each].counted() for each in counted) + files > most_files:
                return False
        return True

    def put(self, server: int, name: str, puts: list[Put], always: bool = False) -> bool:
        """Put a chunk; whether it was stored, as the model says."""
        number = next(self.chunks)
        length = len(encode(puts, chunk_id(number), IDS[name]))
        is_stored = always or self.fits(name, length, self.model[name].asked(puts))
        if is_stored:
            self.servers[server].put(number, *puts, name=name)
        else:
            with pytest.raises(QuotaExceeded):
                self.servers[server].put(number, *puts, name=name)
        return is_stored

    @rule(server=servers, name=names, found=paths, size=sizes)
    def put_files(self, server: int, name: str, found: list[bytes], size: int) -> None:
        puts = [Put(path, next(self.versions), size=size) for path in found]
        if self.put(server, name, puts):
            for put in puts:
                self.model[name].add(put)

    @rule(server=servers, name=names, path=st.sampled_from(PATHS), part=st.integers(0, 1))
    def put_half_a_file(self, server: int, name: str, path: bytes, part: int) -> None:
        """The file counts once both are there."""
        used = self.model[name]
        version, parts = used.halves.get(path) or (next(self.versions), set())
        half = Put(path, version, size=2 * EXTENT_BYTES, place=part * EXTENT_BYTES, length=EXTENT_BYTES)
        if self.put(server, name, [half]):
            used.halves[path] = version, parts | {part}
            if len(parts | {part}) == 2:
                used.add(half)

    @rule(server=servers, name=names, found=paths)
    def delete_what_exists(self, server: int, name: str, found: list[bytes]) -> None:
        used = self.model[name]
        existing = [path for path in found if path in used.files]
        puts = [delete(path, next(self.versions)) for path in existing]
        if puts:
            self.put(server, name, puts, always=True)
            for put in puts:
                used.remove(put)

    @rule(server=servers, name=names, path=st.sampled_from(PATHS))
    def delete_in_vain(self, server: int, name: str, path: bytes) -> None:
        """With an old version, which deletes nothing."""
        if path in self.model[name].files:
            self.put(server, name, [delete(path, 1)])

    @rule(
        server=servers,
        account=st.sampled_from(["user:ada", *(f"dataset:{name}" for name in IDS)]),
        stored_bytes=byte_limits,
        files=file_limits,
    )
    def limit(self, server: int, account: str, stored_bytes: int | None, files: int | None) -> None:
        self.servers[server].limit(account, stored_bytes, files)
        self.servers[server].quotas.announce()
        self.limits[account] = (
            math.inf if stored_bytes is None else stored_bytes,
            math.inf if files is None else files,
        )

    @rule(server=servers, name=names)
    def change_owner(self, server: int, name: str) -> None:
        self.owned ^= {name}
        owner = "ada" if name in self.owned else ""
        self.servers[server].users.change(lambda accounts: with_owner(accounts, name, owner))
        self.servers[server].quotas.announce()

    @rule(name=names)
    def purge(self, name: str) -> None:
        self.later_ns += 10**10
        dataset, tags = self.metadata.dataset(name), TagStore(self.store, IDENTITY)
        purge(self.store, self.metadata, dataset, tags, self.later_ns, 0, False)

    @rule(name=names, is_lost=st.booleans())
    def rebuild(self, name: str, is_lost: bool) -> None:
        if is_lost:
            self.metadata.drop_dataset(IDS[name])
        rebuild(self.store, self.metadata, name, IDS[name], self.later_ns)

    @rule(name=names, size=sizes)
    def die_between_store_and_metadata(self, name: str, size: int) -> None:
        """The chunk has been admitted; the next start of a server applies it."""
        identity, put = chunk_id(next(self.chunks)), Put(PATHS[0], next(self.versions), size=size)
        self.store.put(IDS[name], identity, [encode([put], identity, IDS[name])])
        catch_up(self.store, self.metadata, self.later_ns)
        self.model[name].add(put)

    @rule(name=names)
    def drop_and_make_again(self, name: str) -> None:
        self.store.delete_dataset(IDS[name])
        self.metadata.drop_dataset(IDS[name])
        self.metadata.create_dataset(name, IDS[name])
        self.model[name] = Used()

    @invariant()
    def all_servers_count_what_is_stored(self) -> None:
        for server in self.servers:
            for name, used in self.model.items():
                usage = server.usage(name)
                assert usage.stored_bytes == self.stored_bytes(name)
                assert usage.record.files == len(used.files)


def test_what_is_used_and_what_fits_is_as_in_the_model(make: Make) -> None:
    class OverNewServers(Accounting):
        def __init__(self) -> None:
            super().__init__(make())

    run_state_machine_as_test(
        OverNewServers,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
