"""`dlcmd shuffle`: the order of an epoch."""

import os
import sys
from itertools import islice

import click

from dieselfs.errors import EXIT_OK, InvalidInput
from dieselfs.names import printable
from dieselfs.shuffle.order import DEFAULT_GROUP_CHUNKS
from dieselfs_tools import options
from dieselfs_tools.output import name_fields, write_bytes
from dieselfs_tools.session import Session

LINES_AT_ONCE = 10_000


@options.verb(
    "shuffle",
    "dlcmd shuffle dl://imagenet --seed 1 --epoch 0 > epoch-0.txt",
    "dlcmd shuffle dl://imagenet --seed 1 --epoch 1 --group 0 | head    # a full shuffle, not by chunks",
)
@click.argument("dataset", type=options.STATE, metavar="dl://DATASET[@TAG]")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Another seed, another sequence of epochs."
)
@click.option("--epoch", type=int, default=0, show_default=True, help="Which epoch.")
@click.option(
    "--group",
    "group_chunks",
    type=int,
    default=DEFAULT_GROUP_CHUNKS,
    show_default=True,
    help="Chunks that are mixed with each other; 0 for all.",
)
@click.option(
    "-0", "--null", "is_null", is_flag=True, help="End each path with a NUL byte, and print it as it is."
)
def shuffle(session: Session, dataset: str, seed: int, epoch: int, group_chunks: int, is_null: bool) -> int:
    """Print the files in the order of an epoch: chunk by chunk in groups, the same on every machine."""
    if is_null and session.output.is_json:
        raise InvalidInput("--null does not go with --json")
    paths = session.dataset(dataset).shuffle(seed, epoch, group_chunks)
    names = map(os.fsencode, paths)
    if session.output.is_json:
        for position, name in enumerate(names):
            session.output.record("entry", "", {"position": position, **name_fields(name)})
    while batch := list(islice(names, LINES_AT_ONCE)):
        if is_null:
            write_bytes(b"".join(name + b"\0" for name in batch))
        else:
            sys.stdout.write("".join(printable(name) + "\n" for name in batch))
    fields = {
        "dataset": dataset,
        "files": len(paths),
        "seed": seed,
        "epoch": epoch,
        "group_chunks": group_chunks,
    }
    return session.output.summary("", fields, EXIT_OK)
