import numpy as np

from dieselfs.metrics import Registry
from dieselfs_client.prefetch.hit_rate import HitRate


def test_what_nobody_asked_for_since_the_reader_began_was_in_the_page_cache() -> None:
    metrics = Registry()
    reads = HitRate(10, metrics)
    reads.requested(1)  # before anybody reads by plan
    first = reads.begin()
    reads.requested(2)
    reads.requested(2)
    second = reads.begin()
    reads.requested(3)
    reads.passed(first, np.array([1, 2, 3, 4]))
    assert metrics.as_dict()["page_cache"] == {"planned_files": 4, "hits": 2, "misses": 2}
    reads.passed(second, np.array([2, 3]))
    assert metrics.as_dict()["page_cache"] == {"planned_files": 6, "hits": 3, "misses": 3}
    reads.passed(second, np.empty(0, np.int64))
    assert metrics.as_dict()["page_cache"]["planned_files"] == 6
