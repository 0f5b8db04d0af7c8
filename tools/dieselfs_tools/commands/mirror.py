"""The verb `mirror`."""

import time
from typing import TYPE_CHECKING

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.names import SCHEME, Location
from dieselfs.units import count, format_duration
from dieselfs_tools.cli import options
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.rpc.records import MirrorRecord
    from dieselfs_tools.transfers.mirroring import Mirroring


@options.verb(
    "mirror",
    "dlcmd mirror dl://site1:pets                   # follow it, until this command is ended",
    "dlcmd mirror --once dl://site1:pets@stable     # the generation of a tag",
    "dlcmd mirror --status --max-lag 10m            # exit code 2 if a mirror is further behind",
    "dlcmd mirror --promote dl://pets               # it is written from now on, and follows nothing",
)
@click.argument("source", type=options.PLACE, required=False, metavar="dl://REMOTE:DATASET[@TAG]")
@click.option("--every", "every_s", type=options.DURATION, default="60s", help="Look for a generation. [60s]")
@options.flag("--once", "is_once", text="End after one round.")
@options.flag(
    "--status", "is_status", text="Print the mirrors of these servers, and how far they are behind."
)
@click.option(
    "--max-lag", "max_lag_s", type=options.DURATION, help="Warn of a mirror that is behind for longer."
)
@options.flag("--promote", "is_promoted", text="Make a mirror an ordinary dataset, with what it shows.")
@options.flag("--force", "is_forced", text="Promote it although its origin is there.")
@options.dry_run
def mirror(
    session: Session,
    source: str | None,
    every_s: float,
    is_once: bool,
    is_status: bool,
    max_lag_s: float | None,
    is_promoted: bool,
    is_forced: bool,
    is_dry_run: bool,
) -> int:
    """Keep a dataset of the same name equal to one of another site. It shows one whole generation after the other, with
    the digest and the signature of the other site, and is read while that is away. Nobody else can write it. An
    administrator's key is needed here, and the right to read there.
    """
    bound_s = float("inf") if max_lag_s is None else max_lag_s
    if is_status:
        found = [
            one for one in session.client.mirrors() if source in (None, one.dataset, SCHEME + one.dataset)
        ]
        return _reported(session, found, bound_s)
    if source is None:
        raise InvalidInput("name the origin of the mirror: dl://REMOTE:DATASET; or give --status")
    place = options.location_at_site(source)
    if is_promoted:
        return _promote(session, place, is_forced, is_dry_run)
    if place.path or not place.remote:
        raise InvalidInput(
            f"{place}: the origin of a mirror is a whole dataset at a remote: dl://REMOTE:DATASET"
        )
    if is_dry_run:
        session.at(place.remote).client.dataset(place.dataset)
        return session.output.summary(f"would mirror {place}", {"mirrors": 1, "behind": 0, "dry_run": True})
    from dieselfs_tools.transfers.mirroring import Mirroring

    rounds = Mirroring(session, place)
    if is_once:
        return _reported(session, [_round(session, rounds)], bound_s)
    return _follow(session, rounds, every_s, bound_s)


def _promote(session: Session, place: Location, is_forced: bool, is_dry_run: bool) -> int:
    if place.remote or place.tag or place.path:
        raise InvalidInput(f"{place}: name the mirror here: dl://DATASET")
    found = next((one for one in session.client.mirrors() if one.dataset == place.dataset), None)
    if found is None:
        raise NotFound(f"{place} is not a mirror: dlcmd mirror --status")
    if not is_forced:
        origin = options.location_at_site(SCHEME + found.origin)
        try:
            newest = session.at(origin.remote).client.dataset(origin.dataset).generation
        except (Unavailable, NotFound):
            pass
        else:
            raise InvalidInput(
                f"{found.origin} is there, at generation {newest}, the mirror at {found.generation}: what is written "
                "at one of them will not come to the other; --force promotes it nevertheless"
            )
    shown = found if is_dry_run else session.client.promote_mirror(place.dataset)
    _print(session, shown)
    done = "would be" if is_dry_run else "is"
    text = f"{done} a dataset of its own, with generation {shown.generation} of {shown.origin}"
    fields = {"mirrors": 1, "behind": int(shown.newest > shown.generation), "dry_run": is_dry_run}
    return session.output.summary(f"{place} {text}", fields)


def _round(session: Session, rounds: "Mirroring") -> "MirrorRecord":
    def reading() -> Reading:
        return Reading(0, rounds.done_bytes, 0, rounds.total_bytes, None, rounds.total_bytes > 0, "")

    with shown(session.output, "mirror", reading):
        return rounds.round()


def _follow(session: Session, rounds: "Mirroring", every_s: float, bound_s: float) -> int:
    """Rounds until a signal. A site that is away, or wrong bytes, are reported once and tried again."""
    last, last_trouble, current_s = 0, "", time.time()
    while True:
        try:
            found = _round(session, rounds)
            trouble, current_s = "", float(found.current_s)
            if found.generation != last:
                last = found.generation
                _print(session, found)
        except (Unavailable, Damaged) as error:
            trouble = str(error)
        if (lag_s := time.time() - current_s) > bound_s + every_s:
            trouble = (
                f"{rounds.name}: the mirror is behind for longer than {format_duration(bound_s)}; {trouble}"
            )
        if trouble and trouble != last_trouble:
            session.output.error(f"{trouble} ({format_duration(max(lag_s, 0))} behind)")
        last_trouble = trouble
        time.sleep(every_s)


def _reported(session: Session, found: "list[MirrorRecord]", bound_s: float) -> int:
    behind = 0
    for one in found:
        if _print(session, one) > bound_s:
            behind += 1
            session.output.error(
                f"{SCHEME}{one.dataset} is behind for longer than {format_duration(bound_s)}"
            )
    fields = {"mirrors": len(found), "behind": behind, "dry_run": False}
    return session.output.summary(count(len(found), "mirror"), fields, EXIT_PARTIAL if behind else EXIT_OK)


def _print(session: Session, one: "MirrorRecord") -> float:
    """Print a mirror; returns its lag in seconds. Raises Damaged unless the servers of its origin have signed it."""
    from dieselfs.net.auth import check_signed_by, pin_of
    from dieselfs.snapshot.signature import message_of

    lag_s, pin = max(time.time() - one.current_s, 0.0), b""
    if one.generation:
        pin = pin_of(one.signer)
        check_signed_by(one.signer, message_of(one.digest), one.signature, f"mirror {one.dataset}")
    generations = max(one.newest - one.generation, 0)
    text = (
        f"{SCHEME}{one.dataset}  mirror of {one.origin}, generation {one.generation}, {generations} behind, "
    )
    text += f"lag {format_duration(lag_s)}"
    if pin:
        text += f", digest {one.digest.hex()} signed there by {pin.hex()}"
    fields = {
        "dataset": one.dataset,
        "follows": one.origin,
        "generation": one.generation,
        "generations_behind": generations,
        "lag_s": round(lag_s, 3),
        "digest": one.digest.hex(),
        "signer_pin": pin.hex(),
    }
    session.output.record("mirror", text, fields)
    return lag_s
