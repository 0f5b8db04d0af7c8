"""The table of settings as options of click. No I/O."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dieselfs.errors import InvalidInput
from dieselfs.settings.kinds import ADDRESSES, FILE, FOLDER, SWITCH
from dieselfs.settings.table import Place, Setting, given_at

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Value(click.ParamType[Any]):
    """The value of a setting, parsed by the setting's parser."""

    def __init__(self, row: Setting) -> None:
        self.name = row.kind.metavar
        self._kind = row.kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._kind.parse(value)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        if self._kind in (FILE, FOLDER):
            return [CompletionItem(incomplete, type="file" if self._kind is FILE else "dir")]
        return [CompletionItem(name) for name in self._kind.choices if name.startswith(incomplete)]


def attributes(row: Setting, places: Place) -> dict[str, Any]:
    """The arguments of `click.option` for a setting at these places."""
    notes = [row.default] if row.default else []
    if row.places & Place.CLIENT and not places & Place.SERVER:
        notes.append(f"{row.variable}, the configuration file")
    text = f"{row.help} [{', '.join(notes)}]" if notes else row.help
    if row.kind is SWITCH:
        return {"is_flag": True, "help": text}
    return {"type": _Value(row), "metavar": row.kind.metavar, "multiple": row.kind is ADDRESSES, "help": text}


def settings_options(places: Place) -> Callable[[_Command], _Command]:
    """Add the options of these places to a command; it gets the given values as one dict `given`, by field."""
    rows = list(given_at(places))

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def packed(*arguments: Any, **named: Any) -> Any:
            values = {row.field: named.pop(row.field) for row in rows}
            given = {
                name: value
                for name, value in values.items()
                if value is not None and value is not False and value != ()
            }
            return command(*arguments, given=given, **named)

        decorated: Any = packed
        for row in reversed(rows):
            decorated = click.option(row.flag, row.field, **attributes(row, places))(decorated)
        result: _Command = decorated
        return result

    return decorate
