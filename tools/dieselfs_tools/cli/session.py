"""The output and the server of one run of dlcmd. This module opens connections and starts
processes.
"""

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs.limits import VERB_PATIENCE_S
from dieselfs.settings.table import ON
from dieselfs_tools.cli.output import Output

if TYPE_CHECKING:  # imported when a verb needs a server: help and completion start without
    import dieselfs
    from dieselfs.rpc.client import ServerClient
    from dieselfs.settings import Settings


@dataclass
class Session:
    """The options of all verbs, and the open connections. Close it at the end."""

    server: str | None = None
    key_file: str | None = None
    remote: str | None = None
    """The site of all locations of the verb, "" for that of the settings; None until one is named."""
    is_debug: bool = False
    verb: str = ""
    where: str = ""
    """Of datasets, only the files for which this expression is true."""
    started_s: float = field(default_factory=time.monotonic)
    output: Output = field(default_factory=Output)
    _closing: ExitStack = field(default_factory=ExitStack)
    _client: "ServerClient | None" = None

    def settings(self) -> "Settings":
        """Options, then environment, then configuration file; of a remote, its own. Raises InvalidInput, NotFound."""
        from dieselfs.settings import Settings

        settings = replace(Settings.load(self.server, self.key_file), patience_s=VERB_PATIENCE_S)
        if not self.remote:
            return settings
        from dieselfs.settings.remotes import at_remote

        return at_remote(settings, self.remote)

    def settle(self, remote: str) -> None:
        """All of the verb is at this site. Raises InvalidInput for a second site, or one beside --server."""
        if self.remote not in (None, remote):
            raise InvalidInput("the locations are at different sites: between these, use dlcmd cp")
        if remote and (self.server or self.key_file):
            raise InvalidInput(
                f"{remote}: is a remote with its own server and key: leave out --server and --key-file"
            )
        self.remote = remote

    def at(self, remote: str) -> "Session":
        """A session at a site, with the same output; it is closed with this one."""
        if remote == (self.remote or ""):
            return self
        server, key_file = (None, None) if remote else (self.server, self.key_file)
        other = Session(server, key_file, remote, verb=self.verb, output=self.output)
        self._closing.push(lambda kind, error, trace: other.close(error))
        return other

    def server_options(self) -> dict[str, Any]:
        """The options `server` and `key_file` of a daemon that this verb starts. Raises InvalidInput for a remote with
        terms of TLS, which a daemon has from the settings alone.
        """
        if not self.remote:
            return {"server": self.server, "key_file": self.key_file}
        found = self.settings()
        if found.tls_ca or found.tls != ON or not found.key_file:
            raise InvalidInput(
                f"{self.remote}: a daemon needs a remote with a key file, and without tls and tls_ca"
            )
        return {"server": found.server, "key_file": found.key_file}

    @property
    def client(self) -> "ServerClient":
        if self._client is None:
            from dieselfs.rpc.client import ServerClient

            self._client = ServerClient(self.settings())
            self._closing.callback(self._client.close)
        return self._client

    def expect_server(self) -> None:
        """Start the embedded server, if it is the one of this session, while the command imports what it needs.

        Does not wait or raise: the first call does.
        """
        settings = self.settings()
        if settings.server is None:
            Thread(target=_start_embedded, args=(settings.home,), name="dieselfs-start", daemon=True).start()

    def dataset(self, name: str, generation: int = 0, job: str | None = None) -> "dieselfs.Dataset":
        """A dataset that exists; `generation` and `job` as for `dieselfs.connect`. Raises NotFound."""
        from dieselfs.dataset.dataset import connect_with

        dataset = connect_with(self.settings(), name, generation, job=job, where=self.where)
        # Closing discards what was put and not flushed: the verb failed before its flush.
        self._closing.push(dataset)
        return dataset

    def close(self, error: BaseException | None = None) -> None:
        """Close connections and datasets; `error` is the one that ended the verb."""
        kind = type(error) if error is not None else None
        self._closing.__exit__(kind, error, None)


def _start_embedded(home: Path) -> None:
    from dieselfs.process.embedded_server import connect_embedded

    with suppress(DieselfsError, OSError):
        connect_embedded(home).close()
