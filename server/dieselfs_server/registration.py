"""The entry of a server in etcd, by which clients find it. This module calls etcd."""

import logging
from collections.abc import Sequence

import trio

from dieselfs import __version__
from dieselfs.errors import DieselfsError
from dieselfs.etcd.client import Etcd
from dieselfs.etcd.keys import encode_server, server_id, server_key
from dieselfs.limits import SERVER_LEASE_S
from dieselfs.net.address import TcpAddress

log = logging.getLogger(__name__)

KEEP_ALIVES_PER_LEASE = 3
"""So the lease survives one failure."""


async def stay_registered(etcd: Etcd, addresses: Sequence[TcpAddress], lease_s: int = SERVER_LEASE_S) -> None:
    """Keep an entry with `addresses` in etcd until cancelled; then remove it.

    Retries while etcd is away. If the process dies, the entry expires after `lease_s`. Raises only if cancelled.
    """
    lease, is_away = 0, False
    try:
        while True:
            try:
                if not lease or not await trio.to_thread.run_sync(etcd.keep_alive, lease):
                    lease = await trio.to_thread.run_sync(_register, etcd, addresses, lease_s)
                    log.info("registered at %s as %s", etcd.address, server_id(addresses))
                is_away = False
            except DieselfsError as error:
                if not is_away:
                    log.warning("not registered: %s; retrying until etcd answers", error)
                is_away = True
            await trio.sleep(lease_s / KEEP_ALIVES_PER_LEASE)
    finally:
        if lease:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_unregister, etcd, lease)


def _register(etcd: Etcd, addresses: Sequence[TcpAddress], lease_s: int) -> int:
    lease = etcd.grant_lease(lease_s)
    etcd.put(server_key(server_id(addresses)), encode_server(addresses, __version__), lease)
    return lease


def _unregister(etcd: Etcd, lease: int) -> None:
    try:
        etcd.revoke(lease)
    except DieselfsError as error:
        log.warning("could not unregister; the entry expires with its lease: %s", error)
