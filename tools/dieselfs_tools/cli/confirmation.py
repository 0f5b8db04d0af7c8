"""Asks for confirmation before a change that cannot be undone. This module reads standard input."""

import sys

import click

from dieselfs.errors import InvalidInput


def confirm_name(name: str, warning: str) -> None:
    """Have the user type `name`. Raises InvalidInput if the input differs, or is no terminal."""
    if not sys.stdin.isatty():
        raise InvalidInput(f"{warning}: to do so without confirmation, add -y")
    question = f"{warning}, permanently. Type {name} to continue"
    if click.prompt(question, default="", show_default=False, err=True).strip() != name:
        raise InvalidInput(f"the name typed is not {name}; nothing was changed")
