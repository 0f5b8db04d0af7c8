"""`dlcmd chaos`: rehearses faults, and shows what readers see."""

import os
import tempfile
import time
from typing import TYPE_CHECKING

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, DieselfsError, InvalidInput
from dieselfs.units import count, format_duration
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs_tools.observe.faults import Rehearsed

NAMES = ("lost-node", "killed-daemon", "full-disk", "corrupt-chunk", "lost-metadata")


def parse_names(text: str) -> list[str]:
    """The faults of `lost-node,full-disk`. Raises InvalidInput."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in NAMES]:
        raise InvalidInput(f"there is no fault {unknown[0]!r}; the faults are {', '.join(NAMES)}")
    return [name for name in NAMES if name in names]


@options.verb("chaos", "dlcmd chaos", "dlcmd chaos --only lost-node,killed-daemon --json")
@click.option(
    "--only",
    "names",
    type=options.Parsed("FAULT[,FAULT...]", parse_names),
    help=f"Rehearse these alone: {', '.join(NAMES)}.",
)
def chaos(session: Session, names: list[str] | None) -> int:
    """Rehearse faults on this machine, and show what readers saw: reads, failures, and the longest pause.

    Each fault is real, and happens in a scratch home with a dataset of its own: none of your data, mounts and
    servers takes part. It needs /dev/fuse; a full disk needs root. The exit code is 2 if readers saw anything else than
    promised.
    """
    from dieselfs_tools.observe.faults import FAULTS
    from dieselfs_tools.observe.verifying_readers import TooLate

    output, broken, refused = session.output, 0, 0
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise InvalidInput("this machine cannot mount: see 'dlcmd doctor'")
    output.note(
        f"{'fault':14} {'reads':>7} {'failed':>7} {'wrong':>6} {'longest':>8}  what let them continue"
    )
    with tempfile.TemporaryDirectory(prefix="dieselfs-chaos-") as runtime:
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = runtime  # so that no daemon of the user takes part
        try:
            for name in names or NAMES:
                began_s = time.monotonic()
                try:
                    found = FAULTS[name]()
                except TooLate as error:  # readers or daemons that hang are what a rehearsal looks for
                    broken += 1
                    output.failure(name, f"NOT AS PROMISED: {error}")
                    continue
                except DieselfsError as error:
                    refused += 1
                    output.failure(name, str(error))
                    continue
                broken += not found.is_as_promised
                _show(session, found, time.monotonic() - began_s)
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before
    done = len(names or NAMES) - refused
    text = f"{count(done, 'fault')} rehearsed, {broken} not as promised, {refused} could not be tried"
    fields = {"rehearsed": done, "broken": broken, "refused": refused}
    return output.summary(text, fields, EXIT_PARTIAL if broken or refused else EXIT_OK)


def _show(session: Session, found: "Rehearsed", took_s: float) -> None:
    seen = found.seen
    mark = "" if found.is_as_promised else "  NOT AS PROMISED: " + "; ".join(seen.failures)
    text = (
        f"{found.fault:14} {seen.reads:7,} {seen.failed:7,} {seen.wrong:6,} {format_duration(seen.worst_s):>8}  "
        f"{found.remedy}{mark}"
    )
    fields = {
        "fault": found.fault,
        "reads": seen.reads,
        "failed": seen.failed,
        "wrong": seen.wrong,
        "worst_s": round(seen.worst_s, 3),
        "errors": seen.failures,
        "remedy": found.remedy,
        "is_as_promised": found.is_as_promised,
        "seconds": round(took_s, 3),
    }
    session.output.record("rehearsal", text, fields)
