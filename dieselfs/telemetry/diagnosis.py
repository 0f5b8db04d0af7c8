"""What limits a training that reads a mount or a node cache, from its activity. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from dieselfs.telemetry import catalogue
from dieselfs.telemetry.activity import Activity, ServerActivity
from dieselfs.units import count, format_duration, format_size

WAITING_MIN = 0.05
"""Reads that wait on the average; below that, nobody notices them."""
BUSY_MIN = 0.8
"""Processors that a process uses, from which on it is the limit: most of its work is of one thread at a time."""
HIT_SHARE_MIN = 0.9
"""A plan that finds fewer of its files in the page cache has too little memory, or too little time."""
HIT_FILES_MIN = 50
"""Of fewer planned files, as in a short time, that share says little: most come at once, a chunk at a time."""
STORE_SHARE_MIN = 0.5
"""The part of the time spent on servers from which on their store, or the rates of users, are the limit."""
RUN_DELAY_MIN = 0.25
"""Seconds a second for which the main thread of a daemon waits for a processor, from which on that is the limit."""
STALLED_MIN_S = 10.0
"""Without a complete chunk; over a slow network, one takes seconds."""
OTHER_ORDER_READS_MIN = 50
"""Reads without a planned file among them, from which on the programs follow another order than that of the plan."""

_ADVICE = {
    "failures": "See .dieselfs/errors of the mount, and 'dlcmd mounts'.",
    "idle": "If the training is slow all the same, its own work is the limit: decoding, transforms, the model.",
    "none": "Look at decoding, transforms and the model; 'sampler.stalls' of the library has the shares of each step.",
    "order": "Read the files in the order of the list, without another shuffle; a larger group makes it more random.",
    "unknown": "Watch the mount for longer: 'dlcmd why MOUNTPOINT --for 30s'.",
    "stalled": "See 'dlcmd server status', the network, and .dieselfs/errors of the mount; reads fail after 30 s.",
    "no-plan: fits": "Run 'dlcmd warm' before the training, or mount with --policy oneshot.",
    "no-plan: large": "Read in the order of a plan: a sampler of dieselfs.torch, or the list in .dieselfs/shuffle/.",
    "group": "Read in smaller groups (group=), or give the mount more memory (--memory).",
    "cpu: node": "Run fewer programs or loader workers on this node, or keep a processor free for the mount.",
    "daemon": "Let fewer programs compete for the processors of this node, or store samples in larger files.",
    "cpu: verification": "Give the daemon a processor of its own.",
    "push": "Give the page helper a processor of its own, or store samples in larger files.",
    "disk": "Use a faster disk for --disk, or give the mount more memory; "
    f"see {catalogue.DISK_FAILURES.name} in .dieselfs/stats.",
    "peers": f"Look at the network between the nodes, and at {catalogue.JOB_SUSPECTED.name} in .dieselfs/stats.",
    "cpu: server": "Run fewer programs on the machine of the server, or the server on another one.",
    "server: busy": "Start more servers over the same stores.",
    "store": "Put a faster tier before the store (tiered:), or give the mount more memory.",
    "rate": "See with 'dlcmd limit ls' whether you have a limit; if so, ask an administrator for a higher one.",
    "network": "Look at the network between this node and the servers, or give the mount more memory.",
    "memory: mount": "Give the mount more memory (--memory), or pool that of the job's nodes (--job).",
    "memory: kernel": "End other programs that use memory or read many files, or raise the limit of the control "
    "group.",
    "server": "Later epochs come from memory. For this one, see 'dlcmd top' where the server runs, and 'dlcmd limit "
    "ls'.",
}
"""The one thing to change for each limit; behind a colon, what of it."""
_OF_CAUSE = {"verification": "cpu: verification", "push": "push", "disk": "disk", "peer": "peers"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`limit`: one word for programs. `text`: what was seen, with numbers. `advice`: the one thing to change."""

    limit: str
    text: str
    advice: str


def _found(cause: str, text: str) -> Diagnosis:
    return Diagnosis(cause.partition(":")[0], text, _ADVICE[cause])


def diagnosis(seen: Activity, servers: Sequence[ServerActivity], unknown: str = "") -> Diagnosis:
    """`servers`: those of the mount, with their `address`, if they could be asked; else those on this machine, which
    may answer this daemon among others. `unknown`: why they could not be asked.
    """
    rates = f"{seen.reads:,.0f} reads a second reach the daemon, {format_size(int(seen.fetched_bytes))}/s are fetched"
    waiting = seen.waiting if seen.reads else seen.in_progress  # counted when they end
    waits = f"on the average {waiting:.2f} of them wait"
    if seen.failed:
        return _found("failures", f"{seen.failed:,.1f} reads a second fail; {rates}.")
    if not seen.reads and not seen.fetched_bytes and seen.in_progress:
        return _without_chunks(seen)
    if not seen.reads and not seen.fetched_bytes and not seen.pushed_bytes:
        return _found(
            "idle", "No read reaches the daemon: programs read nothing, or all of it from the page cache."
        )
    if waiting < WAITING_MIN:
        return _found("none", f"Reading is not the limit: {rates}, {waits}.")
    if not any(plan.position < plan.positions for plan in seen.plans):
        return _without_plan(seen, f"{rates}, {waits}; no plan is read")
    if (
        seen.hit_share is None
        and seen.reads * seen.seconds >= OTHER_ORDER_READS_MIN
        and not seen.pushed_bytes  # else the first files of the plan are on their way, and no position is known yet
        and not any(plan.position for plan in seen.plans)
    ):
        return _found(
            "order", f"{rates}, {waits}; a plan was opened, but its files are read in another order."
        )
    return _of_plan(seen, servers, f"{rates}, {waits}", unknown)


def _without_chunks(seen: Activity) -> Diagnosis:
    text = (
        f"{count(seen.in_progress, 'read')} {'waits' if seen.in_progress == 1 else 'wait'}, and no chunk was complete "
        f"after {format_duration(seen.seconds)}"
    )
    if seen.seconds < STALLED_MIN_S:
        return _found("unknown", f"{text}.")
    return _found("stalled", f"{text} (a slow network, or no answer).")


def _without_plan(seen: Activity, text: str) -> Diagnosis:
    if (seen.best_hit_share or 0) >= 1:
        return _found("no-plan: fits", f"{text}, and the dataset fits into the memory of the mount.")
    return _found("no-plan: large", f"{text}, so each file is fetched when it is read.")


def _of_plan(seen: Activity, servers: Sequence[ServerActivity], text: str, unknown: str) -> Diagnosis:
    hits = "" if seen.hit_share is None else f"; {seen.hit_share:.0%} of the planned files were there in time"
    reads, kept, at_others = seen.important
    if reads:
        hits += f"; {kept / reads:.0%} of the files by importance were kept"
        hits += f", {at_others / reads:.0%} on other nodes" if at_others else ""
    unpinned = 1 - min(seen.best_hit_share or 0, 1)
    group_bytes = unpinned * sum(plan.group_bytes for plan in seen.plans if plan.position < plan.positions)
    is_in_time = (seen.hit_share or 0) >= HIT_SHARE_MIN and seen.planned_files >= HIT_FILES_MIN
    if group_bytes > seen.window_bytes > 0 and not is_in_time:
        return _found(
            "group",
            f"{text}{hits}; reads are random over groups of {format_size(group_bytes)}, for which the mount has "
            f"{format_size(seen.window_bytes)} of memory, so chunks come again.",
        )
    if seen.run_delay >= max(RUN_DELAY_MIN, _paced(seen, servers)):
        return _found(
            "cpu: node", f"{text}{hits}; the daemon waits {seen.run_delay:.2f} s a second for a processor."
        )
    if seen.cpu >= BUSY_MIN:
        return _found("daemon", f"{text}{hits}; the daemon uses {seen.cpu:.2f} processors.")
    cause = max(seen.spent, key=lambda each: seen.spent[each], default="")
    spent = seen.spent.get(cause, 0.0)
    text = f"{text}{hits}" + (f"; its threads spend {spent:.2f} s a second on '{cause}'" if cause else "")
    if cause in _OF_CAUSE:
        return _found(_OF_CAUSE[cause], f"{text}.")
    return _of_servers(seen, servers, text, spent, unknown)


def _paced(seen: Activity, servers: Sequence[ServerActivity]) -> float:
    """Seconds a second for which threads of the daemon wait because users have rates, which a free processor does not
    shorten; 0 if they wait for something else most of the time.
    """
    limited = max((server.limited for server in servers), default=0.0)
    spent = max(seen.spent.values(), default=0.0)
    return min(limited, spent) if limited >= STORE_SHARE_MIN * spent else 0.0


def _of_servers(
    seen: Activity, servers: Sequence[ServerActivity], text: str, spent: float, unknown: str
) -> Diagnosis:
    busiest = max(servers, key=lambda server: server.busy, default=None)
    delayed = max((server.run_delay for server in servers), default=0.0)
    if delayed >= max(RUN_DELAY_MIN, _paced(seen, servers)):
        return _found("cpu: server", f"{text}; the server waits {delayed:.2f} s a second for a processor.")
    if busiest is not None and busiest.cpu >= BUSY_MIN:
        return _found("server: busy", f"{text}; the server uses {busiest.cpu:.2f} processors.")
    if busiest is not None and busiest.busy > 0 and busiest.busy >= STORE_SHARE_MIN * spent:
        return _found(
            "store",
            f"{text}; {busiest.busy:.2f} calls of its object store are in progress on the average, "
            f"{(busiest.store_s or 0) * 1000:.1f} ms each, and {count(busiest.waiting, 'more read')} wait for them.",
        )
    limited = max((server.limited for server in servers), default=0.0)
    if limited > 0 and limited >= STORE_SHARE_MIN * spent:
        return _found("rate", f"{text}; {limited:.1f} calls of users wait for their rates at a server.")
    answering = sum(server.answering for server in servers)
    if any(map(_is_remote, servers)) and answering < STORE_SHARE_MIN * spent:
        return _found(
            "network", f"{text}; the servers need only {answering:.2f} s a second for all reads of chunks."
        )
    if unknown:
        text += f" ({unknown})"
    if seen.best_hit_share is not None and seen.best_hit_share < 1:
        return _found(
            "memory: mount",
            f"{text}; the memory of the mount holds {seen.best_hit_share:.0%} of the dataset, the rest comes again in "
            "each epoch.",
        )
    if seen.reclaimed > 0:
        return _found(
            "memory: kernel",
            f"{text}; the kernel has reclaimed pages of {seen.reclaimed:.1f} chunks a second.",
        )
    if any("address" in server.about for server in servers):
        part = f", of which the servers need {answering:.2f} s"
    else:
        part = ", which is the network to the server, the server or its store"
    return _found("server", f"{text}{part}.")


def _is_remote(server: ServerActivity) -> bool:
    return server.about.get("address", "").startswith("tcp:")
