"""dlcmd server: what runs where."""

from dieselfs.errors import EXIT_UNAVAILABLE
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer, free_port


def test_the_status_of_a_server(dlcmd: Dlcmd, server: RunningServer) -> None:
    (found,) = dlcmd("server", "status", "--json", "--server", server.unix).objects
    assert (found["address"], found["store"]) == (server.unix, f"posix://{server.folder}/chunks")
    assert found["metrics"]["rpc.requests"] > 0
    assert (
        f"  store        posix://{server.folder}/chunks\n"
        in dlcmd("--server", server.unix, "server", "status").text
    )


def test_each_of_several_servers_is_shown(dlcmd: Dlcmd, server: RunningServer) -> None:
    key = server.user("watches-servers", **{"*": "admin"})
    gone = f"tcp://127.0.0.1:{free_port()}"
    both = ("server", "status", "--json", "--key-file", key, "--server", f"{server.tcp},{gone}")
    ran = dlcmd(*both, exit_code=EXIT_UNAVAILABLE)
    shown, failure = ran.objects
    assert (shown["address"], failure["path"]) == (server.tcp, gone)
    assert ran.summary["servers"] == 2
