"""The first zygote of a supervisor, as a fork of it. This module forks.

A fork has the interpreter already: it takes less time than a program, and shares memory with the supervisor. Later
zygotes, of an upgrade above all, must run the code that is installed then, so they are programs.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

from dieselfs_client.supervision.status import name_process

EXIT_BUG = 70
"""As in `dieselfs.errors`."""
_MODULE = ["-P", "-m", "dieselfs_client.zygote"]
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)


def fork_zygote(command: list[str], end: int, let_go: Callable[[], None]) -> int:
    """Run `command`, of a zygote, in a fork: `end` is its end of the channel, and `let_go` closes what it must not
    have. Returns the process ID; 0, without a fork, if it is the command of another program. Raises OSError.
    """
    if command[1:4] != _MODULE:
        return 0
    pid = os.fork()
    if not pid:
        _be_zygote([*command[4:], str(end)], let_go)
    return pid


def _be_zygote(arguments: list[str], let_go: Callable[[], None]) -> NoReturn:
    code = EXIT_BUG
    try:
        os.setsid()
        name_process("dieselfs-zygote")  # long before its `main` can
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        let_go()
        sys.argv[1:] = arguments
        import_module(_MODULE[-1]).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else EXIT_BUG
    except BaseException:  # any error: the process must not continue as a supervisor
        sys.excepthook(*sys.exc_info())  # `traceback` would take memory of the supervisor
    finally:
        os._exit(code)
