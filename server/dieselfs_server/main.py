"""`dieselfs-server`: the command line of the server."""

import logging
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from dieselfs import __version__
from dieselfs.errors import EXIT_BUG, EXIT_OK, EXIT_USAGE, DieselfsError, InvalidInput
from dieselfs.process.launch import LaunchReport
from dieselfs.settings.flags import settings_options
from dieselfs.settings.table import Place
from dieselfs_server.assemble import initialize, run_server
from dieselfs_server.logs import FORMATS, TEXT, configure, set_level
from dieselfs_server.reloading import load_again
from dieselfs_server.settings import ServerSettings, split_url
from dieselfs_server.workers.serving import run_workers

EMBEDDED_IDLE_EXIT_S = 30.0
SWITCH_S = 0.001
"""A thread that computes lets the event loop, or another one, have the interpreter after this time; Python's 5 ms make
each call wait for all threads that cut ranges or decode chunks, several times.
"""

log = logging.getLogger("dieselfs_server")


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  dieselfs-server --init --store posix:///lustre/dieselfs --metadata sqlite:///var/lib/dieselfs/metadata.db
  dieselfs-server --config /etc/dieselfs/server.toml --listen tcp://10.0.0.5:7070
  dieselfs-server --config /etc/dieselfs/server.toml --backup /var/lib/dieselfs/backups
\b
Exit codes: 0 stopped by a signal, or copied; 1 usage or settings, 2 no room for a copy, 3 no copy,
6 a store or an address cannot be used.""",
)
@click.version_option(__version__, message="dieselfs-server %(version)s")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with the options below.")
@settings_options(Place.SERVER)
@click.option("--init", "is_new", is_flag=True, help="The store is new: create its marker, then serve.")
@click.option("--init-only", is_flag=True, help="The same, but exit instead of serving.")
@click.option(
    "--backup",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Copy users, names, tags and SQLite metadata to a new folder in FOLDER, and exit. Servers may run meanwhile.",
)
@click.option(
    "--restore",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Put back what is missing of them from the newest copy in FOLDER, and exit.",
)
@click.option(
    "--new-identity",
    type=click.Choice(("announce", "use")),
    help="'announce': make the identity that the servers will have, so that new key files accept both; they may run. "
    "'use': replace the present one by it; servers accept both meanwhile. Then exit.",
)
@click.option(
    "--move-identity",
    is_flag=True,
    help="Move the private key of the servers from the object store to what server_identity names, and exit.",
)
@click.option(
    "--log-format", type=click.Choice(FORMATS), default=TEXT, help="Form of the log on stderr. [text]"
)
@click.option("--embedded", type=click.Path(path_type=Path), hidden=True)
@click.option("--idle-exit-s", type=float, default=EMBEDDED_IDLE_EXIT_S, hidden=True)
@click.option("--ready-fd", type=int, hidden=True)
def serve(
    config: Path | None,
    embedded: Path | None,
    idle_exit_s: float,
    ready_fd: int | None,
    is_new: bool,
    backup: Path | None,
    restore: Path | None,
    new_identity: str | None,
    move_identity: bool,
    init_only: bool,
    log_format: str,
    given: dict[str, Any],
) -> None:
    """Serve datasets: chunks in an object store, metadata in a metadata store."""
    configure(log_format)
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_S)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would have the identity and the keys of users
    report = LaunchReport(ready_fd)
    load: Callable[[], ServerSettings] | None = None
    try:
        if embedded is not None:
            settings = ServerSettings.embedded(embedded.absolute(), idle_exit_s)
        else:
            load = partial(ServerSettings.load, config, given)
            settings = load()
        settings = replace(settings, is_new=settings.is_new or is_new or init_only)
        set_level(settings.log_level)
        if backup is not None or restore is not None:
            _copy(settings, backup, restore)
        elif new_identity is not None or move_identity:
            _change_identity(settings, new_identity)
        elif init_only:
            trio.run(initialize, settings)
        elif settings.workers > 1 and load is not None:
            run_workers(settings, report.ready, partial(load_again, load))
        else:
            trio.run(run_server, settings, report.ready, None, load and partial(load_again, load))
    except (DieselfsError, OSError) as error:
        report.failed(error)
        raise


def _copy(settings: ServerSettings, backup: Path | None, restore: Path | None) -> None:
    """Back up or restore, and print the outcome."""
    if backup is not None and restore is not None:
        raise InvalidInput("give --backup or --restore, not both")
    from dieselfs_server.maintenance import history
    from dieselfs_server.maintenance.backup import back_up, put_back  # which a server does not need
    from dieselfs_server.store.opening import open_store, open_unmarked

    scheme, path = split_url(settings.metadata)
    database = Path(path) if scheme == "sqlite" else None
    if backup is not None:
        with closing(open_store(settings.store, is_new=False)) as store:
            print(f"copied to {back_up(store, database, backup, time.time())}")
            history.note(store, history.BACKUP, time.time())
    elif restore is not None:
        with closing(open_unmarked(settings.store)) as store:
            print(f"restored {put_back(store, database, restore):,} records")


def _change_identity(settings: ServerSettings, new: str | None) -> None:
    """Announce or use the next identity, or else move the private key; print the outcome."""
    from dieselfs_server.access.identity import announce_identity, move_identity
    from dieselfs_server.access.key_places import open_keys
    from dieselfs_server.datasets.tags import replace_identity
    from dieselfs_server.store.opening import open_store

    keys = open_keys(settings.server_identity)
    with closing(open_store(settings.store, is_new=False)) as store:
        if new == "announce":
            pin = announce_identity(store, keys).pin
            where = f"; copy {keys} to all servers" if settings.has_identity_file else ""
            print(f"the next identity is {pin.hex()}: users get it with dlcmd user rotate{where}")
        elif new is not None:
            present, tags = replace_identity(store, keys)
            print(f"the identity is {present.pin.hex()}; signed {tags:,} tags again")
        elif keys is None:
            raise InvalidInput("--move-identity needs --server-identity FILE, or a token: pkcs11:...")
        else:
            print(f"moved {move_identity(store, keys):,} private keys to {keys}")


def main() -> None:
    try:
        serve(standalone_mode=False)
    except click.ClickException as error:
        print(f"dieselfs-server: {error.format_message()}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except DieselfsError as error:
        print(f"dieselfs-server: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_OK)
    except Exception:  # a bug has an exit code of its own
        log.exception("the server failed with an internal error")
        sys.exit(EXIT_BUG)


if __name__ == "__main__":
    main()
