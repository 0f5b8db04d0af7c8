"""Asks before what cannot be undone. This module reads standard input."""

import sys

import click

from dieselfs.errors import InvalidInput


def confirm_name(name: str, warning: str) -> None:
    """Have the user type `name`. Raises InvalidInput if that is not what comes."""
    if not sys.stdin.isatty():
        raise InvalidInput(f"{warning}: to do so without being asked, add -y")
    typed = click.prompt(
        f"{warning}, for good. Type {name} to go on", default="", show_default=False, err=True
    )
    if typed.strip() != name:
        raise InvalidInput("the name is not the same; nothing was done")
