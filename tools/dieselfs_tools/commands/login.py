"""The verbs of users whom an identity provider names. This module writes the files of their login."""

from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.errors import DieselfsError, InvalidInput, NotFound
from dieselfs.settings.table import login_file
from dieselfs.units import format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.oidc.grants import Code


@options.verb(
    "login",
    "dlcmd login                                     # shows a code to enter in any browser",
    "dlcmd login --service --client-id train --secret-file train.secret    # a job, without a person",
)
@click.option("--issuer", metavar="URL", help="The identity provider. [oidc_issuer]")
@click.option("--client-id", metavar="ID", help="The application at the provider. [oidc_client_id]")
@click.option("--secret-file", metavar="FILE", help="Its secret, if it has one; mode 0600.")
@click.option("--service", "is_service", is_flag=True, help="Log in as the application itself, for jobs.")
@click.option("--pin", metavar="PIN", help="The server's pin, for a first login without tls_ca.")
def login(
    session: Session,
    issuer: str | None,
    client_id: str | None,
    secret_file: str | None,
    is_service: bool,
    pin: str | None,
) -> int:
    """Log in at a server with an account of its identity provider, in place of a key file.

    The server gives a key for the provider's token. It is used where no key file is named, is renewed by the programs
    that use it, and ends when the provider ends the login, or with 'dlcmd logout'.
    """
    from dieselfs.net.auth import parse_pin
    from dieselfs.rpc.login import Login, check_server, log_in

    settings = session.settings()
    path = login_file(settings.server or "")
    own = str(path) if path.exists() else None
    settings = replace(settings, key_file=own)  # its pin alone is used: the key may have expired
    known = parse_pin(pin) if pin else b""
    check_server(settings, known)
    chosen = Login(
        issuer or settings.oidc_issuer,
        client_id or settings.oidc_client_id,
        settings.oidc_ca,
        str(Path(secret_file).expanduser().absolute()) if secret_file else None,
        is_service,
    )
    if not chosen.issuer:
        raise InvalidInput("which identity provider? set oidc_issuer, or give --issuer URL")
    if is_service and not secret_file:
        raise InvalidInput("--service needs the secret of the application: --secret-file FILE")

    def show(code: "Code") -> None:
        where = f"\nor open {code.direct_url}" if code.direct_url else ""
        click.echo(f"open {code.url} and enter the code {code.code}{where}", err=True)  # also with --quiet

    application = chosen.application()
    tokens = application.by_secret() if is_service else application.by_code(show)
    done = log_in(settings, path, chosen, tokens, known)
    renewed = "; it is renewed while it is used" if done.can_renew else ""
    return session.output.summary(
        f"logged in as {done.user}, until {format_time(int(done.expires_s))}{renewed}",
        {"user": done.user, "key_file": str(path), "until_s": int(done.expires_s)},
    )


@options.verb(
    "logout",
    "dlcmd logout                                    # at the server of your settings",
    "dlcmd logout --server tcp://storage-1:7070      # at another one",
)
def logout(session: Session) -> int:
    """End the login of 'dlcmd login' at a server, and at the provider if it can. Tokens of jobs stay."""
    from dieselfs.net.auth import read_key_file
    from dieselfs.rpc.client import ServerClient
    from dieselfs.rpc.login import log_out, read_login

    settings = session.settings()
    path = login_file(settings.server or "")
    if read_login(path) is None:
        raise NotFound("you are not logged in at this server")
    key = read_key_file(path)
    with suppress(DieselfsError), closing(ServerClient(replace(settings, key_file=str(path)))) as client:
        client.remove_key(key.user, key.key_id)  # otherwise it expires
    log_out(path)
    return session.output.summary(f"logged out {key.user}", {"user": key.user})
