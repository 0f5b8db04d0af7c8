"""`dlcmd warm`: fetch before anybody reads."""

import time
from dataclasses import asdict

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, EXIT_PARTIAL, InvalidInput
from dieselfs_client import control, warm_control
from dieselfs_client.warm_control import MountWarmth
from dieselfs_tools import options
from dieselfs_tools.output import Output
from dieselfs_tools.progress import Reading, shown
from dieselfs_tools.session import Session
from dieselfs_tools.units import count, format_duration

POLL_S = 0.25
"""Between two questions to the mount; in a job, the nodes are asked no more often than once a second all the same."""


def parse_share(text: str) -> float:
    """The part, from 0 to 1, of `80%` or `80`. Raises InvalidInput."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise InvalidInput(f"{text!r} is not a part: write for example 80%, and at most 100%")
    return share


@options.verb(
    "warm",
    "dlcmd warm /mnt/imagenet",
    "dlcmd warm /mnt/imagenet --wait 80% --timeout 15m",
)
@click.argument("mountpoint", metavar="FOLDER")
@click.option(
    "--wait",
    "share",
    type=options.Parsed("PERCENT", parse_share),
    help="Return when so much is in memory of what it can keep: on all nodes of the job together.",
)
@click.option(
    "--timeout", "timeout_s", type=options.DURATION, help="Wait no longer than this. [as long as it takes]"
)
@options.dry_run
def warm(
    session: Session, mountpoint: str, share: float | None, timeout_s: int | None, is_dry_run: bool
) -> int:
    """Fetch what the memory of a mount can keep, before it is read; in a job, on all of its nodes.

    It goes on in the background, and gives way to readers. Without --wait, the command returns at once.
    """
    if timeout_s is not None and share is None:
        raise InvalidInput("--timeout is how long to --wait")
    place = control.mounted_place(mountpoint)
    if is_dry_run:
        return session.output.summary(f"would warm {place}", {"mountpoint": place, "dry_run": True})
    found = warm_control.warm(place)
    if share is not None and not _is_reached(found, share):
        found = _wait(session, place, found, share, timeout_s)
    return _end(session, place, found, share, timeout_s)


def _is_reached(found: MountWarmth, share: float) -> bool:
    return found.whole.share >= share


def _wait(
    session: Session, place: str, found: MountWarmth, share: float, timeout_s: int | None
) -> MountWarmth:
    """Ask until it is warm enough, or the time is over; what was told last."""
    end_s = None if timeout_s is None else time.monotonic() + timeout_s

    def reading() -> Reading:
        done = found.whole
        total_bytes = round(done.wanted_bytes * share)
        nodes = len(found.nodes) + len(found.unknown)
        return Reading(found.warm_nodes, done.kept_bytes, nodes, total_bytes, len(found.unknown), noun="node")

    with shown(session.output, "warm", reading):
        while not _is_reached(found, share):
            left_s = POLL_S if end_s is None else end_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(POLL_S, left_s))
            found = warm_control.warm(place)
    return found


def rest_of(output: Output, found: MountWarmth) -> str:
    """What a dataset has beyond what can be in memory, in words; nothing while a node is silent, which may have it."""
    dataset_bytes = found.dataset_bytes or 0
    if found.unknown or dataset_bytes <= found.whole.wanted_bytes:
        return ""
    why = "is damaged, or does not fit" if found.whole.damaged_chunks else "does not fit"
    return f"; the dataset has {output.size(dataset_bytes)}, and the rest {why}"


def _end(session: Session, place: str, found: MountWarmth, share: float | None, timeout_s: int | None) -> int:
    output, whole = session.output, found.whole
    sizes = f"{output.size(whole.kept_bytes)} of {output.size(whole.wanted_bytes)}{rest_of(output, found)}"
    of = f"job {found.job}, {len(found.nodes) + len(found.unknown)} nodes" if found.job else place
    for node in found.unknown:
        output.error(f"node {node} does not answer; it is taken to be cold")
    exit_code = EXIT_OK
    if whole.damaged_chunks:
        exit_code = EXIT_DAMAGED
        output.error(
            f"damaged, and not in memory: {count(whole.damaged_chunks, 'chunk')}; see dlcmd fsck --deep"
        )
    if share is not None and timeout_s is not None and not _is_reached(found, share):
        exit_code = EXIT_PARTIAL
        output.error(
            f"{of}: after {format_duration(timeout_s)} {whole.share:.1%} is in memory, {sizes}; it goes on"
        )
    fields = {
        "mountpoint": place,
        "job": found.job,
        **asdict(whole),
        "share": whole.share,
        "dataset_bytes": found.dataset_bytes,
        "nodes": {node: {**asdict(each), "share": each.share} for node, each in found.nodes.items() if node},
        "unknown": list(found.unknown),
    }
    return output.summary(f"{of}: {whole.share:.1%} is in memory, {sizes}", fields, exit_code)
