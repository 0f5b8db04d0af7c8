"""The activity of daemons as tables for a terminal, with `rich`. No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dieselfs.activity import Activity, PlanProgress, ServerActivity
from dieselfs.names import SCHEME
from dieselfs.units import format_duration, format_size

_DAEMONS = (
    "daemon",
    "fetched/s",
    "reads/s",
    "waiting",
    "in time",
    "memory",
    "CPU",
    "most time on",
    "slowest peer",
    "plan",
)
_SERVERS = ("server", "calls/s", "failed/s", "sent/s", "answer", "store", "CPU", "clients")


def tables(seen: Iterable[Activity | ServerActivity]) -> Group:
    """A table of mounts and caches, and one of servers; a line if there are none."""
    daemons, servers = _table(_DAEMONS), _table(_SERVERS)
    for each in seen:
        if isinstance(each, Activity):
            daemons.add_row(*_daemon(each))
        else:
            servers.add_row(*_server(each))
    found = [table for table in (daemons, servers) if table.row_count]
    return Group(*found) if found else Group(Text("no daemon of yours runs on this machine"))


def _table(columns: Iterable[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    first, *others = columns
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _daemon(seen: Activity) -> list[Text]:
    about = seen.about
    place = about.get("mountpoint") or f"{SCHEME}{about.get('dataset', '')} (cache)"
    if "node" in about:
        place = f"{about['node']}: {place}"
    cause, spent = max(seen.spent.items(), key=lambda item: item[1], default=("", 0.0))
    cells = [
        place,
        format_size(int(seen.fetched_bytes)),
        f"{seen.reads:,.0f}",
        f"{seen.waiting:.2f}",
        "" if seen.hit_share is None else f"{seen.hit_share:.1%}",
        f"{format_size(int(seen.memory_used_bytes))} of {format_size(int(seen.memory_granted_bytes))}",
        f"{seen.cpu:.2f}",
        f"{cause} {spent:.2f}" if spent > 0 else "",
        _peer(seen.slowest_peer),
        "\n".join(map(_plan, seen.plans)),
    ]
    return [Text(cell) for cell in cells]


def _peer(slowest: Mapping[str, Any] | None) -> str:
    return f"{slowest['node']} {_latency(slowest['mean_s'])}" if slowest else ""


def _plan(plan: PlanProgress) -> str:
    done = plan.position / max(plan.positions, 1)
    rate = f", {plan.files_per_s:,.0f} files/s" if plan.files_per_s else ""
    left = f", {format_duration(plan.left_s)} left" if plan.left_s and plan.position < plan.positions else ""
    return f"epoch {plan.epoch}: {done:.0%}{rate}{left}"


def _server(seen: ServerActivity) -> list[Text]:
    cells = [
        f"process {seen.process}",
        f"{seen.calls:,.1f}",
        f"{seen.failed:,.1f}",
        format_size(int(seen.sent_bytes)),
        _latency(seen.answer_s),
        _latency(seen.store_s),
        f"{seen.cpu:.2f}",
        f"{seen.connections}",
    ]
    return [Text(cell) for cell in cells]


def _latency(mean_s: float | None) -> str:
    return "" if mean_s is None else f"{mean_s * 1000:.1f} ms"
