"""The service of a server in this process, without sockets: calls go to the handlers."""

from pathlib import Path
from typing import Any

import trio

from dieselfs.rpc.messages import thrift
from dieselfs_server.access.accounts import Caller
from dieselfs_server.access.users import UserStore
from dieselfs_server.call import Call
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.service import Service
from dieselfs_server.store.bundled import BundledStore
from dieselfs_server.store.interface import ObjectStore
from tests.support.identity import IDENTITY

TRUSTED = Caller("root", "", True)


def own_service(folder: Path, store: ObjectStore, metadata: MetadataStore) -> Service:
    return Service(
        BundledStore(store),
        metadata,
        UserStore(store),
        IDENTITY,
        SnapshotCache(folder / "snapshots", metadata, IDENTITY),
        TagStore(store, IDENTITY),
        folder / "scratch",
        names=("memory:", "memory:"),
    )


async def called(service: Service, method: str, **arguments: object) -> Any:
    """What the handler of a method returns to a trusted caller."""
    struct = getattr(thrift, f"{method}_args")(**arguments)
    return await service.handlers[method](Call(service.access, TRUSTED, method, struct))


def parts_of(service: Service, method: str) -> Any:
    """The group of handlers of a method, with its parts."""
    handler: Any = service.handlers[method]
    return handler.__self__


def call(service: Service, method: str, **arguments: object) -> Any:
    async def run() -> Any:
        return await called(service, method, **arguments)

    return trio.run(run)
