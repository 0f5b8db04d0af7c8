"""An epoch from the histories of daemons."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import NotFound
from dieselfs.telemetry.series import Recorded
from dieselfs_tools.observe.epoch_report import POINTS_MAX, epoch_report

COUNTERS = "dieselfs_{}_total"


def family(name: str, samples: Mapping[str, Any], label: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "labels": [label] if label else [],
        "samples": [[[value] if label else [], numbers] for value, numbers in samples.items()],
    }


def plan(epoch: int, readers: Sequence[tuple[int, float, float]]) -> dict[str, Any]:
    """`readers`: position, begin and last sign of each rank."""
    return {
        "order": f"order {epoch}",
        "seed": 1,
        "epoch": epoch,
        "group": 100,
        "positions": 80,
        "readers": [
            {
                "world": len(readers),
                "rank": rank,
                "worker": 0,
                "position": position,
                "began_s": began_s,
                "moved_s": moved_s,
            }
            for rank, (position, began_s, moved_s) in enumerate(readers)
        ],
    }


def history(*plans: dict[str, Any], factor: float = 1.0) -> Recorded:
    """10 files a second, of which 8 are in time, and 100 bytes a second, from second 1000 to 1010."""
    seconds = np.arange(11.0) * factor

    def rising(rate: float) -> list[float]:
        found: list[float] = (seconds * rate).tolist()
        return found

    families = [
        family("dieselfs_page_cache_planned_files_total", {"": rising(10)}),
        family("dieselfs_page_cache_hits_total", {"": rising(8)}),
        family("dieselfs_fetches_chunk_bytes_total", {"": rising(60)}),
        family("dieselfs_fetches_range_bytes_total", {"": rising(40)}),
        family("dieselfs_disk_hit_bytes_total", {"": rising(30)}),
        family("dieselfs_reads_waited_seconds", {"": {"count": rising(5), "sum": rising(0.5)}}),
        family("dieselfs_work_spent_seconds", {"server": rising(0.2), "push": rising(0.1)}, "cause"),
        family("dieselfs_hit_rate_best_possible", {"": [0.5] * 11}),
        family("dieselfs_memory_used_bytes", {"a": [7.0] * 11, "b": [3.0] * 11}, "part"),
    ]
    return Recorded({"component": "mount"}, (1000 + np.arange(11.0)).tolist(), families, plans)


def test_a_mount_without_plans_is_shown_as_far_as_it_is_known() -> None:
    found = epoch_report({"/mnt": history()})
    assert (found.plan, found.began_s, found.seconds, found.ranks) == (None, 1000, 10, [])
    assert (
        found.ends_s.tolist() == [*range(1, 11)]
        and np.allclose(found.files, 10)
        and np.allclose(found.hits, 0.8)
    )
    assert np.allclose(found.fetched["disk"], 30) and np.allclose(found.fetched["server"], 70)
    assert np.allclose(found.waiting, 0.5) and np.allclose(found.memory_used_bytes, 10)
    totals = found.totals()
    assert (totals["files"], totals["files_per_s"], totals["hit_share"], totals["waited_s"]) == (
        100,
        10,
        0.8,
        5,
    )
    assert totals["fetched_bytes"] == {"node": 0, "peers": 0, "disk": 300, "server": 700}
    assert totals["spent_s"]["server"] == 2 and totals["best_hit_share"] == 0.5


def test_the_latest_epoch_is_chosen_and_any_other_by_its_number() -> None:
    mount = history(
        plan(0, [(80, 1000.0, 1002.5)]),
        plan(1, [(20, 1003.0, 1008.0), (40, 1004.0, 1007.0)]),
        plan(2, [(0, 1008.0, 1008.0)]),
    )
    found = epoch_report({"/mnt": mount})  # nobody reads epoch 2 yet
    assert found.plan is not None and found.plan["epoch"] == 1
    assert (found.began_s, found.seconds, found.totals()["files"]) == (1003, 5, 50)
    ranks = [(each.rank, each.share, each.seconds, each.positions_per_s) for each in found.ranks]
    assert ranks == [(0, 0.25, 5, 4), (1, 0.5, 3, 13.333)]
    assert epoch_report({"/mnt": mount}, 0).seconds == 2.5
    with pytest.raises(NotFound, match="known epochs: 0, 1, 2"):
        epoch_report({"/mnt": mount}, 7)


def test_the_nodes_of_a_job_are_added_up() -> None:
    nodes = {
        "a": history(plan(0, [(40, 1000.0, 1010.0)])),
        "b": history(plan(0, [(80, 1002.0, 1010.0)]), factor=2.0),
        "c": history(),  # has not begun
    }
    found = epoch_report(nodes)
    assert np.allclose(found.files, 40) and found.totals()["files"] == 400
    assert [(each.node, each.files) for each in found.nodes] == [("a", 100), ("b", 200), ("c", 100)]
    assert [(each.node, each.seconds) for each in found.ranks] == [("a", 10), ("b", 8)]


def test_sources_are_those_that_a_daemon_counts() -> None:
    daemon = history()
    counted = {"server": 50.0, "peer": 20.0, "node": 5.0}
    families = [
        *daemon.families,
        *(
            family(f"dieselfs_requested_{source}_bytes_total", {"": (np.arange(11.0) * rate).tolist()})
            for source, rate in counted.items()
        ),
    ]
    found = epoch_report({"a": Recorded(daemon.about, daemon.times_s, families, [])})
    rates = {source: round(float(values.mean())) for source, values in found.fetched.items()}
    assert rates == {"node": 5, "peers": 20, "disk": 30, "server": 20}


def test_a_curve_has_a_bounded_number_of_points() -> None:
    times_s = [*map(float, range(3600))]
    found = epoch_report({"a": Recorded({}, times_s, [], [])})
    assert len(found.files) == POINTS_MAX == len([*found.points()])
    single = epoch_report({"a": Recorded({}, [5.0], [], [])})
    assert len(single.files) == 1 and single.totals()["files"] == 0 and single.totals()["hit_share"] is None
