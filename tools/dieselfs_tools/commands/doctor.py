"""`dlcmd doctor`: whether this machine and the servers are ready."""

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, DieselfsError
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

_MARKS = {"ok": "ok", "warning": "!", "failure": "FAIL"}
_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}


@options.verb("doctor", "dlcmd doctor", "dlcmd doctor --json --server tcp://storage-1:7070")
def doctor(session: Session) -> int:
    """Check this machine and the server: a line for each check, and what to change.

    A warning costs speed or comfort. A failure (exit code 2) must be mended: something does not work with it.
    """
    from dieselfs.rpc.records import FAILURE, OK, WARNING, CheckRecord
    from dieselfs_tools.cli.config_probe import steps
    from dieselfs_tools.observe.machine_checkup import machine_checks, machine_facts
    from dieselfs_tools.observe.server_checkup import server_checks

    found = []
    try:
        settings = session.settings()
    except DieselfsError:
        folders = {}  # the first step of the settings says why
    else:
        folders = {"cache folder": settings.cache}
        if settings.server is None:
            folders["home"] = settings.home
    found += machine_checks(machine_facts(folders))
    for name, step in steps(session):
        try:
            found.append(CheckRecord(name, OK, step()))
        except DieselfsError as error:
            found.append(CheckRecord(name, FAILURE, str(error), "dlcmd config test"))
            break  # the later ones need it
    else:
        try:
            found += server_checks(session)
        except DieselfsError as error:
            found.append(CheckRecord("server", FAILURE, str(error), "dlcmd server status"))
    for each in found:
        fields = each._asdict()
        mark = session.output.coloured(f"{_MARKS[each.state]:4}", _COLOURS[each.state])
        text = f"{mark} {each.name:12} {each.text}"
        if each.fix:
            text += f"\n     {'':12} -> {each.fix}"
        session.output.record("check", text, fields)
    total = {state: sum(each.state == state for each in found) for state in (OK, WARNING, FAILURE)}
    failed = [(each.name, each.text) for each in found if each.state == FAILURE]
    if not session.output.is_json:
        session.output.failures(failed, len(failed))
    text = f"{total[OK]} ok, {count(total[WARNING], 'warning')}, {count(total[FAILURE], 'failure')}"
    fields = {"ok": total[OK], "warnings": total[WARNING], "failures": total[FAILURE]}
    return session.output.summary(text, fields, EXIT_PARTIAL if failed else EXIT_OK)
