"""`dieselfs-server`: the command line of the server."""

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

import click
import trio

from dieselfs.errors import EXIT_BUG, EXIT_OK, EXIT_USAGE, DieselfsError
from dieselfs_server.assemble import run_server
from dieselfs_server.settings import DEFAULT_LISTEN, ServerSettings

EMBEDDED_IDLE_EXIT_S = 30.0

log = logging.getLogger("dieselfs_server")


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  dieselfs-server --store posix:///lustre/dieselfs --metadata sqlite:///var/lib/dieselfs/metadata.db
  dieselfs-server --config /etc/dieselfs/server.toml --listen tcp://10.0.0.5:7070
\b
Exit codes: 0 stopped as asked, 1 usage or settings, 6 a store or an address cannot be used.""",
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with the options below.")
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS",
    help=f"tcp://HOST:PORT or unix:PATH; again for more. [{DEFAULT_LISTEN}]",
)
@click.option("--store", metavar="URL", help="Where chunks are kept: posix:///PATH.")
@click.option(
    "--metadata", metavar="URL", help="Where metadata is kept: sqlite:///FILE or redis://HOST:PORT/DATABASE."
)
@click.option("--state", metavar="PATH", help="Folder for snapshots; can be lost. [beside the SQLite file]")
@click.option("--admin-key", metavar="FILE", help="On first start, make user 'admin' and leave the key here.")
@click.option("--tls-certificate", metavar="FILE", help="PEM chain; switches TLS on for TCP.")
@click.option("--tls-key", metavar="FILE", help="PEM key of the certificate.")
@click.option(
    "--etcd", metavar="HOST:PORT,...", help="Register there, and take from there what is not given here."
)
@click.option(
    "--advertise",
    multiple=True,
    metavar="ADDRESS",
    help="tcp://HOST:PORT under which clients reach this server. [those of --listen]",
)
@click.option("--etcd-user", metavar="NAME", help="Who we are to etcd.")
@click.option("--etcd-password-file", metavar="FILE", help="That user's password; 0600.")
@click.option("--etcd-tls-ca", metavar="FILE", help="PEM certificates to trust; switches TLS on for etcd.")
@click.option("--etcd-tls-certificate", metavar="FILE", help="PEM certificate that we show to etcd.")
@click.option("--etcd-tls-key", metavar="FILE", help="PEM key of that certificate.")
@click.option("--verbose", is_flag=True, help="Log what each client does.")
@click.option("--embedded", type=click.Path(path_type=Path), hidden=True)
@click.option("--idle-exit-s", type=float, default=EMBEDDED_IDLE_EXIT_S, hidden=True)
@click.option("--ready-fd", type=int, hidden=True)
@click.option("--detach", is_flag=True, hidden=True)
def serve(
    config: Path | None,
    embedded: Path | None,
    idle_exit_s: float,
    ready_fd: int | None,
    detach: bool,
    verbose: bool,
    **options: object,
) -> None:
    """Serve datasets: keep chunks in an object store and their metadata in a metadata store."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    os.umask(0o077)
    if detach and os.fork():
        os._exit(EXIT_OK)  # whoever started us need not wait for the server's end to clean up after it
    try:
        if embedded is not None:
            settings = ServerSettings.embedded(embedded.absolute(), idle_exit_s)
        else:
            settings = ServerSettings.load(config, options)
        trio.run(run_server, settings, lambda: _report(ready_fd, "ready"))
    except (DieselfsError, OSError) as error:
        _report(ready_fd, str(error))
        raise


def _report(ready_fd: int | None, text: str) -> None:
    """Tell the process that started us, if it waits."""
    if ready_fd is not None:
        with suppress(BrokenPipeError):  # it has given up waiting
            os.write(ready_fd, text.encode() + b"\n")
        os.close(ready_fd)


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
    except Exception:
        log.exception("the server ended by a fault of its own")
        sys.exit(EXIT_BUG)


if __name__ == "__main__":
    main()
