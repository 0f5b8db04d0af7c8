"""Options and the form of help that the verbs have in common."""

from collections.abc import Callable
from typing import Any

import click

from dieselfs.errors import InvalidInput
from dieselfs.names import SCHEME, Location, check_dataset_name, is_location, parse_location
from dieselfs_tools.session import Session
from dieselfs_tools.units import parse_duration, parse_size

Function = Callable[..., Any]

HELP_COLUMNS = 100


class Parsed(click.ParamType[Any]):
    """A parameter whose text one of our parsers understands."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # a default
            return value
        try:
            return self._parse(value)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


def dataset_name(text: str) -> str:
    """The dataset of `name` or `dl://name`. Raises InvalidInput if the text names something inside a dataset."""
    if not is_location(text):
        return check_dataset_name(text)
    location = parse_location(text)
    if location.path or location.tag:
        raise InvalidInput(f"{location} is not a whole dataset; name the dataset: {SCHEME}{location.dataset}")
    return location.dataset


def dataset_state(text: str) -> str:
    """`name` or `name@tag` of a dataset, with or without `dl://`. Raises InvalidInput as `dataset_name`."""
    location = parse_location(text if is_location(text) else SCHEME + text)
    if location.path:
        raise InvalidInput(f"{location} is inside a dataset; name the dataset: {SCHEME}{location.state}")
    return location.state


def dataset_folder(text: str) -> Location:
    """`name`, `name@tag`, or `dl://name[@tag]/folder`. Raises InvalidInput."""
    return parse_location(text if is_location(text) else f"{SCHEME}{dataset_state(text)}")


def location(text: str) -> Location:
    """`dl://dataset[@tag]/path`. Raises InvalidInput."""
    return parse_location(text)


def changeable_location(text: str) -> Location:
    """`dl://dataset/path`. Raises InvalidInput for a tag: what it names never changes."""
    location = parse_location(text)
    if location.tag:
        raise InvalidInput(f"{location}: what a tag names cannot be changed; leave out @{location.tag}")
    return location


LOCATION = Parsed("dl://DATASET/PATH", location)
CHANGEABLE = Parsed("dl://DATASET/PATH", changeable_location)
FOLDER = Parsed("dl://DATASET[@TAG][/FOLDER]", dataset_folder)
STATE = Parsed("dl://DATASET[@TAG]", dataset_state)
DATASET = Parsed("dl://DATASET", dataset_name)
SIZE = Parsed("SIZE", parse_size)
DURATION = Parsed("DURATION", parse_duration)


def _set(change: Callable[[Session, Any], None]) -> Function:
    """A callback that keeps an option in the session if it is given, so that it may stand before or after the verb."""

    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value:
            change(context.ensure_object(Session), value)

    return callback


def _set_server(session: Session, value: str) -> None:
    session.server = value


def _set_key_file(session: Session, value: str) -> None:
    session.key_file = value


def _set_json(session: Session, value: bool) -> None:
    session.output.is_json = value


def _set_quiet(session: Session, value: bool) -> None:
    session.output.is_quiet = value


def _set_exact(session: Session, value: bool) -> None:
    session.output.is_exact = value


def _set_debug(session: Session, value: bool) -> None:
    session.is_debug = value


def _common_options() -> list[click.Parameter]:
    def option(*names: str, change: Function, **attributes: Any) -> click.Option:
        # Eager: a fault in another option is then reported in the form that is asked for.
        return click.Option(names, callback=_set(change), expose_value=False, is_eager=True, **attributes)

    return [
        option(
            "--server",
            change=_set_server,
            metavar="ADDRESS",
            help="tcp://HOST:PORT[,...], etcd://HOST:PORT, unix:PATH, or 'embedded'. "
            "[DIESELFS_SERVER, the configuration file]",
        ),
        option(
            "--key-file",
            change=_set_key_file,
            metavar="FILE",
            help="Your key. [DIESELFS_KEY_FILE, the configuration file]",
        ),
        option(
            "--json", change=_set_json, is_flag=True, help="One JSON object a line; the last is the summary."
        ),
        option(
            "--quiet", "-q", change=_set_quiet, is_flag=True, help="Only errors, results and the summary."
        ),
        option("--bytes", change=_set_exact, is_flag=True, help="Sizes as exact numbers of bytes."),
        option("--debug", change=_set_debug, is_flag=True, help="A traceback with an error."),
    ]


class Verb(click.Command):
    """A verb: its own options, those that all verbs have, and examples at the end of its help."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params += _common_options()


class VerbGroup(click.Group):
    """Verbs in order of being added."""

    command_class = Verb

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params += _common_options()

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def examples(*lines: str) -> str:
    """The epilog of a help page."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def verb(name: str, *lines: str) -> Callable[[Function], click.Command]:
    """Make a verb of a function, which is given the session first. `lines`: examples for the help."""

    def decorate(function: Function) -> click.Command:
        return click.command(name, cls=Verb, epilog=examples(*lines))(click.pass_obj(function))

    return decorate


dry_run = click.option(
    "-n", "--dry-run", "is_dry_run", is_flag=True, help="Say what would be done, and do nothing."
)
yes = click.option("-y", "--yes", "is_confirmed", is_flag=True, help="Do not ask.")
warm_rate = click.option(
    "--warm-rate",
    "warm_rate_bytes",
    type=SIZE,
    default=0,
    help="What is fetched before it is read comes no faster than this a second. [no limit]",
)
human = click.option(
    "-h", "--human", is_flag=True, expose_value=False, help="Sizes as 4.0 MiB, which is the default."
)


def jobs(default: int) -> Callable[[Function], Function]:
    return click.option(
        "-j",
        "--jobs",
        type=click.IntRange(1, 64),
        default=default,
        show_default=True,
        help="Threads that work at once.",
    )
