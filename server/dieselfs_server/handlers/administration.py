"""Handlers for users, their keys and rights, and the server's status."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import trio

from dieselfs.errors import InvalidInput
from dieselfs.rpc.auth import Key
from dieselfs.rpc.messages import thrift
from dieselfs_server.service import Reply, Service
from dieselfs_server.users import Caller, Right, with_grant, with_key, without_key


def server_version() -> str:
    try:
        return version("dieselfs")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


async def add_key(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    await service.require_admin(caller)
    key, now_s = Key.generate(arguments.user), int(service.clock())
    if arguments.expires_s and arguments.expires_s <= now_s:
        raise InvalidInput(f"the key would already be expired: {arguments.expires_s} is in the past")
    change = service.backends.users.change
    await trio.to_thread.run_sync(change, lambda users: with_key(users, key, now_s, arguments.expires_s))
    return Reply(key.text())


async def remove_key(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    await service.require_admin(caller)
    change = service.backends.users.change
    await trio.to_thread.run_sync(change, lambda users: without_key(users, arguments.user, arguments.key_id))
    return Reply()


async def grant(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    await service.require_admin(caller)
    right = Right.parse(arguments.right)
    change = service.backends.users.change
    await trio.to_thread.run_sync(
        change, lambda users: with_grant(users, arguments.user, arguments.dataset, right)
    )
    return Reply()


async def list_users(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    await service.require_admin(caller)
    users = await trio.to_thread.run_sync(service.backends.users.current)
    return Reply(
        [
            thrift.UserInfo(
                name=name,
                keys=[
                    thrift.KeyInfo(key_id=key_id, created_s=key.created_s, expires_s=key.expires_s)
                    for key_id, key in user.keys.items()
                ],
                grants={dataset: right.name.lower() for dataset, right in user.grants.items()},
            )
            for name, user in sorted(users.items())
        ]
    )


async def status(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    await service.require_admin(caller)
    store, metadata = service.backends.names
    return Reply(
        thrift.StatusInfo(
            version=server_version(),
            started_s=service.started_s,
            store=store,
            metadata=metadata,
            metrics=service.metrics.numbers(),
        )
    )
