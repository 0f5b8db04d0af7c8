"""Takes over a connection to the kernel from a process that died or stopped. This module writes to the device."""

import errno
import os
import struct

_RESEND = 7
"""FUSE_NOTIFY_RESEND (Linux 6.9): what was read from the device and not answered can be read again.

Such a request comes with the highest bit of its `unique` set; the reply names it as it came.
"""
_NOTICE = struct.Struct("=IiQ")


def take_over(device: int) -> bool:
    """Let all unanswered requests of a connection come again; False where the kernel cannot.

    Costs nothing on a connection that is new, or that is gone.
    """
    try:
        os.write(device, _NOTICE.pack(_NOTICE.size, _RESEND, 0))
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        if error.errno not in (errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED):
            raise
    return True
