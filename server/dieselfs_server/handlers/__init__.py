"""The handlers of the calls of `dieselfs.thrift`, one module for each group of calls.

A handler takes the service, the caller, the arguments (a Thrift struct) and the bulk bytes of the call, and returns a
`Reply`. A DieselfsError that it raises is sent to the caller as a refusal. If a handler is cancelled, a worker thread
that is storing a chunk still finishes.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from dieselfs_server.handlers import administration, datasets, jobs, maintenance, reading, writing
from dieselfs_server.service import Reply, Service
from dieselfs_server.users import Caller

Handler = Callable[[Service, Caller, Any, bytes | bytearray], Awaitable[Reply]]

HANDLERS: dict[str, Handler] = {
    "add_key": administration.add_key,
    "remove_key": administration.remove_key,
    "grant": administration.grant,
    "list_users": administration.list_users,
    "status": administration.status,
    "create_dataset": datasets.create_dataset,
    "get_dataset": datasets.get_dataset,
    "list_datasets": datasets.list_datasets,
    "drop_dataset": datasets.drop_dataset,
    "join_job": jobs.join_job,
    "leave_job": jobs.leave_job,
    "purge": maintenance.purge,
    "rebuild": maintenance.rebuild,
    "fsck": maintenance.fsck,
    "put_tag": maintenance.put_tag,
    "list_tags": maintenance.list_tags,
    "delete_tag": maintenance.delete_tag,
    "pin": maintenance.pin,
    "list_pins": maintenance.list_pins,
    "get_snapshot": reading.get_snapshot,
    "get_payload": reading.get_payload,
    "open_payload": reading.open_payload,
    "get_ranges": reading.get_ranges,
    "stat": reading.stat,
    "list_folder": reading.list_folder,
    "read_file": reading.read_file,
    "reserve_versions": writing.reserve_versions,
    "put_chunk": writing.put_chunk,
    "write_file": writing.write_file,
    "get_pending": writing.get_pending,
}
