"""dlcmd login: users of an identity provider, their keys, and how these are renewed and taken away."""

import json
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dieselfs
from dieselfs.errors import EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_UNAVAILABLE, EXIT_USAGE, AccessDenied
from dieselfs.net.auth import read_key_file
from dieselfs.net.private_file import write_private_file
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.login import check_provider, kept_beside, read_login
from tests.support.dlcmd import Dlcmd, wait_until
from tests.support.forks import forks
from tests.support.identity_provider import IdentityProvider, identity_provider
from tests.support.login_site import Site as AnySite
from tests.support.login_site import login_site

ADA = {"sub": "7", "preferred_username": "ada", "groups": ["/ml", "/unknown"]}
Site = AnySite[IdentityProvider]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    groups = ["--oidc-groups", "/ml=vision,/admins=shared"]
    with identity_provider(folder) as provider, login_site(folder, provider, groups) as site:
        yield site


def refused(dlcmd: Dlcmd, *words: str, exit_code: int = EXIT_REFUSED) -> str:
    """The last line of a login that fails after the code was shown."""
    ran = dlcmd.forked(["login", *words])
    assert ran.exit_code == exit_code, ran
    return ran.stderr.splitlines()[-1]


def ended(key_file: Path, is_whole: bool = True) -> None:
    """Let the login be over here, or with half of its life gone."""
    login = read_login(key_file)
    assert login is not None
    made_s = time.time() - 3600
    over = replace(login, made_s=made_s, expires_s=time.time() + (-1 if is_whole else 60))
    kept = json.loads(kept_beside(key_file).read_text())
    kept |= {"made_s": over.made_s, "expires_s": over.expires_s}
    write_private_file(kept_beside(key_file), json.dumps(kept).encode())


def test_a_person_logs_in_reads_makes_a_token_and_logs_out(site: Site, tmp_path: Path) -> None:
    user, provider = site.dlcmd(tmp_path / "ada"), site.provider
    provider.person, provider.pending = ADA, 1
    assert "the server must be known" in user("login", exit_code=EXIT_USAGE).stderr
    ran = user("login", "--pin", site.pin, "--json")
    assert f"open {provider.issuer}/enter and enter the code " in ran.stderr
    key_file = site.key_file(user)
    assert ran.summary["user"] == "oidc:ada" and ran.summary["key_file"] == str(key_file)
    for path in (key_file, kept_beside(key_file)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert user("cat", "dl://scans/f").text == "content"
    (listed,) = user("user", "ls", "--json").objects
    assert (listed["user"], listed["provider_groups"]) == ("oidc:ada", ["vision"])
    job = tmp_path / "job.key"
    user("user", "token", "--dataset", "scans", "--for", "20d", "--out", job)
    (listed,) = user("user", "ls", "--json").objects
    until_s = max(key["expires_s"] for key in listed["keys"])
    assert 0 < until_s - time.time() <= 7 * 86_400
    for words in (("user", "rotate"), ("user", "add", "oidc:bert")):
        assert "dlcmd login" in user(*words, exit_code=EXIT_USAGE).stderr
    user("logout")
    assert not key_file.exists() and not kept_beside(key_file).exists()
    user("logout", exit_code=EXIT_NOT_FOUND)
    assert user("cat", "dl://scans/f", "--key-file", job).text == "content"
    administrator = site.admin(user.folder)
    administrator("user", "bar", "oidc:ada")
    user("ls", "--key-file", job, exit_code=EXIT_REFUSED)
    assert "oidc:ada is barred" in refused(user, "--pin", site.pin)
    administrator("user", "bar", "oidc:ada", "--lift")
    provider.person = {**ADA, "sub": "8"}
    assert "another person" in refused(user, "--pin", site.pin)
    provider.person = None
    assert "access_denied" in refused(user, "--pin", site.pin)


def test_programs_renew_a_login_and_stop_when_the_provider_does(site: Site, tmp_path: Path) -> None:
    user, provider = site.dlcmd(tmp_path / "bert"), site.provider
    provider.person = {**ADA, "sub": "9", "preferred_username": "bert"}
    user("login", "--pin", site.pin)
    key_file = site.key_file(user)
    first = read_key_file(key_file)
    ended(key_file, is_whole=False)
    user("ls")  # ends once the thread that renews has ended
    second = read_key_file(key_file)
    assert second.key_id != first.key_id and second.pins == first.pins
    settings = site.server.settings(key_file)
    with closing(ServerClient(settings)) as client:  # as of a mount
        assert [one.name for one in client.datasets()] == ["scans"]
        ended(key_file)
        with closing(ServerClient(settings)) as other:
            assert other.users()[0].name == "oidc:bert"
        client.remove_key("oidc:bert", second.key_id)
        assert client.users()[0].name == "oidc:bert", "it takes the key that the other one has got"
    ended(key_file)
    provider.is_away = True
    assert "your login has ended" in user("ls", exit_code=EXIT_REFUSED).stderr
    user("login", exit_code=EXIT_UNAVAILABLE)
    provider.is_away = False
    provider.refreshes.clear()
    with closing(ServerClient(settings)) as client, pytest.raises(AccessDenied, match="dlcmd login"):
        client.datasets()


def test_readers_of_the_library_renew_a_login_that_ends_in_the_middle_of_an_epoch(
    site: Site, tmp_path: Path
) -> None:
    """Two workers of a loader at once, too; the refresh token counts once."""
    user, provider = site.dlcmd(tmp_path / "eva"), site.provider
    provider.person = {**ADA, "sub": "11", "preferred_username": "eva"}
    user("login", "--pin", site.pin)
    key_file, admin = site.key_file(user), site.admin(user.folder)
    for name in ("g", "h", "i"):  # a chunk each
        (user.folder / name).write_text("content")
        admin("put", name, "dl://scans/epoch/")
    key, end_s = read_key_file(key_file), time.time() + 1
    kept = json.loads(kept_beside(key_file).read_text()) | {"made_s": end_s, "expires_s": end_s}
    write_private_file(kept_beside(key_file), json.dumps(kept).encode())
    options: dict[str, Any] = {"server": site.server.tcp, "key_file": str(key_file), "home": user.home}
    with dieselfs.connect("scans", **options) as data:
        first, *others = data.shuffle(seed=1, epoch=0)
        assert data.get(first) == b"content"
        with closing(ServerClient(site.server.settings())) as client:
            client.remove_key("oidc:eva", key.key_id)  # it has expired at the server
        wait_until(lambda: time.time() > end_s)
        workers = [forks.Process(target=data.get, args=(path,)) for path in others]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0] * len(others)
        assert [data.get(path) for path in others] == [b"content"] * len(others)
    assert read_key_file(key_file).key_id != key.key_id


def test_a_service_logs_in_with_its_secret(site: Site, tmp_path: Path) -> None:
    user, secret = site.dlcmd(tmp_path / "train"), tmp_path / "secret"
    service = ("login", "--service", "--client-id", "train", "--pin", site.pin)
    user(*service, exit_code=EXIT_USAGE)
    write_private_file(secret, b"wrong\n")
    user(*service, "--secret-file", secret, exit_code=EXIT_REFUSED)
    write_private_file(secret, b"a-secret\n")
    assert user(*service, "--secret-file", secret, "--json").summary["user"] == "oidc:service-account-train"
    ended(site.key_file(user))
    assert "no right on any dataset" in user("ls").text


def test_doctor_looks_at_the_provider(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(dlcmd: Dlcmd) -> list[tuple[str, str]]:
        checks = dlcmd.forked(["doctor", "--json"]).objects
        return [(each["state"], each["text"]) for each in checks if each["name"] == "provider"]

    user, provider = site.dlcmd(tmp_path / "dora"), site.provider
    user = replace(user, variables={**user.variables, "DIESELFS_SERVER": site.server.unix})
    answers = ("ok", f"{provider.issuer} answers, with 1 key")
    assert found(user) == [answers, answers], "from the server, and from here"
    provider.is_away = True
    away, _ = found(user)
    provider.is_away = False
    assert away[0] == "failure" and "503" in away[1]
    monkeypatch.setattr("dieselfs.oidc.provider.clock_ahead_s", lambda *_: 90.0)
    late = check_provider(provider.issuer, str(provider.authority))
    assert late.state == "failure" and "its clock is 1 min 30 s ahead" in late.text


def test_a_token_goes_only_to_a_known_server_over_tls(site: Site, tmp_path: Path) -> None:
    user, provider = site.dlcmd(tmp_path / "carl"), site.provider
    provider.person, before = {**ADA, "sub": "10", "preferred_username": "carl"}, len(provider.asked)
    plain = replace(user, variables={**user.variables, "DIESELFS_TLS": "off"})
    assert "needs TLS" in plain("login", "--pin", site.pin, exit_code=EXIT_USAGE).stderr
    for words in (("--pin", "short"), ("--server", site.server.unix), ("--server", "embedded")):
        user("login", *words, exit_code=EXIT_USAGE)
    http = ("--issuer", "http://127.0.0.1:1", "--pin", site.pin)
    assert "https://" in user("login", *http, exit_code=EXIT_USAGE).stderr
    assert len(provider.asked) == before
    other = "A" * 43 + "="
    assert "not the real one" in refused(user, "--pin", other, exit_code=EXIT_UNAVAILABLE)
    assert not site.key_file(user).exists()
