"""The registry of servers in etcd: this server's entry there lives as long as the server does.

Blocking calls of etcd's client run in worker threads; each is bounded (`dieselfs/etcd.py`), so stopping is too.
"""

import logging
from collections.abc import Sequence

import trio

from dieselfs.errors import DieselfsError
from dieselfs.etcd import Etcd
from dieselfs.etcd_keys import encode_server, server_id, server_key
from dieselfs.limits import SERVER_LEASE_S
from dieselfs.rpc.address import TcpAddress

KEEP_ALIVES_PER_LEASE = 3
"""So one may fail, and the next one comes in time."""

log = logging.getLogger(__name__)


async def stay_registered(etcd: Etcd, addresses: Sequence[TcpAddress], lease_s: int = SERVER_LEASE_S) -> None:
    """Keep an entry with `addresses` in etcd until cancelled; then it is taken back.

    While etcd is away this waits, and registers again once it is there. If the process dies, the entry is gone
    after `lease_s`. Never raises but for the cancel.
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
                    log.warning("not registered: %s; trying again until it answers", error)
                is_away = True
            await trio.sleep(lease_s / KEEP_ALIVES_PER_LEASE)
    finally:
        if lease:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_unregister, etcd, lease)


def _register(etcd: Etcd, addresses: Sequence[TcpAddress], lease_s: int) -> int:
    lease = etcd.grant_lease(lease_s)
    etcd.put(server_key(server_id(addresses)), encode_server(addresses), lease)
    return lease


def _unregister(etcd: Etcd, lease: int) -> None:
    try:
        etcd.revoke(lease)
    except DieselfsError as error:
        log.warning("left registered until the lease ends: %s", error)
