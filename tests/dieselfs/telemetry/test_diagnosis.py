"""What is said to limit a training, from the activity of its mount."""

from dataclasses import replace

import pytest

from dieselfs.telemetry.activity import Activity, PlanProgress, ServerActivity
from dieselfs.telemetry.diagnosis import diagnosis

PLAN = PlanProgress(0, 100, 1000, 50.0, 18.0)
SLOW = Activity(
    1,
    {},
    5.0,
    0.3,
    1e8,
    {},
    1e8,
    100.0,
    2.0,
    0.0,
    {"server": 1.5, "verification": 0.1},
    0.5,
    1e9,
    2e9,
    0.4,
    (PLAN,),
)
SERVER = ServerActivity(2, {}, 5.0, 0.2, 50, 0, 1e8, 0, 1e8, 0.02, 0.01, 0.1, 3)
ASKED = replace(SERVER, about={"component": "server", "address": "tcp://storage-1:7070"})
GROUPED = replace(PLAN, group_bytes=10**9)
"""Of which 600 MB are not pinned."""


@pytest.mark.parametrize(
    ("seen", "servers", "limit", "advice"),
    [
        (replace(SLOW, failed=1.0), [], "failures", ".dieselfs/errors"),
        (replace(SLOW, reads=0, fetched_bytes=0, pushed_bytes=0, waiting=0), [], "idle", "decoding"),
        (
            replace(SLOW, reads=0, fetched_bytes=0, in_progress=3, seconds=10),
            [],
            "stalled",
            "dlcmd server status",
        ),
        (replace(SLOW, reads=0, fetched_bytes=0, in_progress=3), [], "unknown", "--for 30s"),
        (replace(SLOW, waiting=0.01), [], "none", "decoding"),
        (replace(SLOW, plans=()), [], "no-plan", ".dieselfs/shuffle"),
        (replace(SLOW, plans=(replace(PLAN, position=1000),)), [], "no-plan", ".dieselfs/shuffle"),
        (replace(SLOW, plans=(), best_hit_share=1.0), [], "no-plan", "dlcmd warm"),
        (replace(SLOW, cpu=0.95), [], "daemon", "processors"),
        (replace(SLOW, spent={"verification": 1.0, "server": 0.2}), [], "cpu", "processor"),
        (replace(SLOW, spent={"push": 1.0}), [], "push", "page helper"),
        (replace(SLOW, spent={"peer": 1.0}), [], "peers", "network"),
        (replace(SLOW, spent={"disk": 1.0}), [], "disk", "faster disk"),
        (SLOW, [replace(SERVER, busy=1.2)], "store", "tiered:"),
        (SLOW, [replace(SERVER, cpu=0.9)], "server", "more servers"),
        (SLOW, [replace(SERVER, limited=3.0)], "rate", "dlcmd limit ls"),
        (SLOW, [replace(SERVER, limited=3.0, cpu=0.9)], "server", "more servers"),
        (SLOW, [replace(SERVER, limited=3.0, busy=1.2)], "store", "tiered:"),
        (replace(SLOW, spent={}), [replace(SERVER, busy=0.0)], "memory", "more memory"),
        (SLOW, [replace(SERVER, run_delay=0.6)], "cpu", "fewer programs"),
        (replace(SLOW, run_delay=0.6), [], "cpu", "loader workers"),
        (replace(SLOW, run_delay=0.6), [replace(SERVER, limited=3.0, run_delay=0.6)], "rate", "limit ls"),
        (replace(SLOW, run_delay=1.6), [replace(SERVER, limited=3.0)], "cpu", "loader workers"),
        (SLOW, [SERVER], "memory", "more memory"),
        (replace(SLOW, plans=(GROUPED,), window_bytes=0.5e9), [], "group", "smaller groups"),
        (replace(SLOW, plans=(GROUPED,), window_bytes=0.7e9), [SERVER], "memory", "more memory"),
        (
            replace(SLOW, plans=(GROUPED,), window_bytes=0.5e9, hit_share=0.95, planned_files=50),
            [],
            "memory",
            "more memory",
        ),
        (
            replace(SLOW, plans=(GROUPED,), window_bytes=0.5e9, hit_share=0.95, planned_files=20),
            [replace(SERVER, busy=1.2)],
            "group",
            "smaller groups",
        ),
        (replace(SLOW, reads=0, waiting=0, in_progress=2), [replace(SERVER, busy=1.2)], "store", "tiered:"),
        (SLOW, [replace(ASKED, answering=0.2)], "network", "the servers"),
        (SLOW, [replace(ASKED, answering=1.2)], "memory", "more memory"),
        (SLOW, [replace(ASKED, answering=0.2, busy=1.2)], "store", "tiered:"),
        (replace(SLOW, best_hit_share=1.0), [replace(ASKED, answering=1.2)], "server", "Later epochs"),
        (replace(SLOW, best_hit_share=1.0, reclaimed=2.0), [SERVER], "memory", "control group"),
        (replace(SLOW, best_hit_share=1.0), [SERVER], "server", "Later epochs"),
        (
            replace(SLOW, hit_share=None, plans=(replace(PLAN, position=0),), pushed_bytes=0),
            [],
            "order",
            "without another",
        ),
        (replace(SLOW, hit_share=None, plans=(replace(PLAN, position=0),)), [], "memory", "memory"),
        (
            replace(SLOW, hit_share=None, plans=(replace(PLAN, position=0),), reads=1.0),
            [],
            "memory",
            "memory",
        ),
    ],
)
def test_the_first_limit_that_fits_is_named_with_its_remedy(
    seen: Activity, servers: list[ServerActivity], limit: str, advice: str
) -> None:
    found = diagnosis(seen, servers)
    assert found.limit == limit and advice in found.advice
    assert found.text.endswith(".") and found.advice.endswith(".")


def test_no_cause_is_named_that_is_not_known() -> None:
    """Other programs may use the processors, or threads of the daemon itself; a slow network is no silent server."""
    assert "other programs" not in diagnosis(replace(SLOW, run_delay=0.6), []).text
    assert "''" not in diagnosis(replace(SLOW, spent={}), []).text
    waiting = replace(SLOW, reads=0, fetched_bytes=0, in_progress=1, seconds=200)
    text = "1 read waits, and no chunk was complete after 3 min 20 s (a slow network, or no answer)."
    assert diagnosis(waiting, []).text == text


def test_important_files_are_counted_where_they_were() -> None:
    assert "importance" not in diagnosis(SLOW, []).text
    assert "; 50% of the files by importance were kept;" in (
        diagnosis(replace(SLOW, important=(200.0, 100.0, 0.0)), []).text
    )
    text = "; 50% of the files by importance were kept, 40% on other nodes;"
    assert text in diagnosis(replace(SLOW, important=(200.0, 100.0, 80.0)), []).text


def test_what_the_servers_do_not_tell_is_in_the_line() -> None:
    for seen in (SLOW, replace(SLOW, best_hit_share=1.0)):
        assert "(only administrators see it)" in diagnosis(seen, [], "only administrators see it").text
    assert "(" not in diagnosis(replace(SLOW, best_hit_share=1.0), []).text
    assert (
        "of which the servers need 1.20 s"
        in diagnosis(replace(SLOW, best_hit_share=1.0), [replace(ASKED, answering=1.2)]).text
    )
