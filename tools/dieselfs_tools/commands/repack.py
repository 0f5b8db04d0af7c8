"""The verb `repack`: chunks that each have all classes of a dataset."""

from typing import TYPE_CHECKING

import click

from dieselfs.errors import InvalidInput, NotFound, os_errors_as
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session
from dieselfs_tools.commands.maintain import watched

if TYPE_CHECKING:
    from dieselfs import Dataset
    from dieselfs.shuffle.strata import Strata


@options.verb(
    "repack",
    "dlcmd repack -n dl://pets                         # only print what would be copied, and the space it takes",
    "dlcmd repack dl://pets                            # classes are the first folders of paths",
    "dlcmd repack --class-of '^train/(n[0-9]+)/' dl://imagenet",
    "dlcmd repack --stratify length dl://speech        # short and long files in each chunk",
    "dlcmd repack --column language dl://texts         # a column of the dataset",
    "dlcmd repack --strata languages.tsv dl://texts    # lines of PATH, a tab, STRATUM",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.option(
    "--stratify", type=click.Choice(["class", "length", "column"]), help="What to mix.  [default: class]"
)
@click.option("--class-of", metavar="REGEX", help="The class is what the first group, or all of it, matches.")
@click.option("--column", metavar="NAME", help="Mix the values of this column; see 'dlcmd columns'.")
@click.option(
    "--strata", "listed", metavar="FILE", help="Mix the strata that a file lists: PATH, a tab, STRATUM."
)
@click.option(
    "--seed", type=click.IntRange(0, (1 << 63) - 1), default=0, help="Seed of the places of files. [0]"
)
@options.chunk_size
@options.dry_run
def repack(
    session: Session,
    dataset: str,
    stratify: str | None,
    class_of: str | None,
    column: str | None,
    listed: str | None,
    seed: int,
    chunk_bytes: int,
    is_dry_run: bool,
) -> int:
    """Copy files, inside the store, into chunks that each have all classes in the proportions of the dataset.

    Then a shuffle with small groups is as random as with large ones. Files and their digests stay; readers of older
    generations keep the old chunks, which 'dlcmd purge' removes after the grace time. Chunks in proportion stay, so the
    same command continues after an interruption, and mixes what was added later.
    """
    data = session.dataset(dataset)
    snapshot = data.snapshot
    strata = _strata(data, stratify, class_of, column, listed)
    output, asked = session.output, (dataset, snapshot.generation, strata, seed)
    report = session.client.repack(*asked, is_dry_run=True, chunk_bytes=chunk_bytes)
    if report.chunks and not is_dry_run:
        output.aside(
            f"repack of dl://{dataset}: {count(report.chunks, 'chunk')}; the copies take "
            f"{output.size(report.needed_bytes)} until a purge"
        )
        with watched(output, f"repack {dataset}") as progressed:
            report = session.client.repack(*asked, False, progressed, chunk_bytes)
    would = "would copy" if is_dry_run else "copied"
    text = (
        f"{would} {count(report.files, 'file')} of {count(report.chunks, 'chunk')} into "
        f"{count(report.chunks_written, 'chunk')} ({output.size(report.needed_bytes)}); "
        f"{report.chunks_kept:,} stay as they are"
    )
    fields = {
        "dry_run": is_dry_run,
        "dataset": dataset,
        "rewritten_chunks": report.chunks,
        "kept_chunks": report.chunks_kept,
        "written_chunks": report.chunks_written,
        "files": report.files,
        "needed_bytes": report.needed_bytes,
        "generation": report.generation,
    }
    return output.summary(text, fields)


def _strata(
    data: "Dataset", stratify: str | None, class_of: str | None, column: str | None, listed: str | None
) -> "Strata":
    """Raises InvalidInput for options that exclude each other, NotFound for no list or no columns."""
    from dieselfs.dataset.strata import strata_of
    from dieselfs.shuffle.strata import strata_of_lines

    if listed is not None:
        if (stratify, class_of, column) != (None, None, None):
            raise InvalidInput("--strata has the strata: leave out --stratify, --class-of and --column")
        with os_errors_as(NotFound, listed), open(listed, "rb") as lines:
            return strata_of_lines(data.snapshot, lines, listed)
    kind = stratify or ("class" if column is None else "column")
    if kind == "column" and column is None:
        raise InvalidInput("--stratify column needs --column NAME")
    for option, value, needed in (("--class-of", class_of, "class"), ("--column", column, "column")):
        if value is not None and kind != needed:
            raise InvalidInput(f"{option} is for --stratify {needed}")
    return strata_of(data.snapshot, data.client, kind, class_of, column)
