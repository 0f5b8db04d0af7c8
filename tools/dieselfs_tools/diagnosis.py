"""What limits a training that reads a mount or a node cache, from its activity. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from dieselfs.activity import Activity, ServerActivity
from dieselfs.units import count, format_duration, format_size

WAITING_MIN = 0.05
"""Reads that wait on the average; below that, nobody notices them."""
BUSY_MIN = 0.8
"""Processors that a process uses, from which on it is the limit: most of its work is of one thread at a time."""
HIT_SHARE_MIN = 0.9
"""A plan that finds fewer of its files in the page cache has too little memory, or too little time."""
STORE_SHARE_MIN = 0.5
"""Of the time spent on servers, from which on their store, or the rates of users, are the limit."""
RUN_DELAY_MIN = 0.25
"""Seconds a second for which the main thread of a daemon waits for a processor, from which on that is the limit."""
STALLED_MIN_S = 10.0
"""Without a complete chunk; over a slow network, one takes seconds."""
OTHER_ORDER_READS_MIN = 50
"""Reads without a planned file among them, from which on the programs follow another order than that of the plan."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`limit`: one word for programs. `text`: what was seen, with numbers. `advice`: the one thing to change."""

    limit: str
    text: str
    advice: str


def diagnosis(seen: Activity, servers: Sequence[ServerActivity]) -> Diagnosis:
    """`servers`: those on this machine, which answer this daemon among others; none if it uses others."""
    rates = f"{seen.reads:,.0f} reads a second reach the daemon, {format_size(int(seen.fetched_bytes))}/s are fetched"
    waits = f"on the average {seen.waiting:.2f} of them wait"
    if seen.failed:
        return Diagnosis(
            "failures",
            f"{seen.failed:,.1f} reads a second fail; {rates}.",
            "See .dieselfs/errors of the mount, and 'dlcmd mounts'.",
        )
    if not seen.reads and not seen.fetched_bytes and seen.in_progress:
        return _without_chunks(seen)
    if not seen.reads and not seen.fetched_bytes and not seen.pushed_bytes:
        return Diagnosis(
            "idle",
            "No read reaches the daemon: programs read nothing, or all of it from the page cache.",
            "If the training is slow all the same, its own work is the limit: decoding, transforms, the model.",
        )
    if seen.waiting < WAITING_MIN:
        return Diagnosis(
            "none",
            f"Reading is not the limit: {rates}, {waits}.",
            "Look at decoding, transforms and the model; 'sampler.stalls' of the library has the shares of each step.",
        )
    if not any(plan.position < plan.positions for plan in seen.plans):
        return _without_plan(seen, f"{rates}, {waits}; no plan is read")
    if (
        seen.hit_share is None
        and seen.reads * seen.seconds >= OTHER_ORDER_READS_MIN
        and not seen.pushed_bytes  # else the first files of the plan are on their way, and no position is known yet
        and not any(plan.position for plan in seen.plans)
    ):
        return Diagnosis(
            "order",
            f"{rates}, {waits}; a plan was opened, but its files are read in another order.",
            "Read the files in the order of the list, without another shuffle; a larger group makes it more random.",
        )
    return _of_plan(seen, servers, f"{rates}, {waits}")


def _without_chunks(seen: Activity) -> Diagnosis:
    text = (
        f"{count(seen.in_progress, 'read')} {'waits' if seen.in_progress == 1 else 'wait'}, and no chunk was complete "
        f"after {format_duration(seen.seconds)}"
    )
    if seen.seconds < STALLED_MIN_S:
        return Diagnosis(
            "unknown", f"{text}.", "Watch the mount for longer: 'dlcmd why MOUNTPOINT --for 30s'."
        )
    return Diagnosis(
        "stalled",
        f"{text} (a slow network, or no answer).",
        "See 'dlcmd server status', the network, and .dieselfs/errors of the mount; reads fail after 30 s.",
    )


def _without_plan(seen: Activity, text: str) -> Diagnosis:
    if (seen.best_hit_share or 0) >= 1:
        return Diagnosis(
            "no-plan",
            f"{text}, and the dataset fits into the memory of the mount.",
            "Run 'dlcmd warm' before the training, or mount with --policy oneshot.",
        )
    return Diagnosis(
        "no-plan",
        f"{text}, so each file is fetched when it is read.",
        "Read in the order of a plan: a sampler of dieselfs.torch, or the list in .dieselfs/shuffle/.",
    )


def _of_plan(seen: Activity, servers: Sequence[ServerActivity], text: str) -> Diagnosis:
    hits = "" if seen.hit_share is None else f"; {seen.hit_share:.0%} of the planned files were there in time"
    if seen.run_delay >= RUN_DELAY_MIN:
        return Diagnosis(
            "cpu",
            f"{text}{hits}; the daemon waits {seen.run_delay:.2f} s a second for a processor.",
            "Run fewer programs or loader workers on this node, or keep a processor free for the mount.",
        )
    if seen.cpu >= BUSY_MIN:
        return Diagnosis(
            "daemon",
            f"{text}{hits}; the daemon uses {seen.cpu:.2f} processors.",
            "Let fewer programs compete for the processors of this node, or store samples in larger files.",
        )
    cause = max(seen.spent, key=lambda each: seen.spent[each], default="")
    spent = seen.spent.get(cause, 0.0)
    text = f"{text}{hits}" + (f"; its threads spend {spent:.2f} s a second on '{cause}'" if cause else "")
    if cause == "verification":
        return Diagnosis("cpu", f"{text}.", "Give the daemon a processor of its own.")
    if cause == "push":
        return Diagnosis(
            "push",
            f"{text}.",
            "Give the page helper a processor of its own, or store samples in larger files.",
        )
    if cause == "disk":
        return Diagnosis(
            "disk",
            f"{text}.",
            "Use a faster disk for --disk, or give the mount more memory; see disk.failures in .dieselfs/stats.",
        )
    if cause == "peer":
        return Diagnosis(
            "peers",
            f"{text}.",
            "Look at the network between the nodes, and at job.suspected in .dieselfs/stats.",
        )
    return _of_servers(seen, servers, text, spent)


def _of_servers(seen: Activity, servers: Sequence[ServerActivity], text: str, spent: float) -> Diagnosis:
    busiest = max(servers, key=lambda server: server.busy, default=None)
    delayed = max((server.run_delay for server in servers), default=0.0)
    if delayed >= RUN_DELAY_MIN:
        return Diagnosis(
            "cpu",
            f"{text}; the server on this machine waits {delayed:.2f} s a second for a processor.",
            "Run fewer programs on this machine, or the server on another one.",
        )
    if busiest is not None and busiest.cpu >= BUSY_MIN:
        return Diagnosis(
            "server",
            f"{text}; the server uses {busiest.cpu:.2f} processors.",
            "Start more servers over the same stores.",
        )
    if busiest is not None and busiest.busy > 0 and busiest.busy >= STORE_SHARE_MIN * spent:
        return Diagnosis(
            "store",
            f"{text}; {busiest.busy:.2f} calls of its object store are in progress on the average, "
            f"{(busiest.store_s or 0) * 1000:.1f} ms each.",
            "Put a faster tier before the store (tiered:), or give the mount more memory.",
        )
    limited = max((server.limited for server in servers), default=0.0)
    if limited > 0 and limited >= STORE_SHARE_MIN * spent:
        return Diagnosis(
            "rate",
            f"{text}; {limited:.1f} calls of users wait for their rates at a server on this machine.",
            "See with 'dlcmd limit ls' whether you have a limit; if so, ask an administrator for a higher one.",
        )
    if seen.best_hit_share is not None and seen.best_hit_share < 1:
        return Diagnosis(
            "memory",
            f"{text}; the memory of the mount holds {seen.best_hit_share:.0%} of the dataset, the rest comes again in "
            "each epoch.",
            "Give the mount more memory (--memory), or pool that of the job's nodes (--job).",
        )
    if seen.reclaimed > 0:
        return Diagnosis(
            "memory",
            f"{text}; the kernel has reclaimed pages of {seen.reclaimed:.1f} chunks a second.",
            "End other programs that use memory or read many files, or raise the limit of the control group.",
        )
    return Diagnosis(
        "server",
        f"{text}, which is the network to the server, the server or its store.",
        "Later epochs come from memory. For this one, see 'dlcmd top' where the server runs, and 'dlcmd limit ls'.",
    )
