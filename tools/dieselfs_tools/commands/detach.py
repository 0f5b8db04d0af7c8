"""`dlcmd detach`: remove the files of attached archives from a dataset."""

from collections.abc import Sequence

import click

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
    from dieselfs_tools.archives.attached_runner import detach

    return detach(session, names)
