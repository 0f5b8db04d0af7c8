import json
import os
import re
from bisect import bisect_right
from dataclasses import asdict
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Family, Registry, Report
from tests.support import counters_page

WORDS = st.text("abcdefgh", min_size=1, max_size=4)
NAMES = st.builds(
    lambda words, unit: "_".join([*words, *unit]),
    st.lists(WORDS, min_size=1, max_size=3),
    st.sampled_from([(), ("bytes",), ("s",)]),
)
BOUNDS = st.lists(st.floats(0, 100), min_size=1, max_size=6, unique=True).map(sorted)
EXPORTED = re.compile(r"dieselfs(_[a-z]+)+")


@given(
    st.dictionaries(st.tuples(WORDS, NAMES), st.lists(st.integers(0, 10**12), max_size=5), max_size=8),
)
def test_the_view_nests_each_number_under_its_group_and_goes_into_json(
    steps: dict[tuple[str, str], list[int]],
) -> None:
    metrics = Registry()
    for (group, name), more in steps.items():
        counter = metrics.counter(f"{group}.{name}", "Help.")
        for number in more:
            counter.value += number
    view = json.loads(json.dumps(metrics.as_dict()))
    assert {(group, name): value for group, names in view.items() for name, value in names.items()} == {
        place: sum(more) for place, more in steps.items()
    }
    assert metrics.numbers() == {f"{group}.{name}": sum(more) for (group, name), more in steps.items()}


@given(BOUNDS, st.lists(st.floats(0, 200), max_size=30))
def test_a_histogram_counts_the_values_up_to_each_bound(bounds: list[float], values: list[float]) -> None:
    histogram = Registry().histogram("reads.waited_s", "Help.", bounds)
    for value in values:
        histogram.observe(value)
    found, ordered = histogram.json(), sorted(values)
    assert found["count"] == len(values) and found["sum"] == pytest.approx(sum(values))
    assert [*found["le"].values()] == [bisect_right(ordered, bound) for bound in bounds]
    histogram.reset()
    assert histogram.json()["count"] == 0


@given(WORDS, NAMES, st.sampled_from(["counter", "gauge", "histogram"]))
def test_exported_names_end_as_openmetrics_wants(group: str, name: str, kind: str) -> None:
    family = Family(kind, f"{group}.{name}", "Help.")
    exported = family.exported_name
    assert EXPORTED.fullmatch(exported)
    assert exported.endswith("_total") == (kind == "counter")
    assert exported.removesuffix("_total").endswith(family.unit)
    assert family.unit == {"bytes": "bytes", "s": "seconds"}.get(name.rpartition("_")[2], "")


def test_labels_make_metrics_of_one_family() -> None:
    metrics = Registry()
    for operation, number in (("READ", 3), ("LOOKUP", 4)):
        metrics.counter("fuse.requests", "Help.", operation=operation).value += number
    assert metrics.as_dict() == {"fuse": {"requests": {"READ": 3, "LOOKUP": 4}}}
    assert metrics.numbers() == {"fuse.requests": 7}
    assert {family.labels for family, _, _ in metrics.collect()} == {("operation",)}


def test_a_name_that_is_declared_again_is_the_same_counter() -> None:
    metrics = Registry()
    metrics.counter("peers.requests", "Help.").value += 1
    metrics.counter("peers.requests", "Help.").value += 1
    assert metrics.as_dict() == {"peers": {"requests": 2}}
    with pytest.raises(AssertionError, match="is declared twice"):
        metrics.gauge("peers.requests", "Help.")


def test_a_family_of_the_catalogue_is_declared_with_its_labels_and_found_in_reports_and_statistics() -> None:
    metrics = Registry()
    spent = Family("gauge", "work.spent_s", "Time.", ("cause",))
    took = Family("histogram", "reads.waited_s", "Waits.", bounds=(1.0, 2.0))
    orders = Family("info", "orders", "Orders.")
    metrics.declare(spent, lambda: 2.5, cause="disk")
    metrics.declare(spent, cause="push").value = 1
    metrics.declare_histogram(took).observe(1.5)
    metrics.declare(orders, lambda: ["a"])
    report, statistics = metrics.report({}), metrics.as_dict()
    assert (report.total(spent), report.total(took), report.count(took)) == (3.5, 1.5, 1)
    assert [*report.values(spent)] == [({"cause": "disk"}, 2.5), ({"cause": "push"}, 1)]
    assert report.info(orders) == metrics.info_value(orders) == orders.find(statistics) == ["a"]
    assert spent.find(statistics) == {"disk": 2.5, "push": 1} and took.find(statistics)["sum"] == 1.5
    other = Family("info", "job.name", "Name.")
    assert report.info(other) is metrics.info_value(other) is None
    with pytest.raises(KeyError):
        other.find(statistics)
    with pytest.raises(AssertionError, match="has the labels"):
        metrics.declare(spent)


def test_what_is_read_is_asked_of_the_latest_part_without_the_lock() -> None:
    metrics = Registry()
    metrics.gauge("job.nodes", "Help.", lambda: 1)
    metrics.gauge("job.nodes", "Help.", lambda: 2 + metrics.lock.locked())
    metrics.info("job.name", "Help.", lambda: "train")
    assert metrics.as_dict() == {"job": {"nodes": 2, "name": "train"}}
    assert metrics.numbers() == {"job.nodes": 2}


def test_a_forked_child_begins_at_zero_though_a_thread_held_the_lock() -> None:
    metrics = Registry()
    counter = metrics.counter("reads.files", "Help.")
    counter.value += 5
    metrics.lock.acquire()
    metrics.after_fork()
    assert metrics.as_dict() == {"reads": {"files": 0}}
    counter.value += 1
    assert metrics.as_dict() == {"reads": {"files": 1}}


def test_a_report_of_another_process_is_checked() -> None:
    metrics = Registry()
    hits = Family("counter", "node_cache.hits", "Hits.", ("node",))
    metrics.declare(hits, node="n1").value = 3
    metrics.histogram("rpc.call_s", "Times.", (0.1, 1.0)).observe(0.5)
    sent = json.dumps(asdict(metrics.report({"process": "7"})))
    assert Report.parse(sent.encode()).total(hits) == 3
    for right, wrong in (
        ('"counter"', '"clock"'),
        ('[["n1"], 3]', '[["n1", "n2"], 3]'),
        ('[["n1"], 3]', '[["n1"], "3"]'),
        ('[["n1"], 3]', '[["n1"], Infinity]'),
        ('[["n1"], 3]', '[["n1"], 1' + "0" * 400 + "]"),
        ('"process"', '"a b"'),
        ('"le"', '"lt"'),
        ("{", "["),
    ):
        assert right in sent
        with pytest.raises(InvalidInput, match="not a report of metrics"):
            Report.parse(sent.replace(right, wrong).encode())


def test_under_the_lock_threads_lose_no_counts() -> None:
    metrics = Registry()
    one, other = (metrics.counter(f"sums.{name}", "Help.") for name in ("one", "other"))

    def count() -> None:
        for _ in range(2_000):
            with metrics.lock:
                one.value += 1
                other.value += 1

    threads = [Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen = metrics.as_dict()["sums"]
        assert seen["one"] == seen["other"], "both or none"
    assert metrics.as_dict()["sums"]["one"] == 8_000


def test_a_child_process_counts_from_zero() -> None:
    metrics = Registry()
    counter = metrics.counter("reads.files", "Help.")
    counter.value += 5
    with metrics.lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if metrics.as_dict() == {"reads": {"files": 0}} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert metrics.as_dict() == {"reads": {"files": 5}}


def test_the_page_of_counters_is_made_from_the_code() -> None:
    found = counters_page.PAGE.read_text(encoding="utf-8")
    assert found == counters_page.page(), "run: python -m tests.support.counters_page"


def test_each_family_of_the_catalogue_has_an_owner() -> None:
    families = {each for each in vars(catalogue).values() if isinstance(each, Family)}
    assert families - {each.family for each in counters_page.declarations()} == set()


def test_each_name_is_declared_in_one_way() -> None:
    by_name: dict[str, counters_page.Declaration] = {}
    for each in counters_page.declarations():
        first = by_name.setdefault(each.family.name, each)
        assert first.family == each.family, f"{first.place} and {each.place}"
    exported = [each.family.exported_name for each in by_name.values()]
    assert len(exported) == len(set(exported))
    assert not [name for name in by_name if any(other.startswith(f"{name}.") for other in by_name)]
