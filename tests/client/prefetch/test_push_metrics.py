"""What one push changes."""

from dieselfs.telemetry.registry import Registry
from dieselfs_client.prefetch.push_metrics import PushMetrics


def test_a_push_is_counted_with_its_time() -> None:
    metrics = Registry()
    pushes = PushMetrics(metrics)
    pushes.note(3, 1000, 0.02)
    pushes.note(1, 500, 2.0)
    found = metrics.as_dict()["prefetch"]
    assert (found["pushed_files"], found["pushed_bytes"], found["push_s"]["count"]) == (4, 1500, 2)
    assert found["push_s"]["sum"] == 2.02 and found["push_s"]["le"]["0.03"] == 1
