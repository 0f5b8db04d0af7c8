"""What the page shows of datasets and jobs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dieselfs.cluster.member import Member
from dieselfs.cluster.node_progress import NodeProgress
from dieselfs.cluster.secret import JobSecret
from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB
from dieselfs.net.address import TcpAddress
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs.rpc.limit_kinds import UsageRecord
from dieselfs.rpc.members import JobId
from dieselfs_server.access.accounts import Right
from dieselfs_server.leases.lease import Head, Lease, interval_s, lease_ns
from dieselfs_server.logs import Failure
from dieselfs_server.web import views
from dieselfs_server.web.views import LATE_INTERVALS, PAGE_ROWS, USERS_SHOWN_MAX, ChunkFacts, FoundJob, Told

NOW_NS = 1_800_000_000 * 10**9


def dataset(number: int, name: str = "") -> DatasetRecord:
    return DatasetRecord(
        number.to_bytes(16, "big"),
        name or f"set-{number:05}",
        number,
        NOW_NS - number,
        2 * number,
        10 * number,
        1,
    )


def chunk(number: int, payload_bytes: int = 100) -> ChunkRecord:
    return ChunkRecord(number.to_bytes(16, "big"), NOW_NS, 10, payload_bytes, b"", 5, 1, b"")


def facts(times_s: Sequence[int]) -> ChunkFacts:
    by_chunk = {number.to_bytes(16, "big"): time_s for number, time_s in enumerate(times_s)}
    return ChunkFacts.of([chunk(number) for number in range(len(times_s))], by_chunk.__getitem__)


def test_ten_thousand_datasets_come_in_pages() -> None:
    datasets = [dataset(number) for number in range(10_000)]
    first = views.datasets_view(datasets, "", "name", 0)
    assert (first["total"], first["matching"], first["pages"], len(first["rows"])) == (
        10_000,
        10_000,
        100,
        PAGE_ROWS,
    )
    assert first["bytes"] == 10 * sum(range(10_000))
    last = views.datasets_view(datasets, "", "-size", 99)
    assert last["rows"][-1]["name"] == "set-00000"
    assert views.datasets_view(datasets, "", "name", 10_000)["page"] == 99


def test_search_finds_parts_of_names_in_any_case() -> None:
    datasets = [dataset(1, "ImageNet-train"), dataset(2, "imagenet-val"), dataset(3, "coco")]
    found = views.datasets_view(datasets, "NET va", "name", 0)
    assert [row["name"] for row in found["rows"]] == ["imagenet-val"]
    assert (found["total"], found["matching"]) == (3, 1)
    assert views.datasets_view(datasets, "nothing", "name", 5)["rows"] == []


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot sort by 'secret'"):
        views.datasets_view([], "", "secret", 0)


def test_growth_adds_up_in_the_order_of_time_until_now() -> None:
    growth = views.growth_view(facts([30, 10, 20, 20]), 50.0)
    assert growth == {"time": [10, 20, 30, 50], "bytes": [100, 300, 400, 400]}
    assert views.growth_view(facts([]), 50.0) == {"time": [], "bytes": []}


def test_growth_of_many_chunks_has_few_points_and_the_right_end() -> None:
    growth = views.growth_view(facts(range(100_000)), 100_000.0)
    assert len(growth["time"]) <= views.GROWTH_POINTS + 1
    assert growth["bytes"][-1] == 100 * 100_000
    assert np.all(np.diff(growth["bytes"]) >= 0)


def job(silent_s: dict[str, float], memory: dict[str, int] | None = None) -> FoundJob:
    secret, terms = JobSecret(b"s" * 32), JobId("data", "train", 5, b"d" * 32)
    count = len(silent_s)
    head = Head(NOW_NS, 1, 0, count, 5, b"d" * 32)
    leases = {}
    for rank, (node, silent) in enumerate(silent_s.items()):
        memory_bytes = (memory or {}).get(node, GIB)
        member = Member(node, rank, TcpAddress("10.0.0.1", 7000 + rank), memory_bytes, b"i" * 16)
        leases[node] = Lease(NOW_NS - int(silent * 1e9) + lease_ns(count), secret.seal(member, terms, 0))
    return FoundJob("data", "train", "ab" * 32, head, leases)


def test_a_job_shows_who_owns_what_share() -> None:
    shown = views.job_view(job({"n0": 0, "n1": 1}, {"n0": 3 * GIB}), facts([1] * 2000), NOW_NS, Right.WRITE)
    first, second = shown["members"]
    assert (first["node"], first["rank"], first["address"]) == ("n0", 0, "10.0.0.1:7000")
    assert first["owned_bytes"] + second["owned_bytes"] == shown["dataset_bytes"] == 200_000
    assert 0.7 < first["owned_share"] < 0.8
    assert (shown["nodes"], shown["suspected"], shown["memory_bytes"]) == (2, 0, 4 * GIB)


def test_readers_do_not_learn_the_machines_of_others() -> None:
    found = job({"login-of-ada": 0, "gpu-7": 1})
    shown = views.job_view(found, facts([1] * 2000), NOW_NS, Right.READ)
    assert [node["node"] for node in shown["members"]] == ["node 1", "node 2"]
    assert not any(secret in str(shown) for secret in ("login-of-ada", "gpu-7", "10.0.0.1"))


def test_a_job_shows_the_epoch_of_its_slowest_node_and_its_user_to_writers() -> None:
    ahead = NodeProgress(epoch=2, position=900, positions=1000, reads=50, hit_share=1.0)
    behind = NodeProgress(epoch=2, position=300, positions=1000, reads=10, hit_share=0.5, limit="store")
    told = {"n0": Told("ada", ahead, 1.0), "n1": Told("ada", behind, 2.0), "gone": Told("ada", ahead, 3.0)}
    found = replace(job({"n0": 0, "n1": 0, "n2": 0}), told=told)
    shown = views.job_view(found, facts([1]), NOW_NS, Right.WRITE)
    assert [shown[name] for name in ("epoch", "share", "reads", "hit_share")] == [2, 0.3, 60, 0.75]
    assert [node["told"] and node["told"]["limit"] for node in shown["members"]] == ["", "store", None]
    assert shown["users"] == ["ada"]
    assert "ada" not in str(views.job_view(found, facts([1]), NOW_NS, Right.READ))


def test_a_node_that_missed_renewals_is_suspected_and_one_without_lease_is_gone() -> None:
    late_s = LATE_INTERVALS * interval_s(3) + 0.5
    shown = views.job_view(job({"n0": 0, "n1": late_s, "n2": 3600}), facts([1]), NOW_NS, Right.WRITE)
    assert {node["node"]: node["is_suspected"] for node in shown["members"]} == {"n0": False, "n1": True}
    assert (shown["nodes"], shown["suspected"]) == (2, 1)


def test_users_see_their_own_failures_and_administrators_all() -> None:
    failures = [
        Failure(number, 1.0, "call", "stat", user, "NotFound", "x")
        for number, user in enumerate(["ann", "bob", ""])
    ]
    assert [each["number"] for each in views.failures_view(failures, "ann", False)] == [0]
    assert views.failures_view(failures, "", False) == []
    assert len(views.failures_view(failures, "ann", True)) == 3


def test_users_who_store_most_come_first() -> None:
    usages = [UsageRecord("user", f"user-{number:03}", "", 1, 2, number) for number in range(500)]
    found = views.users_view(usages, "")
    assert (found["total"], found["matching"], len(found["rows"])) == (500, 500, USERS_SHOWN_MAX)
    assert found["rows"][0]["name"] == "user-499"
    assert [row["name"] for row in views.users_view(usages, "USER 007")["rows"]] == ["user-007"]


def test_a_limit_is_none_without_a_quota() -> None:
    shown = views.usage_view(UsageRecord("dataset", "a", "ann", 1, 2, 3, 0))
    assert (shown["quota_bytes"], shown["quota_files"], shown["owner"]) == (0, None, "ann")
