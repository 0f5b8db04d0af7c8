"""`dlcmd`: gathers the verbs, and turns errors into one clear line and an exit code."""

import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

import click

from dieselfs.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_OK, EXIT_PARTIAL, EXIT_USAGE, DieselfsError
from dieselfs_tools import options
from dieselfs_tools.commands.cache import cache
from dieselfs_tools.commands.cat import cat
from dieselfs_tools.commands.du import du
from dieselfs_tools.commands.fsck import fsck
from dieselfs_tools.commands.get import get
from dieselfs_tools.commands.info import info
from dieselfs_tools.commands.ls import ls
from dieselfs_tools.commands.mount import mount
from dieselfs_tools.commands.mounts import mounts
from dieselfs_tools.commands.mv import mv
from dieselfs_tools.commands.purge import purge
from dieselfs_tools.commands.put import put
from dieselfs_tools.commands.rb import rb
from dieselfs_tools.commands.rebuild import rebuild
from dieselfs_tools.commands.rm import rm
from dieselfs_tools.commands.server import server
from dieselfs_tools.commands.shuffle import shuffle
from dieselfs_tools.commands.stat import stat
from dieselfs_tools.commands.tag import tag
from dieselfs_tools.commands.umount import umount
from dieselfs_tools.commands.upgrade import upgrade
from dieselfs_tools.commands.user import user
from dieselfs_tools.commands.warm import warm
from dieselfs_tools.commands.which import which
from dieselfs_tools.session import Session

EXIT_OUTPUT_CLOSED = 141
"""As the shell shows a program that wrote into a closed pipe."""

_RESUMABLE = {"put", "get"}

_EPILOG = """\b
Examples:
  dlcmd put -r ./imagenet/ dl://imagenet/
  dlcmd mount imagenet /mnt/imagenet

\b
Exit codes:
    0  all done
    1  usage: what was asked for cannot be
    2  part of it failed; the rest is done, and what failed is listed
    3  not found: a dataset, file, folder, user, or source
    4  refused: wrong key, or a right that you do not have
    5  damaged: stored or received bytes are not what they must be
    6  unavailable: the server cannot be reached, or does not answer
  130  interrupted; the same put or get, run again, continues"""


@click.group(
    cls=options.VerbGroup,
    epilog=_EPILOG,
    no_args_is_help=False,
    context_settings={"max_content_width": options.HELP_COLUMNS},
)
@click.version_option(package_name="dieselfs", message="dlcmd %(version)s")
def dlcmd() -> None:
    """Store, look at and mount datasets.

    Names are dl://DATASET/PATH. Without a server (--server, DIESELFS_SERVER, or ~/.config/dieselfs/config.toml)
    everything is kept on this machine, in DIESELFS_HOME. The options below may stand before or after the verb.
    """


for command in (
    put,
    get,
    ls,
    stat,
    cat,
    mv,
    rm,
    du,
    info,
    rb,
    mount,
    umount,
    mounts,
    upgrade,
    warm,
    cache,
    purge,
    tag,
    fsck,
    rebuild,
    shuffle,
    which,
    user,
    server,
):
    dlcmd.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. What goes wrong is said on stderr."""
    session = Session()
    try:
        # Not dlcmd.main(), which would take a closed pipe for success.
        with dlcmd.make_context(
            "dlcmd", list(sys.argv[1:] if arguments is None else arguments), obj=session
        ) as context:
            exit_code = int(dlcmd.invoke(context) or EXIT_OK)
        session.close()
        sys.stdout.flush()
    except click.exceptions.Exit as shown:  # --help, --version
        return shown.exit_code
    except BaseException as error:
        if session.is_debug:
            traceback.print_exc()
        return _end(session, error)
    return exit_code


def _end(session: Session, error: BaseException) -> int:
    """Let go of everything, say what happened, and choose the exit code."""
    with suppress(DieselfsError, OSError):  # it has come to its end already
        session.close(error)
    if isinstance(error, BrokenPipeError):  # whoever read our output has had enough
        _drop_stdout()
        return EXIT_OUTPUT_CLOSED
    message, exit_code = described(error)
    session.output.error(message)
    session.output.is_stdout_taken = True  # in text, the message is the summary
    try:
        if session.output.is_json:
            session.output.summary("", {"error": message}, exit_code)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    return exit_code


def described(error: BaseException) -> tuple[str, int]:
    """One line that says what, where, and what next; and the exit code."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "interrupted; run the same command again, and it continues where it was", EXIT_INTERRUPTED
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "dlcmd"
        return f"{error.format_message()} ('{path} --help' explains)", EXIT_USAGE
    if isinstance(error, click.ClickException):
        return error.format_message(), EXIT_USAGE
    if isinstance(error, DieselfsError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}", EXIT_PARTIAL
    return f"this is a bug in dieselfs: {type(error).__name__}: {error} (--debug shows where)", EXIT_BUG


def _drop_stdout() -> None:
    """Keep the interpreter from writing what is left of our output at its end."""
    sys.stdout = None


def main() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run())


if __name__ == "__main__":
    main()
