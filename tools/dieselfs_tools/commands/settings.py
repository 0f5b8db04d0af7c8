"""The verbs `config` and `completion`, and the steps of a test of the settings."""

import os
import sys
import time
from collections.abc import Callable, Iterator

import click

from dieselfs import __version__
from dieselfs.errors import EXIT_OK, AccessDenied, InvalidInput, NotFound
from dieselfs.names import Location
from dieselfs.settings.file import checked_text, client_setting, write_setting
from dieselfs.settings.table import EMBEDDED, Given, Place, Setting, given_at, given_values, user_config
from dieselfs.units import count, format_duration
from dieselfs_tools.cli import options
from dieselfs_tools.cli.completion import SCRIPTS
from dieselfs_tools.cli.session import Session


def run_test(session: Session) -> int:
    """Print one line for each step; returns the exit code. Raises the error of the first step that fails."""
    output, done = session.output, 0
    for name, step in steps(session):
        began_s = time.monotonic()
        found = step()
        elapsed_s = time.monotonic() - began_s
        fields = {"name": name, "found": found, "seconds": round(elapsed_s, 3)}
        output.record("step", f"{name:9} {found} ({format_duration(elapsed_s)})", fields)
        done += 1
    return output.summary("the settings work", {"steps": done}, EXIT_OK)


def steps(session: Session) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and function of each step, which says what it found, or raises DieselfsError."""
    yield "settings", lambda: session.settings().server or f"{EMBEDDED}: {session.settings().home}"
    yield "key", lambda: _key(session)
    yield "server", lambda: f"{session.client.address} answers; {_datasets(session)}"
    yield "version", lambda: _version(session)
    yield "read", lambda: _read(session)


def _key(session: Session) -> str:
    """Raises AccessDenied if the file cannot be read, or is open to others."""
    from dieselfs.net.auth import read_key_file

    file = session.settings().key_file
    if file is None:
        return "none; embedded data and Unix sockets need none"
    key = read_key_file(file)
    return f"{file}: key {key.key_id} of {key.user}"


def _datasets(session: Session) -> str:
    """Logs in. Raises Unavailable, AccessDenied."""
    found = session.client.datasets()
    return f"{count(len(found), 'dataset')} to read"


def _version(session: Session) -> str:
    try:
        version = session.client.status().version
    except AccessDenied:  # only administrators may ask
        return f"this is {__version__}; the server speaks the same protocol"
    note = "" if version == __version__ else f", this is {__version__}: upgrade the older one"
    return f"server {version}{note}"


def _read(session: Session) -> str:
    """Reads the first file of the smallest dataset, and verifies it."""
    with_files = [dataset for dataset in session.client.datasets() if dataset.files]
    if not with_files:
        return "skipped: there is no file yet"
    name = min(with_files, key=lambda dataset: dataset.files).name
    dataset = session.dataset(name)
    snapshot = dataset.snapshot
    node = next(node for node in snapshot.walk() if snapshot.stat(node).is_file)
    (content,) = dataset.get_nodes([node])
    return f"{Location(name, snapshot.path(node), False)}: {count(len(content), 'byte')}"


ASKED = ("server", "key_file")
"""By `dlcmd config` on a terminal."""


class _Config(options.VerbGroup):
    """Without a verb, it asks on a terminal."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["ask"])


config = _Config(
    "config",
    params=options.common_options(),
    help="Show, change and test your settings. Without a verb, it asks for them on a terminal, tests them, and saves "
    "them in ~/.config/dieselfs/config.toml.",
    epilog=options.examples(
        "dlcmd config                                       # asks",
        "dlcmd config set server tcp://storage-1:7070",
        "dlcmd config list",
        "dlcmd config test",
    ),
    no_args_is_help=False,
)


NAME = options.Parsed("NAME", client_setting, "setting")


@options.verb("ask", "dlcmd config", "dlcmd config ask --server tcp://storage-1:7070", group=config)
def ask(session: Session) -> int:
    """Ask for the server and your key, test them, and save them. This is 'dlcmd config' without a verb."""
    if not sys.stdin.isatty() or session.output.is_json:
        raise InvalidInput("dlcmd config asks on a terminal only: use dlcmd config set NAME VALUE")
    given, answers = given_values(os.environ), {}
    for name in ASKED:
        row = client_setting(name)
        now = given[row.field].text if row.field in given else row.default
        answer = click.prompt(f"{row.help}\n{name}", default=now, err=True).strip()
        if answer and answer != now:
            answers[row.field] = checked_text(row, answer)
        if name == "server" and (answer or now) == EMBEDDED:
            break  # which has no keys
    tried = Session(
        server=answers.get("server", session.server),
        key_file=answers.get("key_file", session.key_file),
        output=session.output,
    )

    exit_code = run_test(tried)
    tried.close()
    question = (
        "Save these settings" if exit_code == EXIT_OK else "The test failed. Save these settings all the same"
    )
    if answers and click.confirm(question, default=exit_code == EXIT_OK, err=True):
        for name, text in answers.items():
            write_setting(user_config(), name, text)
        session.output.note(f"saved in {user_config()}")
    return exit_code


@options.verb("list", "dlcmd config list", "dlcmd config list --json", group=config)
def list_(session: Session) -> int:
    """Print all settings of a client with their values, and where each comes from."""
    given, output = given_values(os.environ), session.output
    rows = list(given_at(Place.CONFIG))
    width = max(len(row.name) for row in rows)
    for row in rows:
        value, origin, where = _in_force(session, row, given)
        source = f"{origin} {where}" if where else origin
        output.record(
            "setting",
            f"{row.name:{width}}  {value or '-'}  ({source})",
            {"name": row.name, "value": value, "origin": origin, "where": where},
        )
    return output.summary("", {"settings": len(rows), "file": str(user_config())})


@options.verb("get", "dlcmd config get server", "dlcmd config get --json key_file", group=config)
@click.argument("row", type=NAME, metavar="NAME")
def get(session: Session, row: Setting) -> int:
    """Print the value of one setting. Exit code 3: it is not set, so the default holds."""
    value, origin, where = _in_force(session, row, given_values(os.environ))
    if origin == "default":
        default = f"the default is {value}" if value else "there is no default"
        raise NotFound(f"{row.name} is not set; {default}")
    fields = {"name": row.name, "value": value, "origin": origin, "where": where}
    session.output.record("setting", str(value), fields)
    return session.output.summary("", {"settings": 1, "file": str(user_config())})


@options.verb(
    "set",
    "dlcmd config set server tcp://storage-1:7070",
    "dlcmd config set key_file ~/.config/dieselfs/key",
    group=config,
)
@click.argument("row", type=NAME, metavar="NAME")
@click.argument("value")
@options.dry_run
def set_(session: Session, row: Setting, value: str, is_dry_run: bool) -> int:
    """Store a value in your configuration file; comments in it stay. A key is never a value: name its file."""
    return _change(session, row, checked_text(row, value), is_dry_run)


@options.verb("unset", "dlcmd config unset job", "dlcmd config unset -n key_file", group=config)
@click.argument("row", type=NAME, metavar="NAME")
@options.dry_run
def unset(session: Session, row: Setting, is_dry_run: bool) -> int:
    """Remove a setting from your configuration file, so that its default holds."""
    return _change(session, row, None, is_dry_run)


@options.verb("test", "dlcmd config test", "dlcmd config test --server tcp://storage-1:7070", group=config)
def test(session: Session) -> int:
    """Test the settings: the configuration, the server, your key, the version, and one read. Each step is a line; the
    first that fails ends the test, with the exit code of its error.
    """

    return run_test(session)


def _in_force(session: Session, row: Setting, given: dict[str, Given]) -> tuple[str | None, str, str | None]:
    """The value, its origin (option, environment, file or default), and the variable or file."""
    if row.field in ("server", "key_file") and (option := getattr(session, row.field)):
        return option, "option", row.flag
    if (one := given.get(row.field)) is not None:
        is_file = not isinstance(one.where, str)
        return one.text, "file" if is_file else "environment", str(one.where)
    return row.default or None, "default", None


def _change(session: Session, row: Setting, value: str | None, is_dry_run: bool) -> int:
    file = user_config()
    if not write_setting(file, row.name, value, is_dry_run) and value is None:
        raise NotFound(f"{row.name} is not set in {file}")
    fields = {"dry_run": is_dry_run, "name": row.name, "value": value, "file": str(file)}
    done = (
        ("would set" if is_dry_run else "set")
        if value is not None
        else ("would remove" if is_dry_run else "removed")
    )
    text = f"{done} {row.name} in {file}"
    if variable := os.environ.get(row.variable):
        session.output.error(f"{row.variable}={variable} in the environment overrides it")
    return session.output.summary(text, fields)


@options.verb(
    "completion",
    'eval "$(dlcmd completion bash)"                # in ~/.bashrc; zsh: in ~/.zshrc',
    "dlcmd completion bash > /etc/bash_completion.d/dlcmd",
    "dlcmd completion fish > ~/.config/fish/completions/dlcmd.fish",
)
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def completion(session: Session, shell: str) -> int:
    """Print the completion script of a shell.

    Tab then completes verbs, options, datasets, paths in datasets, tags and mount points.
    """
    if not session.output.is_json:
        print(SCRIPTS[shell], end="")
    return session.output.summary("", {"shell": shell, "script": SCRIPTS[shell]})
