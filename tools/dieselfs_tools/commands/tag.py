"""`dlcmd tag`: named generations of a dataset."""

import click

from dieselfs.rpc.records import TagRecord
from dieselfs.units import count, format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

tag = options.verb_group(
    "tag",
    "A tag names a generation of a dataset and protects it from changes and purge. Read it as dl://DATASET@TAG.",
    "dlcmd tag add dl://pets v1",
    "dlcmd mount pets@v1 /mnt/pets",
)


@options.verb(
    "add",
    "dlcmd tag add dl://pets v1",
    "dlcmd tag add --generation 41 dl://pets before-cleaning",
    group=tag,
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.argument("name", metavar="TAG")
@click.option("--generation", type=click.IntRange(0), default=0, help="The generation to tag. [the newest]")
@options.dry_run
def add(session: Session, dataset: str, name: str, generation: int, is_dry_run: bool) -> int:
    """Tag a generation. A tag cannot be moved: remove it to use the name again."""
    fields: dict[str, object] = {"dataset": dataset, "tag": name}
    if is_dry_run:
        session.client.dataset(dataset)
        return session.output.summary(f"would tag dl://{dataset} as {name}", {"dry_run": True, **fields})
    made = session.client.put_tag(dataset, name, generation)
    text = f"generation {made.generation} of {dataset} is kept as dl://{dataset}@{name}/"
    return session.output.summary(text, {**fields, **_fields(made)})


@options.verb("ls", "dlcmd tag ls dl://pets", "dlcmd tag ls --json dl://pets", group=tag)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
def ls(session: Session, dataset: str) -> int:
    """List the tags of a dataset."""
    tags, output = session.client.tags(dataset), session.output
    for found in tags:
        when = format_time(found.updated_ns // 10**9)
        size = output.size(found.total_bytes)
        text = f"{when}  generation {found.generation:<8} {count(found.files, 'file')}, {size}  {found.name}"
        output.record("tag", text, {"dataset": dataset, **_fields(found)})
    return output.summary("", {"tags": len(tags)})


@options.verb("rm", "dlcmd tag rm dl://pets v1", "dlcmd tag rm -n dl://pets v1", group=tag)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.argument("name", type=options.TAG, metavar="TAG")
@options.dry_run
def rm(session: Session, dataset: str, name: str, is_dry_run: bool) -> int:
    """Remove a tag. A later purge frees the space that only this tag used."""
    fields: dict[str, object] = {"dataset": dataset, "tag": name, "dry_run": is_dry_run}
    if is_dry_run:
        return session.output.summary(f"would remove tag {name} of {dataset}", fields)
    session.client.delete_tag(dataset, name)
    return session.output.summary(f"tag {name} of {dataset} is removed", fields)


def _fields(record: TagRecord) -> dict[str, object]:
    return {
        "tag": record.name,
        "generation": record.generation,
        "updated_ns": record.updated_ns,
        "files": record.files,
        "bytes": record.total_bytes,
        "digest": record.digest.hex(),
    }
