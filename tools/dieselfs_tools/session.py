"""What the verbs of one run of dlcmd share: how to speak, and the server. This module opens connections."""

from contextlib import ExitStack
from dataclasses import dataclass, field

import dieselfs
from dieselfs.config import Settings
from dieselfs.dataset import Dataset
from dieselfs.rpc.client import ServerClient
from dieselfs_tools.output import Output


@dataclass
class Session:
    """The options that every verb has; they may stand before and after the verb. Close it in the end."""

    server: str | None = None
    key_file: str | None = None
    is_debug: bool = False
    output: Output = field(default_factory=Output)
    _closing: ExitStack = field(default_factory=ExitStack)
    _client: ServerClient | None = None

    def settings(self) -> Settings:
        """Options, then environment, then configuration file. Raises InvalidInput."""
        return Settings.load(self.server, self.key_file)

    @property
    def client(self) -> ServerClient:
        if self._client is None:
            self._client = ServerClient(self.settings())
            self._closing.callback(self._client.close)
        return self._client

    def dataset(self, name: str, generation: int = 0, job: str | None = None) -> Dataset:
        """A dataset that exists; `generation` and `job` as for `dieselfs.connect`. Raises NotFound."""
        dataset = dieselfs.connect(
            name, server=self.server, key_file=self.key_file, generation=generation, job=job
        )
        # Closed with what was put and not flushed thrown away: a verb that has not come to its flush has failed.
        self._closing.push(dataset)
        return dataset

    def close(self, error: BaseException | None = None) -> None:
        """Let go of everything; `error` is what ended the verb."""
        kind = type(error) if error is not None else None
        self._closing.__exit__(kind, error, None)
