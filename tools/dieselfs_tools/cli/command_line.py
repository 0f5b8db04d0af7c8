"""The command line of `dlcmd`: the table of verbs, and errors as one line with an exit code.

The module of a verb is imported when the verb is used. It imports what its work needs in its functions, so that help
and completion do not wait for numpy, trio and thriftpy2.
"""

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from keyword import iskeyword
from typing import TYPE_CHECKING

import click

from dieselfs import __version__
from dieselfs.errors import (
    EXIT_BUG,
    EXIT_OK,
    EXIT_PARTIAL,
    EXIT_REFUSED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    DieselfsError,
    NotFound,
)
from dieselfs.limits import LISTING_ENTRIES_MAX
from dieselfs.names import Location, parse_location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

GROUPS = {
    "Start here": {
        "put": "Store files and folders in a dataset.",
        "sync": "Make a folder equal to another: one stored, one local.",
        "get": "Write files of a dataset to this machine.",
        "ls": "List datasets, or the content of a folder.",
        "mount": "Mount a dataset on a folder, read-only.",
        "umount": "Unmount datasets.",
        "mounts": "List mounted datasets and cache daemons.",
        "run": "Run a command with a mounted dataset.",
    },
    "Look": {
        "info": "Show the totals of a dataset, or the chunks of a file.",
        "stat": "Show type, size, mode and time of an entry.",
        "du": "Show the size and number of files.",
        "find": "Find entries by name, type and size.",
        "tree": "Draw a folder with its content.",
        "cat": "Write files to standard output.",
        "head": "Write the first lines or bytes of files.",
    },
    "Move and remove": {
        "import": "Store the records of archives and of other data formats.",
        "attach": "Make archives part of a dataset, without copying.",
        "detach": "Remove the files of attached archives.",
        "export": "Write a dataset as EROFS image, tar, WebDataset or LMDB.",
        "cp": "Copy files and folders, also between datasets.",
        "mirror": "Follow a dataset of another site.",
        "mv": "Move or rename files and folders.",
        "rm": "Delete files and folders.",
        "rb": "Remove a whole dataset.",
        "erase": "Destroy the key of a dataset, or files in all generations.",
    },
    "Speed": {
        "warm": "Fetch a mounted dataset into memory.",
        "cache": "Share a dataset's chunks in memory on this node.",
        "top": "Watch the mounts, caches and servers of this node.",
        "why": "Say what limits the training that reads a mount.",
        "report": "Show an epoch of a mount or job on one page.",
        "bench": "Time mounts and chunks here, beside plain files, tar and LMDB.",
        "plan": "Predict epochs on a number of nodes, and what limits them.",
    },
    "Order": {
        "shuffle": "Print the files of a dataset in the order of an epoch.",
        "which": "Print the files of one step of an epoch.",
        "bisect": "Find the files behind a loss spike.",
        "prove": "State what a run has read, with a signature; check that.",
    },
    "Versions": {
        "columns": "Keep labels and other values of files, to select files by them.",
        "tag": "Manage the tags of a dataset: named generations.",
        "snapshot": "Save, list and compare the metadata of generations.",
        "diff": "Compare two datasets, tags or folders.",
    },
    "Safety": {
        "check": "Compare a local folder with what is stored.",
        "verify": "Print one digest of a dataset, or of a folder.",
        "fsck": "Check the chunks, metadata and snapshot of a dataset.",
        "purge": "Free the space of deleted files.",
        "repack": "Mix the classes of a dataset in its chunks.",
        "rebuild": "Rebuild the metadata of a dataset from its chunks.",
    },
    "Administration": {
        "doctor": "Check this machine and the servers, and say what to change.",
        "login": "Log in with an account of the identity provider of a server.",
        "logout": "End that login.",
        "config": "Show, change and test your settings.",
        "user": "Manage users, keys and rights (administrators).",
        "group": "Manage groups of users (administrators).",
        "key": "Say who can read an encrypted dataset.",
        "quota": "Limit what datasets and users may store (administrators).",
        "limit": "Limit the rates of users and of their jobs (administrators).",
        "usage": "Show storage, traffic and quotas of datasets and users.",
        "server": "Show the state of the servers (administrators).",
        "dashboard": "Open the web page of a server, or of this home.",
        "metrics": "Print the metrics of this node's daemons, for Prometheus.",
        "chaos": "Rehearse faults, and show what readers see.",
        "upgrade": "Replace the daemons of mounts without unmounting.",
        "completion": "Print the completion script of a shell.",
    },
}
"""Verb and short help, in the groups of `--help`."""
VERBS = {verb: brief for group in GROUPS.values() for verb, brief in group.items()}
_MODULES = {
    "accounts": ("user", "group"),
    "archives": ("import", "attach", "detach", "export"),
    "bisect": ("bisect",),
    "columns": ("columns",),
    "copy": ("put", "sync", "get", "cp", "mv"),
    "encryption": ("key", "erase"),
    "limits": ("quota", "limit", "usage"),
    "disk_usage": ("du",),
    "login": ("login", "logout"),
    "look": ("ls", "stat", "info", "find", "tree", "cat", "head"),
    "maintain": ("fsck", "purge", "rebuild", "rm", "rb"),
    "repack": ("repack",),
    "measure": ("bench", "plan", "chaos"),
    "memory": ("warm", "cache"),
    "mirror": ("mirror",),
    "mounts": ("mount", "umount", "mounts", "run", "upgrade"),
    "orders": ("shuffle", "which"),
    "prove": ("prove",),
    "serve": ("server", "dashboard", "metrics", "doctor"),
    "settings": ("config", "completion"),
    "versions": ("tag", "snapshot", "diff", "check", "verify"),
    "watch": ("top", "why", "report"),
}
"""Module of `dieselfs_tools.commands`, and its verbs: each is a command of the same name."""
MODULE_OF = {verb: module for module, verbs in _MODULES.items() for verb in verbs}
ONE_LINE = (
    ("mount", "umount"),
    ("cat", "head"),
    ("attach", "detach"),
    ("cp", "mv"),
    ("rm", "rb"),
    ("shuffle", "which"),
    ("login", "logout"),
)
"""Verbs that `--help` names on the line of the first one: who knows that one expects the others."""
SYNONYMS = {
    "copy": "cp",
    "delete": "rm",
    "df": "du",
    "download": "get",
    "list": "ls",
    "move": "mv",
    "remove": "rm",
    "rename": "mv",
    "status": "mounts",
    "unmount": "umount",
    "upload": "put",
    "version": "--version",
}
"""What other programs call a verb. Without this, spelling decides: `upload` is close to `upgrade`."""

EXIT_OUTPUT_CLOSED = 141
"""The code that a shell reports for a write into a closed pipe."""

_RESUMABLE = {"put", "sync", "get", "import", "cp", "mv", "mirror", "bisect", "repack"}

_EPILOG = """\b
Examples:
  dlcmd put -r ./imagenet/ dl://imagenet/
  dlcmd mount imagenet /mnt/imagenet

\b
Exit codes:
    0  all done
    1  usage: the request is not possible
    2  partial: some items failed, and are listed; or the disk is full
    3  not found: a dataset, file, folder, user, or source
    4  refused: wrong key, or a missing right
    5  damaged: stored or received bytes are corrupt
    6  unavailable: the server cannot be reached or does not answer
   70  a bug in dieselfs; --debug shows where
  130  interrupted; the same put, get, cp, mv, import, repack or bisect, run again, continues
  141  the reader of the output closed the pipe"""


def _lines(verbs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The lines of a group of `--help`."""
    others = {first: rest for first, *rest in ONE_LINE}
    hidden = {verb for rest in others.values() for verb in rest}
    for verb, brief in verbs.items():
        if verb not in hidden:
            yield ", ".join((verb, *others.get(verb, ()))), brief


class _Verbs(options.VerbGroup):
    """Imports a verb when it is used, but not to list the verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        module = import_module(f"dieselfs_tools.commands.{MODULE_OF[cmd_name]}")
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for name, verbs in GROUPS.items():
            with formatter.section(name):
                formatter.write_dl(list(_lines(verbs)))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        # click would import all verbs for their short help
        verbs = [CompletionItem(name) for name in VERBS if name.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help":  # `help VERB` is `VERB --help`
            if not args[1:]:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        if args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            similar = SYNONYMS.get(args[0]) or next(iter(get_close_matches(args[0], VERBS, 1)), None)
            hint = f"; did you mean {similar}?" if similar else ""
            ctx.fail(f"there is no verb {args[0]!r}{hint}")
        ctx.obj.verb = args[0]
        return super().resolve_command(ctx, args)


@click.command(
    cls=_Verbs,
    epilog=_EPILOG,
    context_settings={
        "max_content_width": options.HELP_COLUMNS,
        "help_option_names": ["-h", "--help"],  # a verb's own -h wins
    },
)
@click.version_option(__version__, message="dlcmd %(version)s")
def dlcmd() -> None:
    """Store, list and mount datasets.

    Names are dl://DATASET/PATH. Without a server (--server, DIESELFS_SERVER, or ~/.config/dieselfs/config.toml)
    all data is on this machine, in DIESELFS_HOME. The options below may stand before or after the verb;
    'dlcmd help VERB' explains a verb.
    """


dlcmd.params += options.common_options()


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. Errors are printed on stderr."""
    session = Session()
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        if arguments is None and "_DLCMD_COMPLETE" in os.environ:
            from dieselfs_tools.cli.completion import complete

            return complete(dlcmd, session)
        words = list(sys.argv[1:] if arguments is None else arguments)
        # Not dlcmd.main(), which would report a closed pipe as success.
        with dlcmd.make_context("dlcmd", words, obj=session) as context:
            exit_code = int(dlcmd.invoke(context) or EXIT_OK)
        session.close()
        sys.stdout.flush()
    except click.exceptions.Exit as shown:  # --help, --version
        return shown.exit_code
    except click.exceptions.NoArgsIsHelpError as error:  # `dlcmd`, `dlcmd tag`
        click.echo(error.format_message())
        return EXIT_USAGE
    except BaseException as error:
        if session.is_debug:
            traceback.print_exc()
        return _end(session, error)
    return exit_code


def _end(session: Session, error: BaseException) -> int:
    """Close the session, print the error, and return the exit code."""
    message, exit_code = described(error, session.verb)
    if isinstance(error, NotFound):
        message += _similar(session, message)
    with suppress(DieselfsError, OSError):  # the first error is the one to report
        session.close(error)
    if isinstance(error, BrokenPipeError):  # the reader of our output has ended
        sys.stdout = None  # the interpreter writes no rest of it at its end
        return EXIT_OUTPUT_CLOSED
    session.output.error(message)
    try:
        if session.output.is_json:
            session.output.summary("", {"error": message}, exit_code)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None
    return exit_code


def _with_limit(message: str) -> str:
    """The message, and what to do if the limit of open files is the cause."""
    return message + "; raise the limit: ulimit -n 1024" if os.strerror(errno.EMFILE) in message else message


def described(error: BaseException, verb: str = "") -> tuple[str, int]:
    """An error as one line (failure, object, what to do next), and its exit code."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        signum = error.args[0] if error.args and isinstance(error, KeyboardInterrupt) else signal.SIGINT
        again = "; the same command, run again, continues" if verb in _RESUMABLE else ""
        return f"interrupted{again}", 128 + signum
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "dlcmd"
        return f"{_usage_fault(error)} ('{path} --help' explains)", EXIT_USAGE
    if isinstance(error, click.ClickException):
        return error.format_message(), EXIT_USAGE
    if isinstance(error, DieselfsError):
        return _with_limit(str(error)), error.exit_code
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        exit_code = EXIT_REFUSED if isinstance(error, PermissionError) else EXIT_PARTIAL
        return _with_limit(f"{place}{error.strerror or error}"), exit_code
    # The second is a RuntimeError.
    if isinstance(error, MemoryError) or "can't start new thread" in str(error):
        what = "memory" if isinstance(error, MemoryError) else "threads (ulimit -u, pids.max)"
        return f"a limit of this machine allows no more {what}; raise it, and run it again", EXIT_UNAVAILABLE
    return f"this is a bug in dieselfs: {type(error).__name__}: {error} (--debug shows where)", EXIT_BUG


def _usage_fault(error: click.UsageError) -> str:
    """The message; for an argument, without its name, which has brackets in the help."""
    if not isinstance(error, click.BadParameter) or not isinstance(error.param, click.Argument):
        return error.format_message().replace("valid integer range", "valid integer")
    if isinstance(error, click.MissingParameter):
        return f"{error.param.metavar or error.param.human_readable_name} is missing"
    return error.message


def _similar(session: Session, message: str) -> str:
    """`; did you mean ...?` if the message names a missing dataset or path, and a similar one exists."""
    with suppress(DieselfsError, OSError):
        if missing := re.search(r"there is no dataset '([^']+)'", message):
            names = [dataset.name for dataset in session.client.datasets()]
            if similar := get_close_matches(missing[1], names, 1):
                return f"; did you mean dl://{similar[0]}?"
        elif missing := re.fullmatch(r"(dl://.+): no such file or folder", message):
            location = parse_location(missing[1])
            folder, _, name = location.path.rpartition(b"/")
            listed = session.client.list_folder(location.dataset, folder, b"", LISTING_ENTRIES_MAX)
            if similar := get_close_matches(
                os.fsdecode(name), [os.fsdecode(entry.name) for entry in listed], 1
            ):
                path = b"/".join(filter(None, (folder, os.fsencode(similar[0]))))
                return f"; did you mean {Location(location.dataset, path, False)}?"
    return ""
