"""The work of `dlcmd cp` and `dlcmd mv` inside the servers, or between those of two sites. No I/O of its own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dieselfs.errors import DieselfsError, InvalidInput, NotFound
from dieselfs.limits import COPY_SELECTION_BYTES_MAX
from dieselfs.names import Location, split_path
from dieselfs.records import Op
from dieselfs.rpc.records import CopyProgress, CopyReport, CopyRequest, Existing
from dieselfs.units import count, format_duration
from dieselfs_tools.cli.output import name_fields
from dieselfs_tools.cli.patterns import ALL, Patterns
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.trees import selected_nodes


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """Options of `dlcmd cp` and `dlcmd mv`. `is_forced`: replace files, `is_kept`: keep them."""

    is_move: bool
    is_recursive: bool
    is_dry_run: bool
    is_forced: bool
    is_kept: bool
    patterns: Patterns

    @property
    def existing(self) -> Existing:
        """Raises InvalidInput."""
        if self.is_forced and self.is_kept:
            raise InvalidInput("-f replaces what --no-clobber keeps: give one of them")
        if self.is_forced:
            return Existing.REPLACE
        return Existing.KEEP if self.is_kept else Existing.REFUSE


Copy = Callable[[CopyRequest, Callable[[CopyProgress], object]], CopyReport]
"""Copies what a request names, and reports its progress: `ServerClient.copy_entries`."""


class _Copies:
    """Several copies; `reading` has the progress of all, for any thread."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._past = self._present = CopyProgress(0, 0, 0, 0)

    @property
    def total(self) -> CopyProgress:
        return CopyProgress(*map(sum, zip(self._past, self._present, strict=True)))

    def reading(self) -> Reading:
        done = self.total
        is_known = done.total > 0  # the server plans first
        return Reading(
            done.done, done.done_bytes, done.total, done.total_bytes, is_total_known=is_known, noun="entry"
        )

    def run(self, request: CopyRequest) -> CopyReport:
        """Raises errors with the number of entries that were copied until then."""

        def progressed(progress: CopyProgress) -> None:
            self._present = progress

        try:
            report = self._copy(request, progressed)
        except DieselfsError as error:
            if not self.total.done:
                raise
            copied = f"copied {count(self.total.done, 'entry')} until then; the same command continues"
            raise type(error)(f"{error}; {copied}") from error
        done = report.copied, report.copied_bytes
        self._present = CopyProgress(*done, *done)
        self._past, self._present = self.total, CopyProgress(0, 0, 0, 0)
        return report


def run_copy(
    session: Session, sources: Sequence[Location], destination: Location, options: CopyOptions
) -> int:
    """Copy or move; returns the exit code. All sources are looked up before anything is changed."""
    started_s = time.monotonic()
    requests = _requests(session, sources, destination, options)
    sites = sources[0].remote, destination.remote
    if len({source.remote for source in sources}) > 1:
        raise InvalidInput("the sources are at different sites: copy from one after the other")
    if not options.is_dry_run:
        _make_dataset(session.at(destination.remote), destination.dataset)
    digests: list[tuple[bytes, str]] = []
    copies = _Copies(_way(session, sites, digests))
    with shown(session.output, session.verb, copies.reading):
        reports = [copies.run(request) for request in requests]
    if options.is_dry_run:
        for request, report in zip(requests, reports, strict=True):
            _show(session, request, report, sites)
    for path, digest in digests:
        place = replace(destination, path=path)
        fields = {"digest": digest, "dataset": destination.dataset, **name_fields(path)}
        session.output.record("digest", f"{digest}  {place}", fields)
    return _summary(session, requests, reports, options, time.monotonic() - started_s, sites)


def _way(session: Session, sites: Sequence[str], digests: list[tuple[bytes, str]]) -> Copy:
    """`sites`: the remotes of source and target. `digests`: gets those of copies from another site."""
    source, target = map(session.at, sites)
    if source is target:
        return session.client.copy_entries
    from dieselfs_tools.transfers.site_copy import SiteCopies

    return SiteCopies(source, target, digests).run


def _requests(
    session: Session, sources: Sequence[Location], destination: Location, options: CopyOptions
) -> list[CopyRequest]:
    """Raises NotFound, InvalidInput."""
    kinds = [_is_folder(session, source) for source in sources]
    is_into = destination.is_folder_form or len(sources) > 1
    if not is_into and not kinds[0]:
        is_into = _is_there(session, destination)
    requests = []
    for source, is_folder in zip(sources, kinds, strict=True):
        if not is_folder and not options.patterns.is_wanted(split_path(source.path)[1]):
            continue
        if source.is_folder_form and not is_folder:
            raise InvalidInput(f"{source}: not a folder, but a file")
        if is_folder and not (options.is_recursive or options.is_move):
            raise InvalidInput(f"{source} is a folder: copy it with -r")
        is_content = is_folder and source.is_folder_form
        requests.append(
            CopyRequest(
                dataset=source.dataset,
                path=source.path,
                target_dataset=destination.dataset,
                target_path=destination.path if is_content or not is_into else _inside(destination, source),
                tag=source.tag,
                existing=options.existing,
                is_move=options.is_move,
                is_merged=is_content or (is_into and not options.is_move),
                is_dry_run=options.is_dry_run,
                **_selection(session, source, options.patterns if is_folder else ALL),
            )
        )
    return requests


def _selection(session: Session, source: Location, patterns: Patterns) -> dict[str, Any]:
    """The fields of a request for what the patterns select of a folder. Raises InvalidInput for too many entries."""
    import numpy as np

    if not patterns:
        return {}
    snapshot = session.at(source.remote).dataset(source.state).snapshot
    if len(snapshot) > 8 * COPY_SELECTION_BYTES_MAX:
        raise InvalidInput(
            f"patterns select among at most {8 * COPY_SELECTION_BYTES_MAX:,} entries of a dataset, and "
            f"{source.state} has {len(snapshot):,}: copy folders of it without patterns"
        )
    is_chosen = np.zeros(len(snapshot), bool)
    is_chosen[selected_nodes(snapshot, snapshot.require(source.path), patterns)] = True
    selection = np.packbits(is_chosen, bitorder="little").tobytes()
    return {"generation": snapshot.generation, "selection": selection}


def _inside(destination: Location, source: Location) -> bytes:
    return b"/".join(part for part in (destination.path, split_path(source.path)[1]) if part)


def _is_folder(session: Session, location: Location) -> bool:
    """Whether a source is a folder. Raises NotFound."""
    session = session.at(location.remote)
    if location.tag:
        snapshot = session.dataset(location.state).snapshot
        return snapshot.stat(snapshot.require(location.path)).is_folder
    return Op(session.client.stat(location.dataset, location.path).op) == Op.DIRECTORY


def _is_there(session: Session, destination: Location) -> bool:
    """Whether the destination is a folder that exists."""
    try:
        return _is_folder(session, destination)
    except NotFound:
        return False


def _make_dataset(session: Session, name: str) -> None:
    try:
        session.client.dataset(name)
    except NotFound:
        session.client.create_dataset(name)


def _show(session: Session, request: CopyRequest, report: CopyReport, sites: tuple[str, str]) -> None:
    """The new paths of a dry run."""
    what = "move" if request.is_move else "copy"
    for path in report.paths:
        below = path[len(request.target_path) :].lstrip(b"/")
        source = b"/".join(part for part in (request.path, below) if part)
        old = Location(request.dataset, source, False, request.tag, sites[0])
        new = Location(request.target_dataset, path, False, remote=sites[1])
        session.output.detail(
            "entry", f"would {what} {old} -> {new}", {**name_fields(path), **name_fields(source, "source")}
        )
    if left := report.copied - len(report.paths):
        session.output.note(f"... and {left:,} more")


def _summary(
    session: Session,
    requests: Sequence[CopyRequest],
    reports: Sequence[CopyReport],
    options: CopyOptions,
    elapsed_s: float,
    sites: tuple[str, str],
) -> int:
    output = session.output
    if not requests:
        raise InvalidInput("the patterns select none of the sources")
    first = requests[0]
    copied, copied_bytes, skipped, deleted = (sum(values) for values in list(zip(*reports, strict=True))[:4])
    done = "moved" if options.is_move else "copied"
    if options.is_dry_run:
        done = "would move" if options.is_move else "would copy"
    old = Location(first.dataset, first.path, False, first.tag, sites[0])
    new = Location(first.target_dataset, first.target_path, False, remote=sites[1])
    what = (
        f"{old} to {new}" if len(requests) == 1 else f"{len(requests):,} sources to {replace(new, path=b'')}"
    )
    text = f"{done} {what}: {count(copied, 'entry')} ({output.size(copied_bytes)})"
    if skipped:
        text += f", skipped {skipped:,} that exist there"
    if not options.is_dry_run:
        text += f" in {format_duration(elapsed_s)}"
    fields: dict[str, object] = {
        "dry_run": options.is_dry_run,
        "dataset": first.dataset,
        "target_dataset": first.target_dataset,
        "remote": sites[0],
        "target_remote": sites[1],
        **name_fields(first.path, "old"),
        **name_fields(first.target_path, "new"),
        "sources": len(requests),
        "copied": copied,
        "copied_bytes": copied_bytes,
        "skipped": skipped,
        "deleted": deleted,
        "generation": max(report.generation for report in reports),
        "seconds": round(elapsed_s, 3),
    }
    return output.summary(text, fields)
