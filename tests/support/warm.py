"""Programs of dieselfs start as forks of a process that has imported them: imports take 0.7 s of the processor, and the
tests start thousands of programs.

A fork runs the `main` of its module, with its own process ID, arguments, environment, folder, descriptors, session and
network, as after exec. `WarmPopen` takes the place of `subprocess.Popen`; where something is wanted that a fork cannot
have (another interpreter, user, limit, mount table or `PYTHON` variable), it runs the program as always. `use` puts it
into the laboratory and into the code of dieselfs that starts background processes.
"""

import atexit
import fcntl
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import lab.server
from dieselfs.cluster import daemon
from dieselfs.process import launch
from dieselfs.process.launch import module_environment
from dieselfs.process.state_dirs import open_private
from lab.namespace import enter
from tests.support.command_line import show_command
from tests.support.forks import IMPORTED
from tests.support.warm_client import ask, current_umask

PROGRAMS = (
    "dieselfs_server.main",
    "dieselfs_tools.dlcmd",
    "dieselfs_client.main",
    "dieselfs_client.cache_daemon",
    "dieselfs_client.supervision.supervisor",
    "dieselfs_client.zygote",
)
_SHARED = ("mnt", "user", "pid", "ipc")
"""Namespaces in which a fork must be, because it cannot enter others."""
_ENTERED = ("net", "uts")
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)
_SET_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
"""Limits that a fork gets from the process that asks. The daemons of mounts have others than the tests."""
_START_TIMEOUT_S = 60.0
_RUN = "from {} import main\nmain()"
_HARMLESS = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}


class _Warm(NamedTuple):
    """The warm process: where it listens, what it is, and what its forks therefore are."""

    address: str
    state: tuple[object, ...]
    path: frozenset[str]
    entered: tuple[str, ...]


_warm: _Warm | None = None
_home: tuple[tuple[str, ...], list[int]] | None = None  # where `use` was called: links, and descriptors
_lock = threading.Lock()
_alive: int | None = None
_has_zygote = False  # in the supervisor of a mount


def _links(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(os.readlink(f"/proc/thread-self/ns/{name}") for name in names)


def _state() -> tuple[object, ...]:
    """What forks inherit; it must be that of the process that asks."""
    with open("/proc/self/cgroup") as groups:
        control = groups.read()
    limits = tuple(resource.getrlimit(limit) for limit in _LIMITS)
    root = os.stat("/")
    return os.getresuid(), os.getresgid(), limits, control, (root.st_dev, root.st_ino), _links(_SHARED)


def _warmed() -> _Warm:
    """Starts the warm process of this process, if it has none. A fork of the warm process uses that one."""
    global _warm, _alive
    with _lock:
        if _warm is None:
            folder = tempfile.mkdtemp(prefix="warm-")
            address = f"{folder}/socket"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(address)
            listener.listen(128)
            ended, _alive = os.pipe()
            os.set_inheritable(_alive, False)
            code = "from tests.support import warm; warm.serve()"
            with _at_home():
                process = subprocess.Popen(
                    [sys.executable, "-c", code, address, str(listener.fileno()), str(ended)],
                    env={**_pinned(os.environ), "PYTHONPATH": _python_path(), "OPENBLAS_NUM_THREADS": "1"},
                    stdin=subprocess.DEVNULL,
                    pass_fds=(listener.fileno(), ended),
                    start_new_session=True,  # an interrupt of the terminal is for the tests
                )
                process.returncode = 0  # nobody waits for it: it ends when this process has ended
                _warm = _Warm(address, _state(), _absolute(sys.path), _links(_ENTERED))
            listener.close()
            os.close(ended)
        return _warm


@contextmanager
def _at_home() -> Iterator[None]:
    """In this block, the thread is in the network of the tests, even if it has entered that of a host, which ends."""
    own = _links(_ENTERED)
    if _home is None or own == _home[0]:
        yield
        return
    back = [os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _ENTERED]
    try:
        for descriptor in _home[1]:
            enter(descriptor)
        yield
    finally:
        for descriptor in back:
            enter(descriptor)
            os.close(descriptor)


def _pinned(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith("DIESELFS_")}


def _python_path() -> str:
    return os.pathsep.join(os.path.abspath(path) for path in sys.path if path)


def _absolute(paths: Sequence[str]) -> frozenset[str]:
    return frozenset(os.path.abspath(path) for path in paths if path)


def prepared(code: str, module: str) -> str:
    """What `python -c` runs: a program, after some code. A fork can be that, too."""
    return f"{code}\n{_RUN.format(module)}"


def _program(words: Sequence[Any], variables: Mapping[str, str]) -> dict[str, Any] | None:
    """The module, the arguments, and the code to run before, if a fork can be this program."""
    texts = [os.fsdecode(word) for word in words]
    rest = texts[1:]
    if rest[:1] == ["-P"]:
        rest = rest[1:]
    if not texts or texts[0] != sys.executable or len(rest) < 2:
        return None
    option, module, code = rest[0], rest[1], ""
    if option == "-c":
        module = next((name for name in PROGRAMS if rest[1].endswith(f"\n{_RUN.format(name)}")), "")
        code = rest[1].removesuffix(_RUN.format(module))
    if option not in ("-m", "-c") or module not in PROGRAMS:
        return None
    strange = [name for name in variables if name.startswith(("PYTHON", "LD_", "MALLOC_"))]
    if not _HARMLESS.issuperset(strange):
        return None
    return {"module": module, "arguments": rest[2:], "code": code, "command": texts}


def _request(
    words: Sequence[Any],
    variables: Mapping[str, str] | None,
    folder: str | os.PathLike[str] | None,
    **more: Any,
) -> tuple[_Warm, dict[str, Any], list[int]] | None:
    """What to send to the warm process, and descriptors of the namespaces to enter; None if this needs exec."""
    environment = os.environ if variables is None else variables
    program = _program(words, environment)
    if program is None:
        return None
    warm = _warmed()
    if (
        not _absolute(environment.get("PYTHONPATH", "").split(os.pathsep)) <= warm.path
        or _state() != warm.state
    ):
        return None
    entered = []
    for kind, own, theirs in zip(_ENTERED, _links(_ENTERED), warm.entered, strict=True):
        if own != theirs:
            entered.append(os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC))
    request = {
        **program,
        "environment": dict(environment),
        "folder": os.fspath(folder or os.getcwd()),
        "umask": current_umask(),
        "limits": [[limit, resource.getrlimit(limit)] for limit in _SET_LIMITS],
        "namespaces": len(entered),
        **more,
    }
    return warm, request, entered


class WarmPopen(subprocess.Popen[Any]):
    """`subprocess.Popen`, whose process is a fork of the warm process if it is a program of dieselfs."""

    _channel: socket.socket | None = None

    def _execute_child(self, *given: Any) -> None:  # the order of parameters of Python 3.11 to 3.14
        words, executable, preexec, _, kept, folder, variables, _, _, is_shell = given[:10]
        ids, mask, is_session, group = given[17:20], given[20], given[21], given[22]
        pipes = (given[10], given[13], given[15])  # what becomes 0, 1 and 2
        plain = (
            executable is None and preexec is None and not is_shell and not isinstance(words, (str, bytes))
        )
        found = None
        if plain and all(one is None for one in ids) and mask == -1 and group == -1:
            found = _request(words, variables, folder, is_session=is_session)
        if found is None:
            super()._execute_child(*given)  # type: ignore[misc]  # not in the stubs
            return
        warm, request, entered = found
        targets = {number: number if pipe == -1 else pipe for number, pipe in enumerate(pipes)}
        targets |= {descriptor: descriptor for descriptor in kept}
        try:
            self.pid, self._channel = ask(warm.address, request, targets, entered)
            self._child_created = True
        finally:
            for descriptor in entered:
                os.close(descriptor)
            self._close_pipe_fds(*given[10:16])  # type: ignore[attr-defined]  # not in the stubs

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._channel is None:
            found: tuple[int, int] = super()._try_wait(wait_flags)  # type: ignore[misc]  # not in the stubs
            return found
        self._channel.setblocking(not wait_flags & os.WNOHANG)
        try:
            answer = self._channel.recv(64)
        except BlockingIOError:
            return 0, 0
        self._channel.close()
        return self.pid, int(answer or b"0")

    def _internal_poll(self, *given: Any, **more: Any) -> int | None:
        if self._channel is not None:
            more["_waitpid"] = lambda _, flags: self._try_wait(flags)
        code: int | None = super()._internal_poll(*given, **more)  # type: ignore[misc]  # not in the stubs
        return code


def start(command: Sequence[str], log: Path, descriptors: Sequence[int] = (), folder: str = "/") -> int:
    """In place of `launch.start`."""
    found = _request(command, module_environment(), folder, is_session=True, is_background=True)
    if found is None:
        return _start(command, log, descriptors, folder)
    warm, request, entered = found
    with open(open_private(log), "ab") as output, open(os.devnull, "rb") as nothing:
        targets = {0: nothing.fileno(), 1: output.fileno(), 2: output.fileno()}
        targets |= {descriptor: descriptor for descriptor in descriptors}
        process, channel = ask(warm.address, request, targets, entered)
    channel.close()
    for descriptor in entered:
        os.close(descriptor)
    return process


_start = launch.start
_spawn = os.posix_spawn


def _spawn_zygote(
    path: Any, words: Sequence[Any], variables: Mapping[str, str], *, setsid: bool = False, **more: Any
) -> int:
    """In place of `os.posix_spawn`, in the supervisor of a mount: its zygote must be its child. The supervisor has one
    thread, and has opened nothing that the zygote would have.

    Only the first zygote is a fork; that of a supervisor as it is installed is one without this. Later ones, of an
    upgrade above all, must run the code that is installed then.
    """
    global _has_zygote
    program = _program(words, {})
    if (
        program is None
        or program["module"] != "dieselfs_client.zygote"
        or not program.get("code")
        or _has_zygote
        or len(os.listdir("/proc/self/task")) > 1
    ):
        return _spawn(path, list(words), variables, setsid=setsid, **more)
    _has_zygote = True
    process = os.fork()
    if process:
        return process
    try:
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if not os.get_inheritable(int(name)):
                    os.close(int(name))
        _become({**program, "environment": dict(variables), "is_session": setsid})
    finally:
        os._exit(1)


def use() -> None:
    """Start programs of dieselfs as forks, in this process and in all that become so."""
    global _home
    places = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _ENTERED]
    _home = _links(_ENTERED), places
    lab.server.popen = WarmPopen
    launch.start = start
    vars(daemon)["start"] = start  # its own name for it


def script(module: str) -> str:
    """A program for a folder of PATH: it runs a module as a fork, and ends as that does."""
    client = Path(__file__).with_name("warm_client.py")
    return f'#!/bin/sh\nexec {sys.executable} -S -E {client} {_warmed().address} {module} "$@"\n'


# -- the warm process --------------------------------------------------------------------------------------


def serve() -> None:
    """Fork at each request, until the tests have ended."""
    global _warm
    address, listening, ended = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    use()
    _import_all()
    _warm = _Warm(address, _state(), _absolute(sys.path), _links(_ENTERED))
    gc.collect()
    gc.freeze()
    become = _serve(socket.socket(fileno=listening), ended)
    if become is None:
        with suppress(OSError):
            os.unlink(address)
            os.rmdir(os.path.dirname(address))
    else:
        become()


def _import_all() -> None:
    daemons = ("dieselfs_client.cluster.role", "dieselfs_client.daemon.following")
    for name in (*PROGRAMS, *IMPORTED, *daemons):
        importlib.import_module(name)


def _serve(listener: socket.socket, ended: int) -> Callable[[], NoReturn] | None:
    """Returns in each fork what it has to run, and None at the end."""
    signals, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, tuple[socket.socket, bool]] = {}
    selector = selectors.DefaultSelector()
    for source in (listener, ended, signals):
        selector.register(source, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == ended:
                return None
            if key.fileobj == signals:
                with suppress(BlockingIOError):
                    os.read(signals, 4096)
                _reap(running, selector)
            elif key.fileobj is listener:
                channel, _ = listener.accept()
                try:
                    request, descriptors = _receive(channel)
                except (OSError, ValueError):
                    channel.close()
                    continue
                process = os.fork()
                if not process:
                    signal.set_wakeup_fd(-1)
                    selector.close()  # these objects must not close later what gets their numbers
                    for each in (listener, channel, *(other for other, _ in running.values())):
                        each.close()
                    return lambda: _become(request, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                with suppress(OSError):
                    channel.sendall(b"%d\n" % process)
                running[process] = channel, bool(request.get("is_bound"))
                selector.register(channel, selectors.EVENT_READ, process)
            elif key.data in running:
                _hung_up(key.data, running, selector)


def _hung_up(process: int, running: dict[int, tuple[socket.socket, bool]], selector: Any) -> None:
    """The one who asked has gone, or sends a signal to the program."""
    channel, is_bound = running[process]
    word = b""
    with suppress(OSError):
        word = channel.recv(1)
    if word:
        os.kill(process, word[0])
        return
    selector.unregister(channel)
    if is_bound:
        os.kill(process, signal.SIGKILL)


def _reap(running: dict[int, tuple[socket.socket, bool]], selector: Any) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            process, status = found
            channel, _ = running.pop(process)
            with suppress(KeyError):
                selector.unregister(channel)
            with suppress(OSError):
                channel.sendall(b"%d" % status)
            channel.close()


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, descriptors, _, _ = socket.recv_fds(channel, 8, 250)
    length = int(head)
    body = b""
    while len(body) < length:
        more = channel.recv(length - len(body))
        if not more:
            raise ValueError("cut off")
        body += more
    return json.loads(body), descriptors


def _become(request: dict[str, Any], descriptors: Sequence[int] = ()) -> NoReturn:
    """Be the program from now on."""
    code = 70
    try:
        if descriptors:
            _take_descriptors(request, descriptors)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        is_background = request.get("is_background", False)
        signal.signal(signal.SIGINT, signal.SIG_IGN if is_background else signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_IGN if is_background else signal.SIG_DFL)
        if request.get("is_session"):
            os.setsid()
        for limit, values in request.get("limits", ()):
            resource.setrlimit(limit, values)
        if "umask" in request:
            os.umask(request["umask"])
        if "folder" in request:
            os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.posix_spawn = _spawn_zygote  # type: ignore[assignment]  # it has the parameters that are used
        sys.orig_argv = list(request["command"])
        show_command(sys.orig_argv)
        module = importlib.import_module(request["module"])
        sys.argv = ["-c" if request.get("code") else module.__file__ or "", *request["arguments"]]
        try:
            exec(request.get("code", ""), {"__name__": "__main__"})
            module.main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
        threading._shutdown()  # type: ignore[attr-defined]  # not in the stubs
        atexit._run_exitfuncs()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # as Python ends
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)


def _take_descriptors(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Give the received descriptors their numbers, enter the namespaces, and close all others."""
    targets: list[int] = request["targets"]
    count = len(targets)
    for namespace in descriptors[count:]:
        enter(namespace)
    floor = max(targets) + 1
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, floor) for descriptor in descriptors[:count]]
    for target, descriptor in zip(targets, high, strict=True):
        os.dup2(descriptor, target, inheritable=True)
    kept = set(targets)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", 1 if os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, closefd=False, errors="backslashreplace")
