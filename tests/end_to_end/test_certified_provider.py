"""A certified provider of OpenID Connect, which others have written: people, jobs, their tokens, and the web page."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from dieselfs.errors import EXIT_REFUSED, AccessDenied
from dieselfs.net.auth import parse_pin, read_key_file
from dieselfs.net.private_file import write_private_file
from dieselfs.oidc.grants import Application, Redirect, Tokens
from dieselfs.oidc.provider import discover, fetch_keys
from dieselfs.rpc.login import Login, kept_beside, log_in, read_login
from dieselfs_server.access.provider import ASK_S, Provider, ProviderLogins, SigningKeys
from dieselfs_server.access.users import UserStore
from dieselfs_server.settings import ProviderSettings
from dieselfs_server.store.memory import MemoryStore
from tests.support.certified_provider import CertifiedProvider, certified_provider
from tests.support.dlcmd import TIMEOUT_S, wait_until
from tests.support.login_site import Site as LoginSite
from tests.support.login_site import login_site

CHROMIUM = shutil.which("chromium")
PAGE_TIMEOUT_MS = 60_000
PEOPLE: dict[str, dict[str, Any]] = {
    "7": {"preferred_username": "ada", "groups": ["/ml"]},
    "8": {"preferred_username": "bert"},
}
pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Site(LoginSite[CertifiedProvider]):
    """`page`: a name of its web page, to which the provider may lead back."""

    page: str

    def tokens(self, person: str, client: str = "dieselfs") -> Tokens:
        """Of a person who has entered the code at once."""
        application = Application(self.provider.issuer, client, str(self.provider.authority))
        return application.by_code(
            lambda code: self.provider.enter(code.direct_url, person), sleep=lambda _: None
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    options = ["--oidc-groups", "/ml=vision", "--web", "127.0.0.1:0"]
    with certified_provider(folder, PEOPLE) as provider, login_site(folder, provider, options) as site:
        with closing(site.server.client()) as client:
            address = client.open_page(0).address
        page = address.replace("127.0.0.1", "localhost")  # another site than the provider
        provider.change(redirects=[page])
        yield Site(provider, site.server, site.pin, page)


def is_due(key_file: Path) -> None:
    """Let half of the life of the login be over."""
    kept = json.loads(kept_beside(key_file).read_text())
    kept |= {"made_s": time.time() - 3600, "expires_s": time.time() + 60}
    write_private_file(kept_beside(key_file), json.dumps(kept).encode())


def test_a_person_logs_in_by_a_code_reads_renews_and_logs_out(site: Site, tmp_path: Path) -> None:
    user, said = site.dlcmd(tmp_path / "ada"), tmp_path / "said"
    with open(said, "wb") as stream, user.start("login", "--pin", site.pin, stderr=stream) as process:
        wait_until(lambda: "\nor open " in said.read_text() or process.poll() is not None)
        wait_until(lambda: said.read_text().endswith("\n"))
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
    # The server writes its log after it has refused the client.
    wait_until(lambda: "token: Audience doesn't match" in site.server.log())


class Visitor(httpx.Client):
    """Requests as the page sends them."""

    def __init__(self, site: Site, address: str = "") -> None:
        super().__init__(base_url=address or site.page, verify=False, timeout=30)
        self._provider = site.provider

    def send_fields(self, path: str, **fields: str) -> httpx.Response:
        return self.post(path, json=fields, headers={"origin": str(self.base_url).rstrip("/")})

    def leave(self) -> str:
        """The address to which the page sends the browser."""
        answer = self.send_fields("/api/to_provider")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["address"])

    def answer(self, person: str) -> dict[str, str]:
        """What the provider answers when a person has logged in there."""
        back = urlsplit(self._provider.enter(self.leave(), person))
        assert back._replace(query="").geturl() == str(self.base_url), back
        return {name: values[0] for name, values in parse_qs(back.query).items()}

    def refused(self, **fields: str) -> str:
        """The reason, in one line."""
        answer = self.send_fields("/api/from_provider", **fields)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False), answer.text
        assert self.get("/api/me").status_code == 401
        reason = str(answer.json()["error"])
        assert "\n" not in reason
        return reason


def test_a_session_of_the_page_has_the_rights_of_its_user_and_ends_with_them(
    site: Site, tmp_path: Path
) -> None:
    admin = site.admin(tmp_path)
    with Visitor(site) as ada, Visitor(site) as bert:
        assert ada.get("/api/provider").json() == {"issuer": site.provider.issuer}
        answer = ada.send_fields("/api/from_provider", **ada.answer("7"))
        cookie = next(each for each in answer.headers.get_list("set-cookie") if "__Host-dieselfs=" in each)
        assert all(part in cookie for part in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"))
        assert bert.send_fields("/api/from_provider", **bert.answer("8")).status_code == 200
        assert [row["name"] for row in ada.get("/api/datasets").json()["rows"]] == ["scans"]
        assert bert.get("/api/datasets").json()["rows"] == []
        listed = admin("user", "ls", "--json").objects
        (key,) = next(each["keys"] for each in listed if each["user"] == "oidc:bert")
        assert 0 < key["expires_s"] - time.time() <= 8 * 3600
        assert bert.send_fields("/api/logout").status_code == 200
        assert bert.get("/api/me").status_code == 401
        listed = admin("user", "ls", "--json").objects
        assert not next(each["keys"] for each in listed if each["user"] == "oidc:bert")
        admin("user", "bar", "oidc:ada")
        assert ada.get("/api/me").status_code == 401
        answers = ada.answer("7")
        assert "oidc:ada is barred" in ada.refused(**answers)
        admin("user", "bar", "oidc:ada", "--lift")
    audit = (site.server.folder / "state" / "audit.log").read_text()
    assert '"page": "provider"' in audit and "oidc:ada is barred" in audit


def test_an_answer_of_the_provider_is_good_for_one_login_of_one_browser(site: Site) -> None:
    with Visitor(site) as user, Visitor(site) as thief:
        answer = user.answer("8")
        assert "another browser" in thief.refused(**answer), "it has not the cookie"
        own = dict(parse_qs(urlsplit(thief.leave()).query))
        code = {"code": answer["code"], "state": own["state"][0]}
        assert "invalid_grant" in thief.refused(**code), "it has not the verifier"
        answer = user.answer("8")
        assert "log in again" in user.refused(**answer | {"state": "another"})
        assert "another identity provider" in user.refused(**answer | {"iss": "https://id.example.org"})
        state = parse_qs(urlsplit(user.leave()).query)["state"][0]
        assert user.refused(state=state, error="access_denied").endswith("refuses the login: access_denied")
        answer = user.answer("8")
        assert user.send_fields("/api/from_provider", **answer).status_code == 200
        user.send_fields("/api/logout")
        assert "used already" in user.refused(**answer)


def test_the_provider_leads_to_no_other_page(site: Site) -> None:
    with Visitor(site, site.page.replace("localhost", "127.0.0.1")) as user:
        assert "redirect_uri" in site.provider.enter(user.leave(), "8")
        named = user.post("/api/to_provider", json={}, headers={"host": "evil.example.org"})
        assert named.status_code == 421 and "not called" in named.json()["error"]
        foreign = user.post("/api/to_provider", json={}, headers={"origin": "https://evil.example.org"})
        assert foreign.status_code == 403


def test_the_application_of_a_page_may_have_a_secret(site: Site, tmp_path: Path) -> None:
    secret, issuer = tmp_path / "secret", site.provider.issuer
    write_private_file(secret, b"of-the-page\n")
    authority = str(site.provider.authority)
    settings = ProviderSettings(
        issuer, ["dieselfs"], authority=authority, client_id="page", secret_file=str(secret)
    )
    logins = ProviderLogins(settings, UserStore(MemoryStore()))

    def sent() -> tuple[Redirect, str]:
        address, redirect = logins.begin(site.page)
        return redirect, parse_qs(urlsplit(site.provider.enter(address, "8")).query)["code"][0]

    redirect, code = sent()
    assert logins.finish(redirect, code, 60.0).name == "oidc:bert"
    with pytest.raises(AccessDenied, match="invalid_grant"):
        logins.finish(redirect, code, 60.0)
    redirect, code = sent()
    with pytest.raises(AccessDenied, match="not for this login"):
        logins.finish(replace(redirect, nonce="of another login"), code, 60.0)


def sign_in(page: Page, person: str) -> None:
    """At the provider."""
    page.get_by_placeholder("Enter any login").fill(person)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
def test_a_person_logs_in_at_the_page_with_a_browser(site: Site) -> None:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with (
        sync_playwright() as playwright,
        closing(playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)) as browser,
    ):
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.set_default_timeout(PAGE_TIMEOUT_MS)
        expect.set_options(timeout=PAGE_TIMEOUT_MS)
        page.route("**/*googleapis*/**", lambda route: route.abort())  # a font of the provider's pages
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(site.page)
        at_provider = page.get_by_role("button", name="Log in at 127.0.0.1")
        at_provider.click()
        page.get_by_role("link", name="Cancel").click()
        expect(page.get_by_role("alert")).to_have_text(
            "the identity provider refuses the login: access_denied"
        )
        at_provider.click()
        sign_in(page, "7")
        page.get_by_role("button", name="Continue").click()
        expect(page.locator("#user")).to_have_text("oidc:ada")
        expect(page.get_by_role("rowheader")).to_have_text("scans")
        assert page.url.startswith(f"{site.page}#/"), "code and state are no longer in the address"
        page.reload()
        expect(page.locator("#user")).to_have_text("oidc:ada")
        page.get_by_role("button", name="Log out").click()
        expect(at_provider).to_be_visible()
        page.goto(f"{site.page}?state=of-another-site&code=x")
        expect(page.get_by_role("alert")).to_contain_text("log in again")
        assert not faults, faults


def test_a_key_of_the_provider_is_replaced(site: Site) -> None:
    """What was issued before counts no longer; servers learn of the new key when a token names it."""
    now_s, authority = 1000.0, str(site.provider.authority)
    fetch = partial(fetch_keys, discover(site.provider.issuer, authority), authority)
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


def test_the_provider_restarts_in_the_middle_of_logins_at_the_page(site: Site) -> None:
    away = 503, "the server cannot log in at the identity provider now; its log has the reason"
    with Visitor(site) as user:
        early, late = user.answer("7"), user.answer("8")  # of two tabs
        site.provider.process.kill()
        site.provider.process.wait(TIMEOUT_S)
        answer = user.send_fields("/api/from_provider", **early)
        assert (answer.status_code, answer.json()["error"]) == away
        # It is asked about itself once a second.
        wait_until(lambda: user.send_fields("/api/to_provider").status_code == away[0])
        assert "identity provider: https://127.0.0.1" in site.server.log()
        folder, port = site.provider.authority.parent, urlsplit(site.provider.issuer).port
        with certified_provider(folder, PEOPLE, port=port or 0) as provider:
            provider.change(redirects=[site.page])
            assert "log in again" in user.refused(**late), "it has issued no such code"
            answer = user.send_fields("/api/from_provider", **user.answer("8"))
            assert answer.status_code == 200, "its new key counts at once"
