import numpy as np

from dieselfs_client.ahead.plan_reads import PlanReadFigures, PlanReads


def test_what_nobody_asked_for_since_the_reader_began_was_in_the_page_cache() -> None:
    reads = PlanReads(10)
    reads.asked(1)  # before anybody reads by plan
    first = reads.begin()
    reads.asked(2)
    reads.asked(2)
    second = reads.begin()
    reads.asked(3)
    reads.passed(first, np.array([1, 2, 3, 4]))
    assert reads.figures == PlanReadFigures(files=4, from_page_cache=2, asked=2)
    reads.passed(second, np.array([2, 3]))
    assert reads.figures == PlanReadFigures(files=6, from_page_cache=3, asked=3)
    reads.passed(second, np.empty(0, np.int64))
    assert reads.figures.files == 6
