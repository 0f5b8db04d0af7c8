"""dlcmd server: what runs where."""

from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer


def test_the_status_of_a_server(dlcmd: Dlcmd, server: RunningServer) -> None:
    (found,) = dlcmd("server", "status", "--json", "--server", server.unix).objects
    assert (found["address"], found["store"]) == (server.unix, f"posix://{server.folder}/chunks")
    assert found["requests"] > 0
    assert (
        f"  store        posix://{server.folder}/chunks\n"
        in dlcmd("--server", server.unix, "server", "status").text
    )
