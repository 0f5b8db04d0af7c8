"""`dlcmd detach`: remove the files of attached archives from a dataset."""

import os
from collections.abc import Sequence

import click

from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url
from dieselfs.errors import InvalidInput
from dieselfs.names import is_location
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session


@options.verb(
    "detach",
    "dlcmd detach shards/0007.tar dl://imagenet",
    "dlcmd detach /data/shards dl://imagenet         # all sources below a folder",
)
@click.argument("names", type=options.SOURCE, nargs=-1, required=True, metavar="SOURCE... dl://DATASET")
def detach(session: Session, names: Sequence[str]) -> int:
    """Remove the files that come from attached sources. The sources stay as they are, and need not exist any more.

    Tags and older generations still have the files, while their sources are unchanged. Values that attach has copied
    stay; remove them with dlcmd rm.
    """
    if len(names) < 2 or not is_location(names[-1]):
        raise InvalidInput("name sources and a dataset: dlcmd detach SOURCE... dl://DATASET")
    dataset = options.dataset_name(names[-1])
    locations = [
        os.fsencode(name if is_object_url(name) or is_web_url(name) else os.path.realpath(name))
        for name in names[:-1]
    ]
    removed = [session.client.detach(dataset, location) for location in locations]
    entries, sources = sum(each.entries for each in removed), sum(each.sources for each in removed)
    return session.output.summary(
        f"detached {count(entries, 'entry')} of {count(sources, 'source')}; the sources are unchanged",
        {"dataset": dataset, "entries": entries, "sources": sources, "generation": removed[-1].generation},
    )
