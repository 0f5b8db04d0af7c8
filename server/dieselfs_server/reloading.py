"""What a server takes from its settings again on SIGHUP, without a restart. This module reads files, and etcd."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace

import trio

from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs_server.access.certificates import Certificates, certificate_files
from dieselfs_server.access.users import UserStore
from dieselfs_server.logs import set_level
from dieselfs_server.settings import ServerSettings
from dieselfs_server.store.attached import Sources

LIVE_BYTES_MAX = 64 * 1024
"""Of these settings, as a message to a worker."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """The settings that are taken again. Others that have changed need a restart."""

    attach_roots: Sequence[str] | None
    log_level: str
    tls_certificate: str | None
    tls_key: str | None

    @classmethod
    def of(cls, settings: ServerSettings) -> "LiveSettings":
        return cls(settings.attach_roots, settings.log_level, settings.tls_certificate, settings.tls_key)

    @classmethod
    def decode(cls, message: bytes) -> "LiveSettings":
        return cls(**json.loads(message))

    def encode(self) -> bytes:
        """As a message to a worker. Raises InvalidInput."""
        message = json.dumps(asdict(self)).encode()
        if len(message) > LIVE_BYTES_MAX:
            raise InvalidInput(f"attach_roots is too long: all roots have {LIVE_BYTES_MAX:,} bytes at most")
        return message


def load_again(load: Callable[[], ServerSettings], present: ServerSettings) -> ServerSettings | None:
    """`present` with what `load` finds of `LiveSettings`. None if that cannot be used: then one line of the log says
    why, and the old settings stay. Blocks.
    """
    try:
        found = load()
        live = LiveSettings.of(found)
        live.encode()
        certificate_files(live.tls_certificate, live.tls_key)
    except (DieselfsError, OSError) as error:
        log.error("SIGHUP: all settings stay as they were: %s", error)
        return None
    found = replace(found, is_new=present.is_new)
    names = {each.name for each in fields(found) if getattr(found, each.name) != getattr(present, each.name)}
    taken = names & {each.name for each in fields(live)}
    log.info("SIGHUP: settings were read again; changed: %s", ", ".join(sorted(taken)) or "nothing")
    if names - taken:
        log.warning("SIGHUP: changed, but need a restart: %s", ", ".join(sorted(names - taken)))
    return replace(present, **{name: getattr(found, name) for name in taken})


async def changes_of(
    settings: ServerSettings,
    signals: AsyncIterator[int],
    load: Callable[[ServerSettings], ServerSettings | None],
) -> AsyncIterator[LiveSettings]:
    """What `load` finds after each signal, unless it cannot be used."""
    async for _ in signals:
        found = await trio.to_thread.run_sync(load, settings, abandon_on_cancel=True)
        if found is not None:
            settings = found
            yield LiveSettings.of(settings)


@dataclass(frozen=True, slots=True)
class Live:
    """The parts of a running server, or of one of its workers, that take settings again."""

    certificates: Certificates
    sources: Sources
    users: UserStore

    async def follow(self, changes: AsyncIterator[LiveSettings]) -> None:
        """Take each of `changes`, until cancelled. An error is logged, and the next ones are taken."""
        async for settings in changes:
            try:
                await trio.to_thread.run_sync(self._take, settings, abandon_on_cancel=True)
            except DieselfsError as error:
                log.error("SIGHUP: not all is read again: %s", error)

    def _take(self, settings: LiveSettings) -> None:
        """Users, keys, rights, quotas and rates are read again too, and the identity. Blocks. Raises InvalidInput,
        Unavailable, Damaged.
        """
        set_level(settings.log_level)
        self.sources.roots = settings.attach_roots
        self.certificates.files = certificate_files(settings.tls_certificate, settings.tls_key)
        self.users.newest()
        self.certificates.refresh()
