"""`dlcmd bench`: how fast this machine reads, through a mount and otherwise, and gets chunks."""

from dataclasses import asdict
from pathlib import Path

import click

from dieselfs.errors import InvalidInput
from dieselfs.units import count, format_duration
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

ROUNDS = 3


@options.verb(
    "bench",
    "dlcmd bench                              # chunks of a scratch store on this disk",
    "dlcmd bench dl://imagenet --in /nvme     # chunks of your servers; files compared with those in /nvme",
)
@click.argument("dataset", type=options.STATE, required=False, metavar="[DATASET[@TAG]]")
@click.option(
    "--in",
    "folder",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Where scratch files are written. [the folder for temporary files]",
)
@click.option(
    "--rounds", type=click.IntRange(min=1, max=100), default=ROUNDS, help="Rounds at most; medians count. [3]"
)
@options.flag("--quick", "is_quick", text="A twentieth of the files: to try it out.")
@click.option(
    "--save",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the speeds for 'dlcmd plan' here. [your state folder]",
)
def bench(
    session: Session, dataset: str | None, folder: Path | None, rounds: int, is_quick: bool, file: Path | None
) -> int:
    """Time a mount against plain files, a tar file and LMDB, and the fetching of chunks from the servers.

    No round begins later than two minutes after the start. It takes 1 GB of disk space, which is freed at the end.
    `dlcmd plan` uses the result.
    """
    from dieselfs_tools.observe import measured_speeds
    from dieselfs_tools.observe.timing import FORMS, QUICK_FORMS, run

    output = session.output
    chunks = session.dataset(dataset).chunks if dataset is not None else None
    if chunks is not None and not chunks.snapshot.column("chunk_payload_lengths").any():
        raise InvalidInput(f"dl://{dataset} has no chunks to fetch: name another dataset, or none")
    path = file or measured_speeds.default_path()
    measured_speeds.make_folder(path)
    try:
        found = run(folder, QUICK_FORMS if is_quick else FORMS, rounds, chunks, output.aside)
    except OSError as error:
        raise InvalidInput(
            f"{error.filename or folder}: {error.strerror}; --in names another folder"
        ) from None
    source = dataset or "a scratch store on this machine"
    for each in found.timings:
        files = each.form.files
        fields = {
            "form": each.form.name,
            "files": files,
            "size": each.form.file_bytes,
            "reader": each.reader,
            "first_files_s": round(files / each.first_s),
            "later_files_s": round(files / each.later_s),
        }
        text = (
            f"{each.form.file_bytes >> 10:4} KiB  {each.reader:15} first {files / each.first_s:10,.0f} files/s   "
            f"again {files / each.later_s:10,.0f} files/s"
        )
        output.record("timing", text, fields)
    measured = measured_speeds.save(found.speeds, source, path)
    text = (
        f"chunks from {source}: {output.size(round(found.fetch_bytes_s))}/s; view {found.view}, one reader\n"
        f"{count(found.rounds, 'round')} in {format_duration(found.seconds)}\n"
        f"'dlcmd plan' uses these speeds: {path}"
    )
    return output.summary(
        text,
        {
            "speeds": asdict(measured.speeds),
            "chunks_from": measured.source,
            "measured_s": measured.measured_s,
            "view": found.view,
            "rounds": found.rounds,
            "seconds": round(found.seconds, 3),
            "speeds_file": str(path),
        },
    )
