"""`dlcmd rb`: remove a dataset."""

import click

from dieselfs.errors import EXIT_OK
from dieselfs_tools import options
from dieselfs_tools.confirmation import confirm_name
from dieselfs_tools.session import Session
from dieselfs_tools.units import count


@options.verb(
    "rb",
    "dlcmd rb dl://old-set          # asks you to type old-set",
    "dlcmd rb -y dl://old-set       # for scripts",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@options.dry_run
@options.yes
def rb(session: Session, dataset: str, is_dry_run: bool, is_confirmed: bool) -> int:
    """Remove a dataset with all its files, for good. Unless -y is given, you are asked to type its name."""
    record, output = session.client.dataset(dataset), session.output
    what = f"{count(record.files, 'file')}, {output.size(record.total_bytes)}"
    fields = {"dataset": dataset, "files": record.files, "bytes": record.total_bytes}
    if is_dry_run:
        return output.summary(f"would remove dl://{dataset} ({what})", {"dry_run": True, **fields})
    if not is_confirmed:
        confirm_name(dataset, f"this removes dl://{dataset} ({what})")
    session.client.drop_dataset(dataset)
    return output.summary(f"removed dl://{dataset} ({what})", fields, EXIT_OK)
