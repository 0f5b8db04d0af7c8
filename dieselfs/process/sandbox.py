"""What a process gives up before it reads a file of somebody else: the network, the file system, programs, and most
resources. This module changes its own process, through system calls. It imports little.

Each part is used where the kernel has it; none of them needs rights. Call it with one thread.
"""

import ctypes
import os
import platform
import resource
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from dieselfs.limits import GIB

DATA_BYTES_MAX = 4 * GIB
"""Memory of the process, without mapped files. A record has 1 GiB at most, and is copied."""
ADDRESS_BYTES_MAX = 16 * GIB
"""All mappings, of libraries too, for formats that map no files."""
DESCRIPTORS_MAX = 64
PROCESSOR_S_MAX = 60
"""Processor time without progress."""
NOTED_S = 0.1

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_ACCESS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All kinds of access to files that a version of Landlock knows, from that version on."""
_NETWORK_VERSION, _TCP = 4, 3
_SCOPE_VERSION, _SCOPES = 6, 3

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_NEW_USER, _NEW_NETWORK = 0x1000_0000, 0x4000_0000
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_NOT_LESS, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF_0000, 0x0005_0000 | 13  # EACCES
_X32 = 0x4000_0000
_REFUSED_CALLS = {  # socket, execve, execveat, ptrace, io_uring_setup, bpf, process_vm_readv
    "x86_64": (0xC000_003E, (41, 59, 322, 101, 425, 321, 310)),
    "aarch64": (0xC000_00B7, (198, 221, 281, 117, 425, 280, 270)),
}
_libc = ctypes.CDLL(None, use_errno=True)
_noted_s = float("-inf")  # the last progress; of a process with one thread


def limit_resources() -> None:
    """No files are written and no core files; memory, descriptors and processor time are bounded."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, DESCRIPTORS_MAX)
    _limit(resource.RLIMIT_DATA, DATA_BYTES_MAX)
    _limit_processor()


def limit_mappings() -> None:
    """For formats whose libraries do not map the file."""
    _limit(resource.RLIMIT_AS, ADDRESS_BYTES_MAX)


def note_progress() -> None:
    """The process may use PROCESSOR_S_MAX from now on; then it is ended by SIGXCPU. Told to the kernel every NOTED_S:
    three system calls for each small file take a tenth of the time of its reader.
    """
    if time.monotonic() - _noted_s >= NOTED_S:
        _limit_processor()


def _limit_processor() -> None:
    global _noted_s  # of the process, as the limit
    _noted_s = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + PROCESSOR_S_MAX, is_final=False)


def _limit(kind: int, value: int, is_final: bool = True) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value if is_final else hard))


def end_with_parent(signal_number: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def leave_network() -> None:
    """A network without any interface; as another user than root, in a user namespace of its own."""
    if _libc.unshare(_NEW_NETWORK) != 0 and os.geteuid() != 0:
        _libc.unshare(_NEW_USER | _NEW_NETWORK)


def gain_no_privileges() -> None:
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def refuse_calls() -> None:
    """No sockets are made, and no programs are started, also by what runs in place of this code (seccomp). Needs
    `gain_no_privileges`.
    """
    if platform.machine() not in _REFUSED_CALLS:
        return
    architecture, calls = _REFUSED_CALLS[platform.machine()]
    rows = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, 0),  # the number of the call
        (_JUMP_IF_NOT_LESS, len(calls) + 1, 0, _X32),
        *((_JUMP_IF_EQUAL, len(calls) - place, 0, call) for place, call in enumerate(calls)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
    header = struct.pack("@HP", len(rows), ctypes.addressof(program))
    _libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(header), 0, 0)


def landlock_version() -> int:
    """0 where the kernel has no Landlock."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, 0, 1)))


def restrict_files(folders: Iterable[str], files: Sequence[int]) -> bool:
    """From now on, only what is in these folders, and these open files, can be opened, and only for reading; TCP and
    sockets of other processes cannot be reached (Landlock). Needs `gain_no_privileges`. False if the kernel refuses.
    """
    version = landlock_version()
    if not version:
        return False
    access = _ACCESS[max(one for one in _ACCESS if one <= version)]
    network, scopes = _TCP * (version >= _NETWORK_VERSION), _SCOPES * (version >= _SCOPE_VERSION)
    size = 24 if scopes else 16 if network else 8
    rules = _libc.syscall(_CREATE_RULESET, struct.pack("=QQQ", access, network, scopes), size, 0)
    if rules < 0:
        return False
    try:
        for folder in folders:
            with suppress(OSError):  # not each system has each of them
                opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
                kinds = _READ_FILE | _READ_FOLDER if os.path.isdir(folder) else _READ_FILE
                _allow(rules, opened, kinds)
                os.close(opened)
        for file in files:
            _allow(rules, file, _READ_FILE)
        return bool(_libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(rules: int, opened: int, access: int) -> None:
    _libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", access, opened), 0)
