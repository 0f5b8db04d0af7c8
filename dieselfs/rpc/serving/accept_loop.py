"""The loop that accepts connections, for every listener. This module waits on sockets.

A process without descriptors or memory keeps its listeners: the connections that it cannot accept wait in the kernel.
"""

import errno
import logging
from collections.abc import Callable

import trio

RETRY_S = 0.1

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

log = logging.getLogger(__name__)


async def accept_each(
    listener: trio.SocketListener, begin: Callable[[trio.SocketStream], object], client: str
) -> None:
    """Call `begin` with each connection, until cancelled. `client`: what connects, for the log.

    While the process has no descriptors or memory, it is tried again each RETRY_S, and logged once. Raises OSError for
    other reasons.
    """
    is_logged = False
    while True:
        try:
            stream = await listener.accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            if not is_logged:
                log.error("cannot accept a %s: %s", client, error.strerror)
            is_logged = True
            await trio.sleep(RETRY_S)
            continue
        is_logged = False
        begin(stream)
