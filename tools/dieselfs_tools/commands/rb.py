"""`dlcmd rb`: remove a dataset."""

import click

from dieselfs.errors import InvalidInput
from dieselfs.units import count
from dieselfs_client.daemon import control
from dieselfs_tools.cli import options
from dieselfs_tools.cli.confirmation import confirm_name
from dieselfs_tools.cli.session import Session


@options.verb(
    "rb",
    "dlcmd rb dl://old-set          # asks you to type old-set",
    "dlcmd rb -n dl://old-set       # only print its files, tags and mounts",
    "dlcmd rb -y dl://old-set       # for scripts",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@options.flag("--with-tags", text="Remove the tags of the dataset too; required if it has tags.")
@options.flag("--in-use", text="Remove the dataset although mounts or programs read it; required if they do.")
@options.dry_run
@options.yes
def rb(
    session: Session, dataset: str, with_tags: bool, in_use: bool, is_dry_run: bool, is_confirmed: bool
) -> int:
    """Remove a dataset with all its files, permanently. Type its name when asked, or give -y.

    A dataset with tags needs --with-tags. One that mounts, cache daemons or programs read, on any machine, needs
    --in-use: their reads will fail.
    """
    record, output = session.client.dataset(dataset), session.output
    tags = [tag.name for tag in session.client.tags(dataset)]
    readers = sorted(
        {*control.mounts_of(record.dataset_id), *(_place(pin.holder) for pin in session.client.pins(dataset))}
    )
    what = f"{count(record.files, 'file')}, {output.size(record.total_bytes)}"
    if tags:
        what += f", {count(len(tags), 'tag')}: {', '.join(tags)}"
    if readers:
        what += f", in use at {', '.join(readers)}"
    fields = {
        "dataset": dataset,
        "files": record.files,
        "bytes": record.total_bytes,
        "tags": tags,
        "readers": readers,
    }
    if is_dry_run:
        return output.summary(f"would remove dl://{dataset} ({what})", {"dry_run": True, **fields})
    if tags and not with_tags:
        raise InvalidInput(
            f"dl://{dataset} has {count(len(tags), 'tag')} ({', '.join(tags)}), which keep their "
            "generations for those who use them; if nobody does, add --with-tags"
        )
    if readers and not in_use:
        raise InvalidInput(
            f"dl://{dataset} is in use at {', '.join(readers)}: unmount it there, or add --in-use; "
            "reads there will fail then"
        )
    if not is_confirmed:
        confirm_name(dataset, f"this removes dl://{dataset} ({what})")
    session.client.drop_dataset(dataset)
    return output.summary(f"removed dl://{dataset} ({what})", fields)


def _place(holder: str) -> str:
    """The place of a reader: its path on this machine, `NODE:PATH` on another."""
    from dieselfs.snapshot.pin import node_name

    node, _, rest = holder.partition("/")[2].partition(" ")
    path = rest.partition(" ")[2]
    if not path:
        return holder
    return path if node == node_name() else f"{node}:{path}"
