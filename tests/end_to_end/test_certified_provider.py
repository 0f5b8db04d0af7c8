"""A certified provider of OpenID Connect, which others have written: people, jobs, and their tokens."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import EXIT_REFUSED, AccessDenied
from dieselfs.net.auth import parse_pin, read_key_file
from dieselfs.net.private_file import write_private_file
from dieselfs.oidc.grants import Application, Tokens
from dieselfs.oidc.provider import fetch_keys
from dieselfs.rpc.login import Login, kept_beside, log_in, read_login
from dieselfs.settings.table import login_file
from dieselfs_server.access.provider import ASK_S, Provider, SigningKeys
from dieselfs_server.settings import ProviderSettings
from tests.support.certified_provider import CertifiedProvider, certified_provider
from tests.support.dlcmd import TIMEOUT_S, Dlcmd
from tests.support.server import RunningServer, running_server

PEOPLE: dict[str, dict[str, Any]] = {
    "7": {"preferred_username": "ada", "groups": ["/ml"]},
    "8": {"preferred_username": "bert"},
}
pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Site:
    """A server and its provider."""

    provider: CertifiedProvider
    server: RunningServer
    pin: str

    def dlcmd(self, folder: Path) -> Dlcmd:
        """As a user with an empty home folder."""
        folder.mkdir()
        variables = {
            "DIESELFS_SERVER": self.server.tcp,
            "DIESELFS_OIDC_ISSUER": self.provider.issuer,
            "DIESELFS_OIDC_CA": str(self.provider.authority),
        }
        return Dlcmd(folder / "home", folder, variables)

    def key_file(self, dlcmd: Dlcmd) -> Path:
        return login_file(self.server.tcp, {"HOME": str(dlcmd.folder)})

    def tokens(self, person: str, client: str = "dieselfs") -> Tokens:
        """Of a person who has entered the code at once."""
        application = Application(self.provider.issuer, client, str(self.provider.authority))
        return application.by_code(
            lambda code: self.provider.enter(code.direct_url, person), sleep=lambda _: None
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with certified_provider(folder, PEOPLE) as provider:
        options = ("--oidc-issuer", provider.issuer, "--oidc-ca", str(provider.authority))
        with running_server(folder / "server", (*options, "--oidc-groups", "/ml=vision")) as server:
            (folder / "f").write_text("content")
            admin = Dlcmd(folder / "home", folder, {"DIESELFS_SERVER": server.unix})
            admin("put", "f", "dl://scans/")
            admin("group", "add", "vision")
            admin("user", "grant", "group:vision", "scans", "read")
            yield Site(provider, server, server.user("anybody").read_text().split()[-1])


def is_due(key_file: Path) -> None:
    """Let half of the life of the login be over."""
    kept = json.loads(kept_beside(key_file).read_text())
    kept |= {"made_s": time.time() - 3600, "expires_s": time.time() + 60}
    write_private_file(kept_beside(key_file), json.dumps(kept).encode())


def test_a_person_logs_in_by_a_code_reads_renews_and_logs_out(site: Site, tmp_path: Path) -> None:
    user, said = site.dlcmd(tmp_path / "ada"), tmp_path / "said"
    with open(said, "wb") as stream, user.start("login", "--pin", site.pin, stderr=stream) as process:
        address = ""
        while not address and process.poll() is None:
            time.sleep(0.05)
            address = said.read_text().partition("\nor open ")[2].partition("\n")[0]
        assert "Success" in site.provider.enter(address, "7")
        assert process.wait(TIMEOUT_S) == 0, said.read_text()
    key_file = site.key_file(user)
    assert user("cat", "dl://scans/f").text == "content"
    (listed,) = user("user", "ls", "--json").objects
    assert (listed["user"], listed["provider_groups"]) == ("oidc:ada", ["vision"])
    first, login = read_key_file(key_file), read_login(key_file)
    is_due(key_file)
    user("ls")  # ends once the thread that renews has ended
    renewed = read_login(key_file)
    assert login is not None and renewed is not None and renewed.refresh != login.refresh
    assert read_key_file(key_file).key_id != first.key_id
    assert user("cat", "dl://scans/f").text == "content"
    user("logout")
    with pytest.raises(AccessDenied, match="invalid_grant"):  # it is ended at the provider too
        renewed.tokens()


def test_a_refresh_token_that_was_used_ends_the_login_of_a_thief_too(site: Site) -> None:
    tokens = site.tokens("8")
    application = Application(site.provider.issuer, "dieselfs", str(site.provider.authority))
    taken = application.by_refresh(tokens.refresh)
    for refresh in (tokens.refresh, taken.refresh):
        with pytest.raises(AccessDenied, match="invalid_grant"):
            application.by_refresh(refresh)


def test_a_job_logs_in_with_a_service_token(site: Site, tmp_path: Path) -> None:
    user, secret = site.dlcmd(tmp_path / "train"), tmp_path / "secret"
    service = ("login", "--service", "--client-id", "train", "--pin", site.pin, "--secret-file", secret)
    write_private_file(secret, b"wrong\n")
    assert "invalid_client" in user(*service, exit_code=EXIT_REFUSED).stderr
    write_private_file(secret, b"a-secret\n")
    assert user(*service, "--json").summary["user"] == "oidc:service-account-train"
    first = read_key_file(site.key_file(user))
    is_due(site.key_file(user))
    assert "no right on any dataset" in user("ls").text
    assert read_key_file(site.key_file(user)).key_id != first.key_id


def test_a_token_for_another_application_is_refused(site: Site, tmp_path: Path) -> None:
    tokens, settings = site.tokens("7", "another"), site.server.settings()
    login = Login(site.provider.issuer, "another", str(site.provider.authority))
    with pytest.raises(AccessDenied):
        log_in(
            replace(settings, server=site.server.tcp), tmp_path / "key", login, tokens, parse_pin(site.pin)
        )
    assert not (tmp_path / "key").exists()
    assert "token: Audience doesn't match" in site.server.log()


def test_a_key_of_the_provider_is_replaced(site: Site) -> None:
    """What was issued before counts no longer; servers learn of the new key when a token names it."""
    now_s, authority = 1000.0, str(site.provider.authority)
    fetch = partial(fetch_keys, site.provider.issuer, authority)
    settings = ProviderSettings(site.provider.issuer, ["dieselfs"], authority=authority)
    provider = Provider(settings, SigningKeys(fetch, lambda: now_s))
    before = site.tokens("7").token.encode()
    assert provider.person(before).name == "oidc:ada"
    site.provider.change(rotate=True)
    after = site.tokens("7").token.encode()
    with pytest.raises(AccessDenied, match="no key"):  # it was asked just now
        provider.person(after)
    now_s += ASK_S
    assert provider.person(after).name == "oidc:ada"
    with pytest.raises(AccessDenied, match="no key"):
        provider.person(before)
