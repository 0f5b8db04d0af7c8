"""The page of an epoch: complete, without scripts and other files, and whatever names there are."""

import re

from dieselfs.shuffle.quality import ShuffleQuality
from dieselfs_tools.observe.epoch_report import epoch_report
from dieselfs_tools.observe.report_page import RANKS_SHOWN_MAX, fields, page
from tests.tools.observe.test_epoch_report import history, plan

QUALITY = ShuffleQuality(0.9, 0.3, 0.25, 0.1, 100, 50.0)


def test_the_page_needs_nothing_else() -> None:
    report = epoch_report({"<b>": history(plan(3, [(40, 1000.0, 1010.0), (80, 1000.0, 1005.0)]))})
    text = page("/mnt/<i>", report, QUALITY)
    assert "<h1>/mnt/&lt;i&gt;: epoch 3, seed 1</h1>" in text and "<b>" not in text
    assert not re.search(r"<script|<link|<img|https?:|url\(|\son\w+=", text)
    assert "prefers-color-scheme: dark" in text and text.count("<svg") == 9
    assert "90.0%" in text and "The slowest takes 1.33 times the mean" in text
    assert "<td>&lt;b&gt;, rank 1</td><td>80</td><td>100.0%</td>" in text


def test_without_plan_and_quality_it_says_so() -> None:
    assert "nothing is known of the order" in page("x", epoch_report({"a": history()}), None)
    report = epoch_report({"a": history(plan(3, [(40, 1000.0, 1010.0)]))})
    assert "quality of this order is not known" in page("x", report, None)
    assert fields(report, None)["quality"] is None


def test_a_large_job_has_a_bounded_table() -> None:
    report = epoch_report({"a": history(plan(0, [(40, 1000.0, 1010.0)] * (RANKS_SHOWN_MAX + 9)))})
    assert "... and 9 more" in page("job x", report, QUALITY)
    ranks = fields(report, QUALITY)["ranks"]
    assert isinstance(ranks, list) and len(ranks) == RANKS_SHOWN_MAX + 9
