"""dlcmd group, and rights of groups: what members, and everybody, may do."""

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_USAGE
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer


def administrator(dlcmd: Dlcmd, server: RunningServer) -> Dlcmd:
    return Dlcmd(dlcmd.home, dlcmd.folder, {"DIESELFS_SERVER": server.unix})


def user(dlcmd: Dlcmd, server: RunningServer, name: str) -> Dlcmd:
    settings = {"DIESELFS_SERVER": server.tcp, "DIESELFS_KEY_FILE": str(server.user(name))}
    return Dlcmd(dlcmd.home, dlcmd.folder, settings)


def test_members_have_the_rights_of_their_group(dlcmd: Dlcmd, server: RunningServer) -> None:
    admin, gina, gert = (
        administrator(dlcmd, server),
        user(dlcmd, server, "gina"),
        user(dlcmd, server, "gert"),
    )
    (dlcmd.folder / "f").write_text("content")
    admin("put", "f", "dl://scans/")
    admin("user", "grant", "group:radio", "scans", "read", exit_code=EXIT_NOT_FOUND)
    admin("group", "add", "radio", "gina", "nobody-known", exit_code=EXIT_NOT_FOUND)
    admin("group", "add", "-n", "radio", "gina")
    assert admin("group", "ls").text == "there are no groups\n"
    assert admin("group", "add", "radio", "gina", "gert").text == "group radio has gina, gert\n"
    admin("user", "grant", "group:radio", "scans", "write")
    (listed,) = admin("group", "ls", "--json").objects
    assert (listed["group_users"], listed["grants"]) == (["gert", "gina"], {"scans": "write"})
    assert gina("cat", "dl://scans/f").text == "content"
    gert("rm", "dl://scans/f")
    admin("group", "rm", "radio", "gert")
    gert("ls", "dl://scans/", exit_code=EXIT_NOT_FOUND)
    gina("ls", "dl://scans/")
    admin("group", "rm", "-n", "radio", "gert", exit_code=EXIT_NOT_FOUND)
    admin("group", "rm", "radio")
    gina("ls", "dl://scans/", exit_code=EXIT_NOT_FOUND)
    gina("group", "ls", exit_code=EXIT_REFUSED)
    gina("group", "add", "radio", "gina", exit_code=EXIT_REFUSED)


def test_a_public_dataset_is_read_by_all_users_and_written_by_none(
    dlcmd: Dlcmd, server: RunningServer
) -> None:
    admin, guest = administrator(dlcmd, server), user(dlcmd, server, "guest")
    (dlcmd.folder / "f").write_text("content")
    admin("put", "f", "dl://open/")
    guest("cat", "dl://open/f", exit_code=EXIT_NOT_FOUND)
    admin("user", "grant", "group:everyone", "open", "write", exit_code=EXIT_USAGE)
    admin("user", "grant", "group:everyone", "open", "read")
    assert guest("cat", "dl://open/f").text == "content"
    guest("put", "f", "dl://open/g", exit_code=EXIT_REFUSED)
    assert admin("group", "ls").text == "everyone\n  may read open\n"
    admin("user", "grant", "group:everyone", "open", "none")
    guest("cat", "dl://open/f", exit_code=EXIT_NOT_FOUND)


def test_a_user_of_the_group_shared_cannot_change_the_key(dlcmd: Dlcmd, server: RunningServer) -> None:
    admin, visitor = administrator(dlcmd, server), user(dlcmd, server, "visitor")
    admin("group", "add", "shared", "visitor")
    visitor("user", "rotate", exit_code=EXIT_REFUSED)
    visitor("user", "add", "visitor", exit_code=EXIT_REFUSED)
    visitor("ls")
    admin("group", "rm", "shared")
    visitor("user", "rotate")
