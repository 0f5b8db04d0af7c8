"""dlcmd run: a command with a mount of its own."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from dieselfs_client.mount.points.mount_table import dieselfs_mounts
from tests.support.dlcmd import COMMAND, TIMEOUT_S, Dlcmd, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")

AS_USER = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"] if os.getuid() == 0 else []
"""Root without the right to mount is as an ordinary user, and may read all of this checkout."""
NO_NAMESPACE = """
from dieselfs_client.mount.points import namespace
namespace.obstacle = lambda: "private namespaces are not allowed: unshare: Operation not permitted"
"""
SHOWS = """
set -e
cat "$DIESELFS_MOUNT/train/cat.txt"; echo
grep -o '"view": "[a-z]*"' "$DIESELFS_MOUNT/.dieselfs/info" | head -n 1
id -u
echo "$DIESELFS_MOUNT" > place
"""

AGAIN = "mkdir -p old && touch old/b"


@pytest.fixture
def user(dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dlcmd]:
    """With a runtime folder of its own, in which nothing is left."""
    runtime = dlcmd.folder / "runtime"
    runtime.mkdir(0o700)
    yield Dlcmd(dlcmd.home, dlcmd.folder, {"XDG_RUNTIME_DIR": str(runtime)})
    assert not list(runtime.glob("dieselfs/mounts/*"))
    assert not [one for one in dieselfs_mounts() if one.mountpoint.startswith(str(dlcmd.folder))]


def ran(user: Dlcmd, *words: str, prefix: list[str] = AS_USER) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*prefix, *COMMAND, "run", *words],
        cwd=user.folder,
        env=user.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_a_user_runs_a_command_in_the_overlay_view(user: Dlcmd, pets: str) -> None:
    done = ran(user, pets, "--", "sh", "-c", SHOWS)
    if "for all your processes" in done.stderr:
        pytest.skip(done.stderr)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["xxxxx", '"view": "overlay"', str(os.getuid())]
    place = (user.folder / "place").read_text().strip()
    assert not os.path.exists(place)


def test_what_a_user_writes_is_in_the_dataset_when_the_command_ends(user: Dlcmd, dataset: str) -> None:
    """In a user namespace, overlayfs marks what is deleted and replaced in another way."""
    names = f'cd "$DIESELFS_MOUNT"; mkdir old; touch old/a log; {AGAIN}'
    done = ran(user, "--write", f"{dataset}/new", "--", "sh", "-c", names)
    if "for all your processes" in done.stderr:
        pytest.skip(done.stderr)
    assert (done.returncode, done.stderr) == (0, "")
    done = ran(
        user, "--write", f"{dataset}/new", "--", "sh", "-c", f"cd $DIESELFS_MOUNT; rm -r log old; {AGAIN}"
    )
    assert (done.returncode, done.stderr) == (0, "")
    listed = user("find", f"dl://{dataset}").text.split()
    assert listed == [f"dl://{dataset}/new/{name}" for name in ("", "old/", "old/b")]
    assert not list(user.home.rglob("writes/*"))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_the_mount_of_root_is_private_too(user: Dlcmd, pets: str) -> None:
    done = ran(user, pets, "--", "sh", "-c", SHOWS, prefix=[])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "xxxxx"
    assert not os.path.exists((user.folder / "place").read_text().strip())


def test_the_place_and_the_options_are_those_of_mount(user: Dlcmd, pets: str) -> None:
    place = user.folder / "place to mount"
    place.mkdir()
    words = ["--at", str(place), "--view", "fuse", "--memory", "64M"]
    shows = 'cd "$DIESELFS_MOUNT"; pwd; grep -c -e \'"view": "fuse"\' -e \'"memory_bytes": 67108864\' .dieselfs/info'
    done = ran(user, *words, pets, "--", "sh", "-c", shows)
    assert done.stdout.splitlines() == [str(place), "3"], done
    assert os.listdir(place) == []
    (place / "file").touch()
    done = ran(user, *words, pets, "--", "true")
    assert done.returncode == EXIT_USAGE
    assert "the folder is not empty" in done.stderr


@pytest.mark.parametrize("prefix", [AS_USER, []], ids=["user", "root"])
def test_the_exit_code_is_that_of_the_command(user: Dlcmd, pets: str, prefix: list[str]) -> None:
    assert ran(user, pets, "--", "sh", "-c", "exit 42", prefix=prefix).returncode == 42
    assert ran(user, pets, "--", "sh", "-c", "kill -USR1 $$", prefix=prefix).returncode == -signal.SIGUSR1


def test_what_cannot_be_run(user: Dlcmd, pets: str) -> None:
    done = ran(user, pets, "--", "no-such-command")
    assert (done.returncode, done.stderr) == (127, "dlcmd: no-such-command: there is no such command\n")
    (user.folder / "text").write_text("no program")
    (user.folder / "text").chmod(0o755)
    assert ran(user, pets, "--", "./text").returncode == 126
    assert ran(user, "no-such-dataset", "--", "true").returncode == EXIT_NOT_FOUND
    assert ran(user, pets).returncode == EXIT_USAGE


def test_where_namespaces_are_forbidden_it_is_an_ordinary_mount(user: Dlcmd, pets: str) -> None:
    done = user.changed(NO_NAMESPACE, "run", pets, "--", "sh", "-c", SHOWS)
    assert done.returncode == 0, done
    (line,) = done.stderr.splitlines()
    assert "Operation not permitted; until the command ends, the mount on " in line
    assert done.stdout.splitlines()[0] == "xxxxx"
    assert not os.path.exists((user.folder / "place").read_text().strip())


def kill_with_keeper(process: subprocess.Popen[bytes]) -> None:
    """Neither of the two learns that the other one dies."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    both = [process.pid, *map(int, children.read_text().split())]
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for each in both:
            os.kill(each, signum)


@pytest.mark.parametrize("is_with_keeper", [False, True], ids=["process", "process and keeper"])
@pytest.mark.parametrize("code", ["", NO_NAMESPACE], ids=["private", "ordinary"])
def test_kill_leaves_nothing(user: Dlcmd, pets: str, code: str, is_with_keeper: bool) -> None:
    waits = 'echo "$$ $DIESELFS_MOUNT" > new; mv new begun; exec sleep 1000'
    program = f"{code}\nimport sys\nsys.argv[0] = 'dlcmd'\nfrom dieselfs_tools.dlcmd import main\nmain()"
    command = [*([] if code else AS_USER), COMMAND[0], "-c", program, "run", pets, "--", "sh", "-c", waits]
    process = subprocess.Popen(command, cwd=user.folder, env=user.environment(), stderr=subprocess.DEVNULL)
    try:
        wait_until((user.folder / "begun").exists)
        if is_with_keeper:
            kill_with_keeper(process)
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
    number, place = (user.folder / "begun").read_text().split()
    wait_until(lambda: not os.path.exists(f"/proc/{number}") and not os.path.exists(place))
    runtime = user.folder / "runtime"
    wait_until(lambda: not list(runtime.glob("dieselfs/mounts/*")))
    wait_until(lambda: not processes_of(user.folder))


def processes_of(folder: Path) -> list[str]:
    """The processes of mounts whose command lines name a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in line and b"dieselfs_client" in line:
            found.append(line.decode("utf-8", "replace"))
    return found
