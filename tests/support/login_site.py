"""A server whose users an identity provider names. This module runs processes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from dieselfs.settings.table import login_file
from tests.support.certified_provider import CertifiedProvider
from tests.support.dlcmd import Dlcmd
from tests.support.identity_provider import IdentityProvider
from tests.support.server import RunningServer, running_server

AnyProvider = TypeVar("AnyProvider", IdentityProvider, CertifiedProvider)


@dataclass(frozen=True)
class Site(Generic[AnyProvider]):
    """The server has the dataset `scans` with the file `f`, which the group `/ml` of the provider may read."""

    provider: AnyProvider
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

    def admin(self, folder: Path) -> Dlcmd:
        return Dlcmd(folder / "home", folder, {"DIESELFS_SERVER": self.server.unix})

    def key_file(self, dlcmd: Dlcmd) -> Path:
        return login_file(self.server.tcp, {"HOME": str(dlcmd.folder)})


@contextmanager
def login_site(folder: Path, provider: AnyProvider, options: Sequence[str]) -> Iterator[Site[AnyProvider]]:
    """The server ends with the block. The local user `ada` is another one than that of the provider."""
    words = ["--oidc-issuer", provider.issuer, "--oidc-ca", str(provider.authority), *options]
    with running_server(folder / "server", words) as server:
        site = Site(provider, server, server.user("ada").read_text().split()[-1])
        (folder / "f").write_text("content")
        admin = site.admin(folder)
        admin("put", "f", "dl://scans/")
        admin("group", "add", "vision")
        admin("user", "grant", "group:vision", "scans", "read")
        yield site
