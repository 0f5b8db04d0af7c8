"""The page of dlcmd report, and its charts."""

import os
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import sync_playwright

from dieselfs.shuffle.quality import ShuffleQuality
from dieselfs_tools.observe.epoch_report import epoch_report
from dieselfs_tools.observe.report_page import (
    HEIGHT,
    RANKS_SHOWN_MAX,
    bars,
    fields,
    lines,
    meaning,
    page,
    stacked,
)
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


def test_a_sentence_says_what_it_means() -> None:
    report = epoch_report({"a": history(plan(3, [(40, 1000.0, 1010.0)]))})
    node = report.nodes[0]

    def said(files: int = 40, waited_s: float = 0.0, failed: int = 0) -> str:
        changed = replace(node, files=files, waited_s=waited_s, failed=failed, hit_share=0.5)
        return meaning(replace(report, nodes=[changed]))

    assert said().startswith("Reading was not the limit: on the average 0.00 reads waited.")
    assert "other epochs" not in said() and "read the same mounts" in said(files=9_069)
    slow = said(waited_s=2 * report.seconds)
    assert slow.startswith("Reading was a limit: on the average 2.00 reads waited, most of the time for '")
    assert "Only 50% of the files were in memory in time" in slow
    assert said(failed=2).startswith("2 reads failed")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium: apt-get install chromium")
def test_tables_have_whole_words_on_a_phone() -> None:
    report = epoch_report({"a-node-with-a-long-name": history(plan(3, [(40, 1000.0, 1010.0)]))})
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        try:
            shown = browser.new_page(viewport={"width": 390, "height": 900})
            shown.set_content(page("/mnt/x", report, QUALITY))
            heights = shown.locator("td").evaluate_all("cells => cells.map(cell => cell.offsetHeight)")
            assert max(heights) < 40
            assert not shown.evaluate("document.documentElement.scrollWidth > innerWidth")
        finally:
            browser.close()


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


ENDS_S = np.array([1.0, 2.0, 4.0])


def parsed(figure: str) -> ElementTree.Element:
    found = ElementTree.fromstring(figure).find("svg")
    assert found is not None
    return found


def places(svg: ElementTree.Element, tag: str) -> list[list[tuple[float, float]]]:
    shapes = [shape.attrib["points"].split() for shape in svg.iter(tag)]
    return [[(float(place.split(",")[0]), float(place.split(",")[1])) for place in each] for each in shapes]


def test_areas_stand_on_each_other() -> None:
    svg = parsed(stacked("<bytes>", ENDS_S, {"a": np.array([1.0, 2, 0]), "b": np.array([1.0, 2, 4])}, str))
    lower, upper = places(svg, "polygon")
    assert min(y for _, y in upper) == round(8 + (HEIGHT - 32) * (1 - 4 / 5), 1)  # the scale ends at 5
    assert lower[:6] == upper[6:][::-1]  # where one ends, the other begins
    assert svg.attrib["aria-label"] == "<bytes>: over 4 seconds; the scale ends at 5.0"


def test_a_curve_has_gaps_where_nothing_is_known() -> None:
    figure = lines("hits", ENDS_S, {"a": np.array([0.5, np.nan, 1.0])}, str, top=1.0)
    first, second = places(parsed(figure), "polyline")
    assert [y for _, y in first] == [92, 92] and [y for _, y in second] == [8, 8]
    assert second[0][0] > first[-1][0] and "key" not in figure


def test_nothing_at_all_is_a_flat_line() -> None:
    zeros = np.zeros(3)
    for figure in (
        lines("x", ENDS_S, {"a": zeros, "b": zeros}, str),
        stacked("x", ENDS_S, {"a": zeros}, str),
    ):
        assert "nan" not in figure and parsed(figure) is not None
    assert 'width="0.0"' in bars("x", {"a": 0.0}, str) and parsed(bars("x", {}, str)) is not None


def test_bars_are_relative_to_the_longest() -> None:
    svg = parsed(bars("seconds", {"a & b": 2.0, "c": 1.0}, str))
    widths = [float(each.attrib["width"]) for each in svg.iter("rect") if each.attrib["class"] != "track"]
    assert widths[0] == 2 * widths[1] and "a & b 2.0, c 1.0" in svg.attrib["aria-label"]
