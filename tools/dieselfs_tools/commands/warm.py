"""`dlcmd warm`: fetch the content of a mount into memory."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, EXIT_PARTIAL, InvalidInput
from dieselfs.units import count, format_duration
from dieselfs_client.daemon import control
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs_client.mount.control.warmth import MountWarmth

POLL_S = 0.25
"""Between two requests to the mount, which polls the nodes of a job once a second at most."""


def parse_share(text: str) -> float:
    """The share, from 0 to 1, of `80%` or `80`. Raises InvalidInput."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise InvalidInput(f"{text!r} is not a percentage above 0: write for example 80%")
    return share


@options.verb("warm", "dlcmd warm /mnt/imagenet", "dlcmd warm /mnt/imagenet --wait 80% --timeout 15m")
@click.argument("mountpoint", type=options.MOUNTPOINT, metavar="FOLDER")
@click.option(
    "--wait",
    "share",
    type=options.Parsed("PERCENT", parse_share),
    help="Wait until this share of the chunks that fit into memory is loaded, on all nodes of the job together.",
)
@click.option("--timeout", "timeout_s", type=options.DURATION, help="Limit of the --wait. [no limit]")
@options.dry_run
def warm(
    session: Session, mountpoint: str, share: float | None, timeout_s: float | None, is_dry_run: bool
) -> int:
    """Load the chunks that fit into the memory of a mount, before they are read; in a job, on all nodes.

    Loading runs in the background, and readers have priority. Without --wait, the command returns at once.
    """
    from dieselfs_client.mount.control import warmth

    if timeout_s is not None and share is None:
        raise InvalidInput("--timeout needs --wait, which it limits")
    place = control.mounted_place(mountpoint)
    if is_dry_run:
        return session.output.summary(f"would warm {place}", {"mountpoint": place, "dry_run": True})
    found = warmth.warm(place)
    if share is not None and found.whole.share < share:
        found = _wait(session, place, found, share, timeout_s)
    return _end(session, place, found, share, timeout_s)


def _wait(
    session: Session, place: str, found: "MountWarmth", share: float, timeout_s: float | None
) -> "MountWarmth":
    """Poll until the share is reached or the timeout is over; returns the last answer."""
    from dieselfs_client.mount.control import warmth

    end_s = None if timeout_s is None else time.monotonic() + timeout_s

    def reading() -> Reading:
        done = found.whole
        total_bytes = round(done.wanted_bytes * share)
        unknown, noun = len(found.unknown), "node" if found.job else ""
        nodes = len(found.nodes) + unknown
        return Reading(found.warm_nodes, done.pinned_bytes, nodes, total_bytes, unknown, noun=noun)

    with shown(session.output, "warm", reading):
        while found.whole.share < share:
            left_s = POLL_S if end_s is None else end_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(POLL_S, left_s))
            found = warmth.warm(place)
    return found


def rest_of(output: Output, found: "MountWarmth") -> str:
    """Describes the part of a dataset that does not fit into memory; empty while a node does not answer."""
    dataset_bytes = found.dataset_bytes or 0
    if found.unknown or dataset_bytes <= found.whole.wanted_bytes:
        return ""
    why = "is damaged, or does not fit" if found.whole.damaged_chunks else "does not fit"
    return f"; the dataset has {output.size(dataset_bytes)}, and the rest {why}"


def _end(
    session: Session, place: str, found: "MountWarmth", share: float | None, timeout_s: float | None
) -> int:
    output, whole = session.output, found.whole
    sizes = f"{output.size(whole.pinned_bytes)} of {output.size(whole.wanted_bytes)}{rest_of(output, found)}"
    of = f"job {found.job}, {len(found.nodes) + len(found.unknown)} nodes" if found.job else place
    for node in found.unknown:
        output.error(f"node {node} does not answer; it is counted as cold")
    exit_code = EXIT_OK
    if whole.damaged_chunks:
        exit_code = EXIT_DAMAGED
        damaged = count(whole.damaged_chunks, "chunk")
        output.error(f"damaged, and not in memory: {damaged}; see dlcmd fsck --deep")
    if share is not None and timeout_s is not None and whole.share < share:
        exit_code, waited = EXIT_PARTIAL, format_duration(timeout_s)
        output.error(f"{of}: after {waited} {whole.share:.1%} is in memory, {sizes}; loading continues")
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
