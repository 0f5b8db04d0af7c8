"""What a dataset contains, for the page: folders, and the bytes of files, read by calls as a client makes them.

Nothing of it can run. A browser gets a few kinds of pictures, sound and video by their own types. All else is plain
text, or is saved. No answer is sniffed, and each one is a document without an origin, scripts or requests (`CONFINED`).
"""

import re
import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from mmap import mmap
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import trio
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs.limits import KIB, MIB
from dieselfs.names import CONTROL_FOLDER, printable, split_path
from dieselfs.records import Extent, FileRecord, Op
from dieselfs.rpc.records import RemoteEntry
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.access.accounts import Caller
from dieselfs_server.call import Reply
from dieselfs_server.web.shapes import changes_between, shape_of

Ask = Callable[..., AbstractAsyncContextManager[Reply]]
"""`Dispatcher.reply_here`."""

ENTRIES_SHOWN = 60
"""Of a folder at a time, so a page has no more pictures."""
FILE_BYTES_MAX = 32 * MIB
"""In one answer. A larger file is sent to a browser in the ranges that it asks for."""
TEXT_BYTES_MAX = 64 * KIB
SNAPSHOTS_KEPT = 4
"""Mapped, so they take little memory."""
STATE_CHARACTERS_MAX = 200

_SUFFIXES = {
    "image/jpeg": (".jpg", ".jpeg"),
    "image/png": (".png",),
    "image/gif": (".gif",),
    "image/webp": (".webp",),
    "image/avif": (".avif",),
    "image/bmp": (".bmp",),
    "audio/wav": (".wav",),
    "audio/mpeg": (".mp3",),
    "audio/flac": (".flac",),
    "audio/mp4": (".m4a",),
    "audio/ogg": (".ogg", ".oga", ".opus"),
    "video/mp4": (".mp4", ".m4v"),
    "video/webm": (".webm",),
}
MEDIA = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes}
"""The types that are shown, by the suffix of a name. SVG and HTML can have scripts: they are text."""

_HIDDEN = CONTROL_FOLDER.encode()
"""In the root of a dataset; as in other listings."""

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")

CONFINED = "default-src 'none'; sandbox"
"""A second policy, besides that of the page; a browser keeps to both."""


def media_type(name: str) -> str:
    """Empty for a file that is shown as text."""
    return MEDIA.get(PurePosixPath(name).suffix.lower(), "")


class Contents:
    """For the trio thread."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._snapshots: OrderedDict[tuple[str, str], Snapshot] = OrderedDict()
        self._threads = trio.CapacityLimiter(1)

    async def shape(self, caller: Caller, address: str, dataset: str, path: bytes) -> dict[str, Any]:
        """`shape_of` a folder of the newest generation. Raises NotFound, InvalidInput."""
        snapshot = await self._snapshot(caller, address, dataset, "")
        return await self._computed(shape_of, snapshot, path)

    async def changes(self, caller: Caller, address: str, dataset: str, old: str, new: str) -> dict[str, Any]:
        """`changes_between` two states, each the name of a tag or the number of a generation that is kept; empty: the
        newest. Raises NotFound.
        """
        snapshots = [await self._snapshot(caller, address, dataset, state) for state in (old, new)]
        return await self._computed(changes_between, *snapshots)

    async def states(self, caller: Caller, address: str, dataset: str) -> list[str]:
        """The tags and generations that can be compared."""
        async with self._ask(caller, address, "list_tags", dataset=dataset, with_kept=True) as listed:
            return [tag.name or f"#{tag.generation}" for tag in listed.value]

    async def _computed(self, work: Callable[..., dict[str, Any]], *values: object) -> dict[str, Any]:
        return await trio.to_thread.run_sync(work, *values, limiter=self._threads)

    async def _snapshot(self, caller: Caller, address: str, dataset: str, state: str) -> Snapshot:
        """Of a tag, or of a generation (`#7`). As a client, it asks each time, and takes the bytes once."""
        number = state.removeprefix("#") if state.startswith("#") else "0" if not state else ""
        if number and not (number.isascii() and number.isdigit() and len(number) < 19):
            raise InvalidInput(f"{state[:STATE_CHARACTERS_MAX]!r} is no generation")
        known = self._snapshots.get((dataset, state))
        named = {
            "dataset": dataset,
            "generation": int(number or 0),
            "tag": "" if number else state[:STATE_CHARACTERS_MAX],
            "known_digest": known.digest if known else b"",
            "bases": b"",
        }
        if await self._is_encrypted(caller, address, dataset):
            raise InvalidInput(f"dl://{dataset} is encrypted, and the server has no key")
        async with self._ask(caller, address, "get_snapshot", **named) as reply:
            if known is None or reply.bulk:
                data = memoryview(reply.bulk[0]).obj
                if not isinstance(data, bytes | mmap):
                    raise InvalidInput(f"dl://{dataset}: the snapshot is not in a file")
                known = self._snapshots[dataset, state] = Snapshot(data, f"dl://{dataset}")
        self._snapshots.move_to_end((dataset, state))
        while len(self._snapshots) > SNAPSHOTS_KEPT:
            self._snapshots.popitem(last=False)
        return known

    async def _is_encrypted(self, caller: Caller, address: str, dataset: str) -> bool:
        async with self._ask(caller, address, "get_keys", dataset=dataset) as keys:
            return bool(keys.value)

    async def folder(
        self, caller: Caller, address: str, dataset: str, path: bytes, after: bytes
    ) -> dict[str, Any]:
        """Up to ENTRIES_SHOWN entries of a folder with names after `after`. Raises NotFound, InvalidInput."""
        if await self._is_encrypted(caller, address, dataset):
            return {"is_encrypted": True, "entries": [], "next": None}
        named = {"dataset": dataset, "path": path, "after": after, "limit": ENTRIES_SHOWN + 1}
        async with self._ask(caller, address, "list_folder", **named) as listed:
            found: list[RemoteEntry] = [*listed.value]
        shown = found[:ENTRIES_SHOWN]
        return {
            "is_encrypted": False,
            "entries": [_entry_view(path, entry) for entry in shown if path or entry.name != _HIDDEN],
            "next": quote(shown[-1].name, safe="") if len(found) > len(shown) else None,
        }

    async def file(
        self,
        caller: Caller,
        address: str,
        dataset: str,
        record: FileRecord,
        asked: Mapping[str, str],
        first: int,
    ) -> Response:
        """A file, the range that the headers `asked` name, or as text its `first` bytes (0: all). Raises InvalidInput
        for one that is not shown.
        """
        name, size = split_path(record.path)[1], record.size
        location = f"dl://{dataset}/{printable(record.path)}"
        if record.op != Op.FILE or first > TEXT_BYTES_MAX:
            raise InvalidInput(f"{location}: not a file, or more than {TEXT_BYTES_MAX} bytes of text")
        kind = "" if first else media_type(printable(name))
        tag = f'"{record.version:x}-{size:x}"'  # another content has another version
        part = (
            None if first or asked.get("if-range", tag) != tag else asked_range(asked.get("range", ""), size)
        )
        begin, end = part or (0, min(first, size) if first else size)
        if part and begin == end:
            return JSONResponse(
                {"error": f"{location} has {size} bytes"}, 416, {"content-range": f"bytes */{size}"}
            )
        if part:
            end = min(end, begin + FILE_BYTES_MAX)
        elif end > FILE_BYTES_MAX:
            raise InvalidInput(f"{location}: too large for the page; use dlcmd get {location}")

        def ask(extent: Extent) -> AbstractAsyncContextManager[Reply]:
            skipped = max(begin - extent.place, 0)
            length = min(extent.length, end - extent.place) - skipped
            packed = struct.pack("<2I", extent.offset + skipped, length)
            named = {"dataset": dataset, "chunk_id": extent.chunk_id, "ranges": packed}
            return self._ask(caller, address, "get_ranges", **named)

        place = attrgetter("place")
        from_first = max(bisect_right(record.extents, begin, key=place) - 1, 0)
        needed = record.extents[from_first : bisect_left(record.extents, end, key=place)]
        parts = [partial(ask, extent) for extent in needed]
        headers = {
            "content-type": kind or "text/plain; charset=utf-8",
            "content-security-policy": CONFINED,
            "content-disposition": f"{'inline' if kind else 'attachment'}; filename*=UTF-8''{quote(name, safe='')}",
        }
        if not first:
            headers |= {"accept-ranges": "bytes", "etag": tag}
        if part:
            headers["content-range"] = f"bytes {begin}-{end - 1}/{size}"
        return _Parts(parts, end - begin, headers, 206 if part else 200)


def asked_range(header: str, size: int) -> tuple[int, int] | None:
    """Where the one range begins and ends that a header `Range` asks for, of a file of `size` bytes; both are equal if
    the file has nothing of it. None: no range, or several, so the answer is the whole file.
    """
    found = _RANGE.fullmatch(header)
    first, last = found.groups() if found else ("", "")
    if not first:
        return (size - min(int(last), size), size) if last else None
    if last and int(last) < int(first):
        return None
    begin = min(int(first), size)
    return begin, min(int(last) + 1, size) if last else size


class _Parts(Response):
    """Sends the bytes of calls, one after the other; each call is made when the bytes before it were taken."""

    def __init__(
        self,
        parts: Sequence[Callable[[], AbstractAsyncContextManager[Reply]]],
        length: int,
        headers: dict[str, str],
        status: int,
    ) -> None:
        super().__init__(status_code=status, headers=headers)
        self.headers["content-length"] = str(length)
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        has_begun = False
        try:
            for part in self._parts if scope["method"] != "HEAD" else ():
                async with part() as reply:
                    if not has_begun:
                        await send(start)
                        has_begun = True
                    for piece in reply.bulk:
                        await send({"type": "http.response.body", "body": bytes(piece), "more_body": True})
        except DieselfsError as error:
            if has_begun:  # the browser sees that the answer is too short
                raise
            await JSONResponse({"error": str(error)}, 503)(scope, receive, send)
            return
        if not has_begun:
            await send(start)
        await send({"type": "http.response.body", "body": b""})


def _entry_view(folder: bytes, entry: RemoteEntry) -> dict[str, Any]:
    """`path`: percent-encoded, as names may be any bytes; the page passes it on as it is."""
    path = folder + b"/" + entry.name if folder else entry.name
    name = printable(entry.name)
    kinds = {Op.DIRECTORY: "folder", Op.SYMLINK: "link"}
    return {
        "name": name,
        "path": quote(path),
        "kind": kinds.get(Op(entry.op)) or media_type(name).partition("/")[0] or "text",
        "bytes": entry.size,
        "modified_s": entry.mtime_ns / 1e9,
        "target": printable(entry.target),
    }
