"""The work of `dlcmd put`. This module reads files and standard input."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.names import Location, is_location
from dieselfs.transfer.upload import Failed, UploadEntry
from dieselfs_tools.cli.options import changeable_location
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.session import Session
from dieselfs_tools.cli.spool import STANDARD_INPUT, spooled
from dieselfs_tools.transfers.mirror import Mirror
from dieselfs_tools.transfers.sources import Source, find_sources, listed_sources, walk
from dieselfs_tools.transfers.upload_runner import Target, Upload, find_target


@dataclass(frozen=True, kw_only=True)
class PutOptions:
    """Arguments and options of `dlcmd put` and `dlcmd sync`. The last of `names` is the destination.

    `is_mirror`: delete what the sources do not have; `is_confirmed`: also everything.
    """

    names: Sequence[str]
    is_recursive: bool
    is_dry_run: bool
    is_forced: bool
    patterns: Patterns
    files_from: str | None
    jobs: int
    chunk_bytes: int
    is_mirror: bool = False
    is_confirmed: bool = False

    @property
    def is_many(self) -> bool:
        return self.is_recursive or self.files_from is not None


def run_put(session: Session, options: PutOptions) -> int:
    """Store the sources; returns the exit code."""
    sources, destination = _split(options.names, options.is_recursive)
    target = find_target(session.client, destination)
    with _found(session.output, sources, target, options) as found:
        listed = None if options.files_from is None else _read_names(options.files_from, found)
        mirror = None
        if options.is_mirror:
            mirror = Mirror(
                session, target.location, found[0], options.patterns, options.is_confirmed, options.is_dry_run
            )
        upload = Upload(
            session=session,
            target=target,
            walk=partial(_entries, found, listed, options),
            jobs=options.jobs,
            chunk_bytes=options.chunk_bytes,
            is_many=options.is_many,
            is_forced=options.is_forced,
            source_name=b"standard input" if STANDARD_INPUT in sources else None,
            mirror=mirror,
        )
        return upload.run(options.is_dry_run)


def _entries(
    found: Sequence[Source], listed: Sequence[bytes] | None, options: PutOptions, failed: Failed
) -> Iterator[UploadEntry]:
    """The selected entries of all sources. `listed`: names relative to the one source."""
    sources = iter(found) if listed is None else listed_sources(listed, found[0], failed)
    for source in sources:
        yield from walk(source, options.patterns, options.is_recursive, failed)


def _split(names: Sequence[str], is_recursive: bool) -> tuple[Sequence[str], Location]:
    """Sources and destination. Raises InvalidInput if one of them is missing."""
    if len(names) == 1:
        if is_location(names[0]):
            raise InvalidInput(f"the SOURCE is missing: dlcmd put SOURCE {names[0]}")
        again = f"dlcmd put {'-r ' if is_recursive else ''}{shlex.quote(names[0])} dl://DATASET/"
        raise InvalidInput(f"the destination of {names[0]} is missing: {again}")
    if any(map(is_location, names[:-1])) and not is_location(names[-1]):
        stored, place = " ".join(names[:-1]), shlex.quote(names[-1])
        raise InvalidInput(
            f"put stores files of this machine; to write stored files here: dlcmd get {stored} {place}"
        )
    return names[:-1], changeable_location(names[-1])


@contextmanager
def _found(
    output: Output, sources: Sequence[str], target: Target, options: PutOptions
) -> Iterator[list[Source]]:
    """The sources, placed in the dataset. In the context, standard input is a file."""
    if STANDARD_INPUT not in sources:
        is_into = target.is_folder or len(sources) > 1
        yield find_sources(sources, target.location, is_into, options.is_recursive)
        return
    if len(sources) > 1 or options.is_many:
        raise InvalidInput("standard input ('-') must be the only source, without -r and --files-from")
    if target.is_folder:
        raise InvalidInput(
            f"{target.location} is a folder: standard input needs a name: {target.location}NAME"
        )
    with spooled(sys.stdin.buffer, output) as path:
        yield [Source(os.fsencode(path), target.location.path, False)]


def _read_names(files_from: str, found: Sequence[Source]) -> list[bytes]:
    if len(found) != 1 or not found[0].is_folder:
        raise InvalidInput("--files-from needs one SOURCE, a folder, to which its names are relative")
    try:
        content = sys.stdin.buffer.read() if files_from == STANDARD_INPUT else Path(files_from).read_bytes()
    except OSError as error:
        raise NotFound(f"--files-from {files_from}: {error.strerror}") from None
    return [name for name in content.split(b"\n") if name]
