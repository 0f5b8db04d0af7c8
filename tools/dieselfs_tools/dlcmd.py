"""`dlcmd`: where it starts. Ctrl-C and a signal to end give one line and an exit code, also while it imports.

Nothing else is imported here before signals are taken care of.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(signum: int, _: FrameType | None) -> None:
    """The first signal ends the command as Ctrl-C does, after a cleanup; the next one ends it at once."""
    _set_handlers(_end_at_once)
    raise KeyboardInterrupt(signum)


def _end_at_once(signum: int, _: FrameType | None) -> None:
    os.write(2, b"dlcmd: interrupted\n")
    os._exit(128 + signum)


def _set_handlers(handler: "signal._HANDLER") -> None:
    for signum in _ENDINGS:
        if signal.getsignal(signum) != signal.SIG_IGN:  # nohup, or a shell that runs us in the background
            signal.signal(signum, handler)


def main() -> NoReturn:
    _set_handlers(_interrupt)
    try:
        from dieselfs_tools.cli.command_line import run

        exit_code = run()
        _set_handlers(_end_at_once)
    except KeyboardInterrupt as stopped:  # while it imported
        _end_at_once(stopped.args[0] if stopped.args else signal.SIGINT, None)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
