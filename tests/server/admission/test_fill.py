"""Metrics of quotas: a share for each limit, gone with the quota, and only of the fullest."""

from collections.abc import Callable, Sequence

import pytest

from dieselfs.errors import Damaged
from dieselfs.net.auth import Key
from dieselfs.records import DatasetUsage
from dieselfs.rpc.limit_kinds import QUOTAS
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import Accounts, StoredKey, with_key, with_owner, with_quota
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission import usage
from dieselfs_server.admission.usage import QuotaFill
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, chunk_id, pack


class Rig:
    """A dataset of two files, which ada owns."""

    def __init__(self) -> None:
        self.metadata, self.metrics, self.users = (
            SqliteMetadata(":memory:"),
            Registry(),
            UserStore(MemoryStore()),
        )
        self.metadata.create_dataset(DATASET, DATASET_ID)
        preamble, header = pack([Put(b"a", 1, size=100), Put(b"b", 2, size=100)], chunk_id(1))
        self.metadata.apply(DATASET_ID, preamble, header, NOW_NS)
        self.stored_bytes = preamble.object_length
        self.fill = QuotaFill(self.metadata, self.users, self.metrics)
        key = Key.generate("ada")
        self.change(lambda a: with_key(a, "ada", key.key_id, StoredKey(key.verifier(), 0, 0)))
        self.change(lambda a: with_owner(a, DATASET, "ada"))

    def change(self, edit: Callable[[Accounts], Accounts]) -> None:
        self.users.change(edit)

    def limit(self, account: str, *limits: int | None) -> None:
        names = (kind.name for kind in QUOTAS)
        quota = {name: limit for name, limit in zip(names, limits, strict=False) if limit is not None}
        self.change(lambda a: with_quota(a, account, quota))

    def shares(self) -> dict[tuple[str, ...], float]:
        self.fill.update()
        return self.samples()

    def samples(self) -> dict[tuple[str, ...], float]:
        (family,) = self.metrics.families(["quota.used_share"]) or [{"samples": []}]
        return {tuple(labels): value for labels, value in family["samples"]}


def test_each_limit_has_a_share_until_it_ends() -> None:
    rig = Rig()
    assert rig.shares() == {}
    rig.limit(f"dataset:{DATASET}", 4 * rig.stored_bytes, 8)
    rig.limit("user:*", None, 4)
    dataset = f"dataset:{DATASET}"
    assert rig.shares() == {(dataset, "bytes"): 0.25, (dataset, "files"): 0.25, ("user:ada", "files"): 0.5}
    rig.limit("user:ada", 2 * rig.stored_bytes, None)
    rig.limit(dataset, None, 0)
    rig.limit("dataset:other", 10, None)
    assert rig.shares() == {
        (dataset, "files"): 1.0,
        ("user:ada", "bytes"): 0.5,
        ("dataset:other", "bytes"): 0.0,
    }


def test_only_the_fullest_have_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "FILLS_MAX", 1)
    rig = Rig()
    rig.limit(f"dataset:{DATASET}", None, 8)
    rig.limit("user:ada", None, 4)
    assert rig.shares() == {("user:ada", "files"): 0.5}


def test_damaged_metadata_hides_only_its_own_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    for name in ("aged", "zebras"):
        rig.limit(f"dataset:{name}", None, 8)
    rig.limit(f"dataset:{DATASET}", None, 8)
    usage = rig.metadata.usage

    def damaged(names: Sequence[str]) -> list[DatasetUsage | None]:
        if "aged" in names:
            raise Damaged("aged: damaged")
        return usage(names)

    monkeypatch.setattr(rig.metadata, "usage", damaged)
    with pytest.raises(Damaged, match="aged"):
        rig.fill.update()
    assert rig.samples() == {(f"dataset:{DATASET}", "files"): 0.25, ("dataset:zebras", "files"): 0.0}


def test_metrics_of_quotas_that_ended_take_no_room() -> None:
    rig = Rig()
    for number in range(3):
        rig.limit(f"dataset:{DATASET}", None, 8 + number)
        rig.limit(f"dataset:other-{number}", None, 8)
        rig.fill.update()
        rig.limit(f"dataset:other-{number}")
    rig.fill.update()
    assert len([*rig.metrics.collect(["quota.used_share"])]) == 1
