"""dlcmd usage: who sees what is stored, and the quota of a user."""

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_REFUSED
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer


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
