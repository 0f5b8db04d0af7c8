"""A call of a method: its caller, with the rights that it has, and its reply."""

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio

from dieselfs.errors import AccessDenied, InvalidInput, NotFound, Unavailable
from dieselfs.limits import METADATA_ANSWER_S, SMALL_REPLY_BYTES
from dieselfs.names import check_dataset_name
from dieselfs.records import DatasetRecord
from dieselfs.rpc.messages import encode_progress
from dieselfs.rpc.methods import ADMIN, METHODS, READ, SERVER_ADMIN, SOME_RIGHT, WRITE
from dieselfs.rpc.records import CopyProgress
from dieselfs_server.access.accounts import Caller, Right
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.processor_time import in_thread
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.store.interface import Buffer, OpenPayload

_RIGHTS = {READ: Right.READ, WRITE: Right.WRITE, ADMIN: Right.ADMIN}

Found = TypeVar("Found", DatasetRecord, bytes)
Worked = TypeVar("Worked")


@dataclass(frozen=True, slots=True)
class Reply:
    """A value, and the bulk bytes that follow it, or the files that are passed with it; they are then closed."""

    value: Any
    bulk: Sequence[Buffer] = ()
    files: Sequence[OpenPayload] = ()


@dataclass(frozen=True, eq=False)
class Access:
    """Where the rights of callers on datasets are looked up."""

    users: UserStore
    catalog: Catalog


async def _hold_nothing(size_bytes: int) -> None:
    """For calls without a budget, or a rate."""


@dataclass(eq=False)
class Call:
    """A call of a method. `arguments` is a Thrift struct; `bulk` has the bytes that followed it. `hold` takes bytes of
    the budget of replies, until the reply has been sent; `pace` waits for the rate of the caller. A handler may set
    `progress`. `audited`: what it adds to the audit log; with it, the log has also methods that it does not have
    otherwise. `dataset_found`: the ID of the dataset that the arguments name, empty before its look-up.
    """

    access: Access
    caller: Caller
    method: str
    arguments: Any
    bulk: bytes | bytearray = b""
    hold: Callable[[int], Awaitable[None]] = _hold_nothing
    pace: Callable[[int], Awaitable[None]] = _hold_nothing
    audited: dict[str, str] = field(default_factory=dict)
    progress: Callable[[], CopyProgress] | None = None
    dataset_found: bytes = b""
    is_allowed: bool = False

    def show_progress(self, proceed: Proceed) -> None:
        """Tell the caller about a job, if the call can ask for it, and does."""
        if getattr(self.arguments, "with_progress", False):
            self.progress = lambda: proceed.progress

    def sign_of_life(self) -> bytes:
        """A message for the caller while the server works: its progress, if the handler has any, or empty."""
        return b"" if self.progress is None else encode_progress(self.progress())

    async def hold_reply(self, size_bytes: int) -> None:
        """Call it before the memory for a reply is taken. Raises Unavailable if the replies of others take it for too
        long.
        """
        if size_bytes > SMALL_REPLY_BYTES:
            await self.pace(size_bytes)
            await self.hold(size_bytes)

    async def hold_first(self, size_bytes: int) -> None:
        """Hold reply bytes that are already allocated; does not throttle: the handler calls `pace` later."""
        if size_bytes > SMALL_REPLY_BYTES:
            await self.hold(size_bytes)

    @property
    def _needs(self) -> str:
        needs = METHODS[self.method].needs
        return needs if isinstance(needs, str) else needs(self.arguments)

    async def answered_by(self, handler: Callable[["Call"], Awaitable[Any]]) -> Any:
        """What the handler returns. Raises AccessDenied to callers who must administer the server, or have some right,
        and do not.

        A handler that does not look at the right of the caller on its dataset, by `dataset`, `dataset_id` or
        `require_right`, has a bug, and gives no reply.
        """
        needs = self._needs
        if needs == SERVER_ADMIN:
            await self.require_admin()
        elif needs == SOME_RIGHT:
            await self._require_some_right()
        value = await handler(self)
        if needs in _RIGHTS and not self.is_allowed:
            raise RuntimeError(f"the handler of {self.method} has not checked the right of its caller")
        return value

    async def right(self, dataset: str) -> Right:
        return (await self.rights((dataset,)))[dataset]

    async def rights(self, datasets: Iterable[str]) -> dict[str, Right]:
        """The rights of the caller on datasets, which may be thousands, by their names."""
        if self.caller.is_trusted:
            return self._rights(datasets)
        return await trio.to_thread.run_sync(self._rights, datasets)

    def _rights(self, datasets: Iterable[str]) -> dict[str, Right]:
        """As `rights`; blocks."""
        if self.caller.is_trusted:
            return dict.fromkeys(datasets, Right.ADMIN)
        accounts, now_s = self.access.users.current(), time.time()
        return {name: self.caller.right_on(name, accounts, now_s) for name in datasets}

    async def require_right(self, right: Right | None = None, name: str | None = None) -> None:
        """Raise AccessDenied, or NotFound if the caller may not see the dataset. `right`: by default the one that the
        call needs; `name`: by default of the dataset that the arguments name.
        """
        right, name = self._defaults(right, name)
        check_dataset_name(name)
        self._check_right(right, name, await self.right(name))

    def _check_right(self, right: Right, name: str, has: Right) -> None:
        if has < Right.READ:
            self.caller.key(self.access.users.latest, time.time())  # else it has expired since, and says this
            raise _no_dataset(name)
        if has < right:
            user = self.caller.name
            if self.caller.has_token(self.access.users.latest):
                raise AccessDenied(
                    f"this token of user {user} may only {has.name.lower()} dataset {name}; "
                    f"with your key, make another: dlcmd user token --dataset {name} --write"
                )
            raise AccessDenied(
                f"user {user} may only {has.name.lower()} dataset {name}; "
                f"an administrator can change that: dlcmd user grant {user} {name} {right.name.lower()}"
            )
        self.is_allowed = True

    def _defaults(self, right: Right | None, name: str | None) -> tuple[Right, str]:
        if name is None:
            arguments = self.arguments
            name = str(arguments.dataset if hasattr(arguments, "dataset") else arguments.name)
        return _RIGHTS[self._needs] if right is None else right, name

    async def require_admin(self) -> None:
        if await self.right("*") < Right.ADMIN:
            if self.caller.has_token(self.access.users.latest):
                raise AccessDenied(
                    f"a token of user {self.caller.name} administers nothing: use the user's key"
                )
            raise AccessDenied(f"user {self.caller.name} is not an administrator of this server")

    async def _require_some_right(self) -> None:
        if self.caller.is_trusted:
            return
        accounts = await trio.to_thread.run_sync(self.access.users.current)
        if not self.caller.has_right(accounts, time.time()):
            user = self.caller.name
            raise AccessDenied(
                f"user {user} has no right on any dataset; "
                f"an administrator can change that: dlcmd user grant {user} DATASET read"
            )

    async def dataset(self, right: Right | None = None, name: str | None = None) -> DatasetRecord:
        """The dataset, if the caller has this right on it; defaults: see `require_right`.

        Without the right to read, NotFound is raised whether or not the dataset exists.
        """
        return await self._looked_up(self.access.catalog.dataset, *self._defaults(right, name), _itself)

    async def on_dataset(self, work: Callable[[DatasetRecord], Worked]) -> Worked:
        """The result of `work` on the dataset that the arguments name; raises as `dataset`. Both block, and share a
        worker thread: to begin in one costs more than a look-up.
        """
        return await self._looked_up(self.access.catalog.dataset, *self._defaults(None, None), work)

    async def dataset_id(self) -> bytes:
        """The ID of the dataset that the arguments name, also while its metadata is away or lost.

        Raises NotFound, AccessDenied like `dataset`.
        """
        right, name = self._defaults(None, None)
        catalog = self.access.catalog
        with trio.move_on_after(METADATA_ANSWER_S if catalog.known_id(name) else math.inf):
            return await self._looked_up(catalog.dataset_id, right, name, _itself, abandon_on_cancel=True)
        catalog.note_silence()
        return await self._looked_up(catalog.known_id, right, name, _itself)

    async def owner_id(self) -> bytes:
        """As `dataset_id`, but the one to which the name belongs in the object store, whatever the metadata says."""
        return await self._looked_up(self.access.catalog.owner_id, *self._defaults(None, None), _itself)

    async def _looked_up(
        self,
        look_up: Callable[[str], Found | None],
        right: Right,
        name: str,
        work: Callable[[Found], Worked],
        abandon_on_cancel: bool = False,
    ) -> Worked:
        """Look up the dataset and the right, and work, in one worker thread."""
        check_dataset_name(name)

        def looked_up() -> Worked:
            found: Found | None = None
            failure: Unavailable | None = None
            try:
                found = look_up(name)
            except Unavailable as error:
                failure = error
            self._check_right(right, name, self._rights((name,))[name])  # before any reply about the dataset
            if failure is not None:
                raise failure
            if found is None:
                raise _no_dataset(name)
            if name == getattr(self.arguments, "dataset", ""):
                self.dataset_found = found.dataset_id if isinstance(found, DatasetRecord) else found
            return work(found)

        if work is _itself:  # to ask for the time of a thread costs as much as it finds
            return await trio.to_thread.run_sync(looked_up, abandon_on_cancel=abandon_on_cancel)
        return await in_thread(looked_up, abandon_on_cancel=abandon_on_cancel)

    async def bulk_length(self) -> int:
        """The number of bulk bytes that follow the call. Raises if the caller has no right to send them."""
        limit_bytes = METHODS[self.method].sizes.bulk_bytes
        if not limit_bytes:
            return 0
        length: int = self.arguments.bulk_length
        if not 0 < length <= limit_bytes:
            raise InvalidInput(f"a chunk of {length} bytes, limit {limit_bytes}")
        await self.dataset()
        return length


def _itself(found: Found) -> Found:
    return found


def _no_dataset(name: str) -> NotFound:
    """The error for a dataset that does not exist, or that the caller may not see."""
    return NotFound(f"there is no dataset {name!r}, or you have no right to see it; 'dlcmd ls' lists yours")
