"""dlcmd usage: who sees what is stored and moved, and the quota of a user."""

from pathlib import Path

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_REFUSED
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer, running_server


def user(dlcmd: Dlcmd, server: RunningServer, name: str, **grants: str) -> Dlcmd:
    settings = {"DIESELFS_SERVER": server.tcp, "DIESELFS_KEY_FILE": str(server.user(name, **grants))}
    return Dlcmd(dlcmd.home, dlcmd.folder, settings)


def test_users_see_their_usage_and_are_limited_by_it(
    dlcmd: Dlcmd, own_server: RunningServer, admin: Dlcmd
) -> None:
    anna = user(dlcmd, own_server, "anna", hers="write", second="write")
    bert = user(dlcmd, own_server, "bert")
    (dlcmd.folder / "f").write_bytes(b"x" * 1000)
    anna("put", "f", "dl://hers/")
    anna("put", "f", "dl://second/")
    (own,) = anna("usage", "--by", "user", "--json").objects
    assert (own["name"], own["files"], own["bytes"], own["quota_bytes"]) == ("anna", 2, 2000, None)
    stored = own["stored_bytes"]
    assert stored > 2000
    admin("quota", "set", "anna", "--size", str(stored))
    assert f"{'anna'}: at most" in admin("quota", "ls").text
    ran = anna("put", "f", "dl://hers/g", exit_code=EXIT_PARTIAL)
    assert "over quota: user anna has " in ran.stderr
    by_dataset = anna("usage", "--json").objects
    assert [(one["name"], one["owner"], one["bytes"]) for one in by_dataset] == [
        ("hers", "anna", 1000),
        ("second", "anna", 1000),
    ]
    shown = admin("usage", "hers").text
    assert "dl://hers  of anna" in shown
    admin("user", "grant", "group:everyone", "second", "read")
    (second,) = bert("usage", "--json").objects
    assert (second["name"], second["owner"]) == ("second", "")  # readers do not learn who has it
    admin("user", "grant", "group:everyone", "second", "none")
    assert bert("usage").text == ""
    bert("usage", "hers", exit_code=EXIT_NOT_FOUND)
    admin("quota", "owner", "second", "bert")
    anna("put", "f", "dl://hers/g")
    (hers,) = admin("info", "hers", "--json").objects
    assert (hers["owner"], hers["quota_bytes"]) == ("anna", None)
    assert "  owner       anna" in admin("info", "hers").text
    admin("quota", "rm", "anna")
    admin("quota", "rm", "anna", exit_code=EXIT_NOT_FOUND)
    for command in (
        ("quota", "ls"),
        ("quota", "set", "anna", "--files", "9"),
        ("quota", "owner", "hers", "bert"),
    ):
        anna(*command, exit_code=EXIT_REFUSED)


def test_bytes_that_were_read_and_written_are_kept_over_a_restart(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(20_000))

    def usage(server: RunningServer, *words: str) -> tuple[int, int]:
        (found,) = (
            one
            for one in Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix})(
                "usage", *words, "--json"
            ).objects
            if one["name"] in ("moved", "anna")
        )
        return found["read_bytes"], found["written_bytes"]

    with running_server(tmp_path / "server") as server:
        anna = user(Dlcmd(tmp_path / "home", tmp_path), server, "anna", moved="write")
        anna("put", "f", "dl://moved/")
        read, written = usage(server)
        assert written > 20_000 > read  # snapshots
        anna("get", "-f", "dl://moved/f", "g")
        read, written_after = usage(server)
        assert read > 20_000 and written_after == written
        assert usage(server, "--by", "user") == (read, written)
    with running_server(tmp_path / "server") as server:
        assert usage(server) == usage(server, "--by", "user") == (read, written)
