"""The rings of samples: bounded, the newest, and means of minutes."""

from dieselfs_server.web.charts import MINUTES_MAX, SAMPLES_MAX, Charts


def test_the_newest_samples_of_a_span() -> None:
    charts = Charts(["a", "b"])
    for number in range(SAMPLES_MAX + 10):
        charts.add(1000.0 + 2 * number, {"a": float(number)})
    columns = charts.columns(10)
    newest = SAMPLES_MAX + 9
    assert columns == {
        "time": [1000.0 + 2 * number for number in range(newest - 4, newest + 1)],
        "a": [float(number) for number in range(newest - 4, newest + 1)],
        "b": [None] * 5,
    }
    assert len(charts.columns(1800)["time"]) == SAMPLES_MAX


def test_a_long_span_has_means_of_minutes() -> None:
    charts = Charts(["a"])
    for second in range(0, 180, 2):
        charts.add(60_000.0 + second, {"a": None if second < 60 else float(second // 60)})
    assert charts.columns(86_400) == {"time": [60_000, 60_060, 60_120], "a": [None, 1.0, 2.0]}


def test_a_day_is_all_that_is_kept() -> None:
    charts = Charts(["a"])
    for minute in range(MINUTES_MAX + 100):
        charts.add(60.0 * minute, {"a": 1.0})
    assert len(charts.columns(10**9)["time"]) <= MINUTES_MAX + 1


def test_nothing_is_an_empty_chart() -> None:
    assert Charts(["a"]).columns(60) == {"time": [], "a": []}
