"""The npm package oidc-provider, a certified provider of OpenID Connect, and a person at it. This module runs Node.js.

`make` installs it. It has one kind of account: any password is right.
"""

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from tests.support.certificates import make_certificate

PACKAGE = Path(sys.prefix) / "oidc-provider" / "node_modules" / "oidc-provider"
SCRIPT = Path(__file__).with_suffix(".mjs")
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
CLIENTS: tuple[dict[str, Any], ...] = (
    {"client_id": "dieselfs", "token_endpoint_auth_method": "none"}
    | {"grant_types": ["authorization_code", "refresh_token", DEVICE]},
    {"client_id": "page", "client_secret": "of-the-page", "grant_types": ["authorization_code"]},
    {"client_id": "train", "client_secret": "a-secret", "grant_types": ["client_credentials"]}
    | {"redirect_uris": [], "response_types": []},
    {"client_id": "another", "token_endpoint_auth_method": "none", "grant_types": [DEVICE]}
    | {"redirect_uris": [], "response_types": []},
)
NODE_MIN = 20
ANSWER_S = 60.0
PAGES_MAX = 12

_FORM = re.compile(r'<form[^>]*action="([^"]+)"[^>]*>(.*?)</form>', re.DOTALL)
_INPUT = re.compile(r"<input\b[^>]*>", re.DOTALL)
_ATTRIBUTE = re.compile(r'(name|value)="([^"]*)"')


@dataclass(frozen=True)
class CertifiedProvider:
    """With the public clients `dieselfs` and `another`, the service `train`, and `page`, which has a secret."""

    issuer: str
    authority: Path
    process: "subprocess.Popen[str]"

    def change(self, **changes: Any) -> None:
        """Redirects that are allowed (`redirects`), or another key that signs (`rotate`)."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(changes), file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "changed\n"

    def enter(self, url: str, person: str) -> str:
        """Open a page of the provider as a person with an empty browser, log in, and agree to all that it asks. Returns
        the last page, or the address elsewhere to which it leads.
        """
        with httpx.Client(verify=False, timeout=ANSWER_S) as browser:
            answer = browser.get(url)
            for _ in range(PAGES_MAX):
                if answer.is_redirect:
                    url = urljoin(str(answer.url), answer.headers["location"])
                    if not url.startswith(self.issuer):
                        return url
                    answer = browser.get(url)
                    continue
                form = _FORM.search(answer.text)
                if form is None or "incorrect" in answer.text:
                    return answer.text
                fields = [dict(_ATTRIBUTE.findall(each)) for each in _INPUT.findall(form[2])]
                values = {each["name"]: html.unescape(each.get("value", "")) for each in fields}
                values |= {"login": person, "password": "any"} if "login" in values else {}
                answer = browser.post(urljoin(str(answer.url), html.unescape(form[1])), data=values)
        raise AssertionError(f"{url}: no end after {PAGES_MAX} pages")


def _node_version() -> int:
    """Its first number; 0 without Node.js."""
    if shutil.which("node") is None:
        return 0
    found = subprocess.run(
        ["node", "--version"], capture_output=True, text=True, timeout=ANSWER_S, check=True
    )
    return int(found.stdout.lstrip("v").partition(".")[0])


@contextmanager
def certified_provider(
    folder: Path, people: Mapping[str, Mapping[str, Any]], host: str = "127.0.0.1", port: int = 0
) -> Iterator[CertifiedProvider]:
    """A provider with `people`, the claims of each, until the end of the block. `port`: 0 for a free one; one that was
    there before has forgotten all.
    """
    if not PACKAGE.exists():
        pytest.skip(f"needs the npm package oidc-provider in {PACKAGE}: make")
    if _node_version() < NODE_MIN:
        pytest.skip(f"needs Node.js {NODE_MIN} or later")
    certificate, key = make_certificate(folder, "certified provider")
    given = {"package": str(PACKAGE), "certificate": str(certificate), "key": str(key)}
    given |= {"host": host, "port": str(port)}
    with (
        open(folder / "provider.log", "wb") as log,
        subprocess.Popen(
            ["node", str(SCRIPT), json.dumps(given | {"clients": CLIENTS, "people": people})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            issuer = process.stdout.readline().strip()
            assert issuer, (folder / "provider.log").read_text()
            yield CertifiedProvider(issuer, certificate, process)
        finally:
            process.kill()
