"""`dlcmd completion`: the completion script of a shell."""

import click

from dieselfs_tools.cli import options
from dieselfs_tools.cli.completion import SCRIPTS
from dieselfs_tools.cli.session import Session


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
