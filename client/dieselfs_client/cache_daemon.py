"""The command line of a node's daemon without a mount, which shares chunks with processes that read with the library.

    python -m dieselfs_client.cache_daemon DATASET [--memory SIZE] [--policy POLICY] [--report-fd N] ...
    python -m dieselfs_client.cache_daemon DATASET [--memory SIZE] --job NAME [--until-idle] [--snapshot FILE] ...

It ends at SIGTERM or SIGINT; what readers have mapped stays theirs. `control` starts and stops it, and
`dieselfs.cluster.daemon` starts it for programs of a job, by the name of this module.
"""

import logging
import os
import sys
from functools import partial
from typing import Any

import click
import trio

from dieselfs.errors import EXIT_OK, DieselfsError
from dieselfs.flags import settings_options
from dieselfs.process.launch import Report
from dieselfs.settings import CacheOptions, Place
from dieselfs_client.daemon import open_dataset, serve_cache


@click.command()
@click.argument("dataset")
@settings_options(Place.CACHE | Place.VERB | Place.DAEMON)
@click.option(
    "--snapshot", "snapshot_file", help="File of the snapshot to serve, even if a newer one exists."
)
@click.option("--report-fd", type=int)
@click.option("--until-idle", "is_until_idle", is_flag=True)
def main(
    dataset: str,
    snapshot_file: str | None,
    report_fd: int | None,
    is_until_idle: bool,
    given: dict[str, Any],
) -> None:
    """Share the chunks of DATASET with this node's processes of this user."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    os.umask(0o077)
    report = Report(report_fd)
    try:
        options = CacheOptions(**given)
        snapshot, source, client = open_dataset(dataset, options, snapshot_file)
        serve = partial(serve_cache, on_ready=report.ready, client=client, is_until_idle=is_until_idle)
        trio.run(serve, snapshot, source, options)
    except DieselfsError as error:
        logging.getLogger(__name__).error("%s", error)
        report.failed(error)
        sys.exit(error.exit_code)
    sys.exit(EXIT_OK)


if __name__ == "__main__":
    main()
