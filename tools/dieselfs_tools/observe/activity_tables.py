"""The activity of daemons as tables for a terminal, with `rich`. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dieselfs.names import SCHEME
from dieselfs.telemetry.activity import Activity, PlanProgress, ServerActivity
from dieselfs.units import format_duration, format_size

_DAEMONS = (
    "daemon",
    "fetched/s",
    "reads/s",
    "waiting",
    "in time",
    "memory",
    "CPU",
    "time on",
    "slowest peer",
)
_PLANS = ("plan of", "epoch", "read", "files/s", "left")
_WRAPPED = ("memory", "time on", "slowest peer")
PLACE_COLUMNS_MIN = 10
"""The least width of the first column, which wraps."""
_SERVERS = ("server", "calls/s", "failed/s", "sent/s", "answer", "store", "CPU", "clients")


def tables(seen: Iterable[Activity | ServerActivity]) -> Group:
    """A table of mounts and caches, one of their plans, and one of servers; a line if there are none."""
    daemons: list[Activity] = []
    servers: list[ServerActivity] = []
    for each in seen:
        if isinstance(each, Activity):
            daemons.append(each)
        else:
            servers.append(each)
    found = [
        _table(_DAEMONS, [_daemon(each) for each in daemons]),
        _table(_PLANS, [_plan(each, plan) for each in daemons for plan in each.plans]),
        _table(_SERVERS, [_server(each) for each in servers]),
    ]
    filled = [table for table in found if table.row_count]
    return Group(*filled) if filled else Group(Text("no daemon of yours runs on this machine"))


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Without the columns that are empty: a terminal has 80 characters."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    filled = [number for number in range(len(names)) if any(row[number] for row in rows)]
    for number in filled:
        if number:
            table.add_column(names[number], justify="right", no_wrap=names[number] not in _WRAPPED)
        else:
            table.add_column(names[number], overflow="fold", min_width=PLACE_COLUMNS_MIN)
    for row in rows:
        table.add_row(*(Text(row[number]) for number in filled))
    return table


def _place(seen: Activity) -> str:
    about = seen.about
    place = about.get("mountpoint") or f"{SCHEME}{about.get('dataset', '')} (cache)"
    return f"{about['node']}: {place}" if "node" in about else place


def _daemon(seen: Activity) -> list[str]:
    cause, spent = max(seen.spent.items(), key=lambda item: item[1], default=("", 0.0))
    has_reads = "mountpoint" in seen.about  # readers map the chunks of a cache daemon
    granted_bytes = int(seen.memory_granted_bytes)
    return [
        _place(seen),
        format_size(int(seen.fetched_bytes)),
        f"{seen.reads:,.0f}" if has_reads else "",
        f"{seen.waiting:.2f}" if has_reads else "",
        "" if seen.hit_share is None else f"{seen.hit_share:.1%}",
        f"{format_size(int(seen.memory_used_bytes))} of {format_size(granted_bytes)}"
        if granted_bytes
        else "",
        f"{seen.cpu:.2f}",
        f"{cause} {spent:.2f}" if spent > 0 else "",
        _peer(seen.slowest_peer),
    ]


def _peer(slowest: Mapping[str, Any] | None) -> str:
    return f"{slowest['node']} {_latency(slowest['mean_s'])}" if slowest else ""


def _plan(seen: Activity, plan: PlanProgress) -> list[str]:
    return [
        _place(seen),
        f"{plan.epoch}",
        f"{plan.position / max(plan.positions, 1):.0%}",
        f"{plan.files_per_s:,.0f}" if plan.files_per_s else "",
        format_duration(plan.left_s) if plan.left_s and plan.position < plan.positions else "",
    ]


def _server(seen: ServerActivity) -> list[str]:
    return [
        f"server {seen.process}",
        f"{seen.calls:,.1f}",
        f"{seen.failed:,.1f}",
        format_size(int(seen.sent_bytes)),
        _latency(seen.answer_s),
        _latency(seen.store_s),
        f"{seen.cpu:.2f}",
        f"{seen.connections}",
    ]


def _latency(mean_s: float | None) -> str:
    return "" if mean_s is None else f"{mean_s * 1000:.1f} ms"
