"""Handlers that create, list and drop datasets."""

import logging
import secrets
from dataclasses import asdict
from typing import Any

import trio

from dieselfs.chunk.format import DATASET_ID_BYTES
from dieselfs.records import DatasetRecord
from dieselfs.rpc.messages import thrift
from dieselfs_server.service import Reply, Service
from dieselfs_server.users import Caller, Right

log = logging.getLogger(__name__)


async def create_dataset(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    await service.require_right(caller, arguments.name, Right.WRITE)
    dataset_id = secrets.token_bytes(DATASET_ID_BYTES)
    create = service.backends.metadata.create_dataset
    return Reply(_dataset_info(await trio.to_thread.run_sync(create, arguments.name, dataset_id)))


async def get_dataset(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    return Reply(_dataset_info(await service.dataset(caller, arguments.name, Right.READ)))


async def list_datasets(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    datasets = await trio.to_thread.run_sync(service.backends.metadata.datasets)
    return Reply([_dataset_info(d) for d in datasets if await service.right(caller, d.name) >= Right.READ])


async def drop_dataset(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset = await service.dataset(caller, arguments.name, Right.ADMIN)

    def drop() -> None:
        # Chunks first: if the record were removed first, a crash would leave chunks that no dataset refers to.
        service.backends.store.delete_dataset(dataset.dataset_id)
        service.backends.metadata.drop_dataset(dataset.dataset_id)
        service.backends.store.delete_dataset(dataset.dataset_id)  # chunks of puts that were in flight
        service.backends.snapshots.drop(dataset.dataset_id)
        service.backends.tags.drop(dataset.dataset_id)

    await trio.to_thread.run_sync(drop)
    log.info("dataset %s dropped by %s", dataset.name, caller.name)
    return Reply()


def _dataset_info(dataset: DatasetRecord) -> Any:
    return thrift.DatasetInfo(**asdict(dataset))
