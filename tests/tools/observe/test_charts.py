"""Charts: well-formed, to scale, and with a text for those who do not see them."""

from xml.etree import ElementTree

import numpy as np

from dieselfs_tools.observe.report_page import HEIGHT, bars, lines, stacked

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
