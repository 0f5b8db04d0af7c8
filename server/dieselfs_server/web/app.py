"""Answers the requests of browsers: static files, and what the views show. This module reads files."""

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import time_ns
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from dieselfs import __version__
from dieselfs.errors import AccessDenied, DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.names import check_path
from dieselfs_server.access.accounts import Right
from dieselfs_server.admission.usage import shown_usage
from dieselfs_server.leases.lease import shown_pins
from dieselfs_server.service import Service
from dieselfs_server.web import views
from dieselfs_server.web.contents import Ask, Contents
from dieselfs_server.web.entrance import Entrance, LoggedOut, address_of
from dieselfs_server.web.facts import Facts
from dieselfs_server.web.guard import EVENTS_PATH, Guard
from dieselfs_server.web.live import Live
from dieselfs_server.web.others import Others

STREAM_S = 3600.0
"""Then the browser connects again."""


class EventStream(Response):
    """Sends what `next_event` returns, until that is None or the browser has left."""

    def __init__(
        self,
        next_event: Callable[[], Awaitable[bytes | None]],
        opened: AbstractContextManager[None],
    ) -> None:
        """`opened` is entered while it sends."""
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._next_event = next_event
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._opened:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_left, receive, nursery.cancel_scope)
                with trio.move_on_after(STREAM_S):
                    await self._send_events(send)
                nursery.cancel_scope.cancel()
            await send({"type": "http.response.body", "body": b""})

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"retry: 3000\n\n", "more_body": True})
        while (event := await self._next_event()) is not None:
            await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})


async def _until_left(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


STATIC = Path(__file__).parent / "static"
SPAN_S_MAX = 24 * 3600
HEALTH_S = 60.0
"""The checks of the server write to its stores, so all users share them for this time."""
STREAMS_MAX = 64
STREAMS_PER_USER_MAX = 16
READS_MAX = 4
"""Requests that ask the stores at a time; others wait."""

Value = TypeVar("Value")

_STATUS: dict[type[DieselfsError], int] = {
    InvalidInput: 400,
    AccessDenied: 403,
    NotFound: 404,
    Unavailable: 503,
}

Endpoint = Callable[[Request], Awaitable[Any]]


def _answered(endpoint: Endpoint) -> Endpoint:
    """An endpoint that returns a response or a value for JSON; errors become answers."""

    async def answer(request: Request) -> Response:
        try:
            found = await endpoint(request)
        except LoggedOut:
            return JSONResponse({"error": "log in first"}, 401)
        except DieselfsError as error:
            status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
            # Perhaps not all of the body was read, so the connection cannot be used again.
            headers = {"connection": "close"} if request.method == "POST" else None
            return JSONResponse({"error": str(error)}, status, headers)
        return found if isinstance(found, Response) else JSONResponse(found)

    return answer


class App:
    """What browsers ask for; `entrance` knows for whom."""

    def __init__(
        self, service: Service, entrance: Entrance, live: Live, ask: Ask, others: Others | None
    ) -> None:
        self._service = service
        self._entrance, self._viewer = entrance, entrance.viewer
        self._live, self._others = live, others
        self._facts = Facts(service.metadata, service.tags, service.usages, time_ns)
        self._ask = ask
        self._contents = Contents(ask)
        self._checking = trio.Lock()
        self._checks: list[dict[str, str]] = []
        self._checks_until_s = float("-inf")
        self._reads = trio.CapacityLimiter(READS_MAX)
        self._streams: list[str] = []  # the user of each

    def guarded(self, names: Collection[str]) -> Guard:
        """The app with the rules for all requests."""
        entrance = self._entrance
        logins: tuple[Endpoint, ...] = (entrance.challenge, entrance.login, entrance.link)
        posts = (*logins, entrance.to_provider, entrance.from_provider, entrance.logout)
        gets = (self.me, self.live, self.datasets, self.usage, self.jobs, self.failures, self.health)
        routes = [
            Route("/", self.index),
            *(Route(f"/api/{post.__name__}", _answered(post), methods=["POST"]) for post in posts),
            *(Route(f"/api/{get.__name__}", _answered(get)) for get in (entrance.provider, *gets)),
            Route("/api/datasets/{name}", _answered(self.dataset)),
            Route("/api/datasets/{name}/folder", _answered(self.folder)),
            Route("/api/datasets/{name}/shape", _answered(self.shape)),
            Route("/api/datasets/{name}/states", _answered(self.states)),
            Route("/api/datasets/{name}/changes", _answered(self.changes)),
            Route("/data/{name}", _answered(self.data)),
            Route("/api/jobs/{dataset}/{job}/{id}", _answered(self.job)),
            Route(EVENTS_PATH, _answered(self.events)),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        return Guard(Starlette(routes=routes), entrance.scheme, names)

    async def index(self, _: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def me(self, request: Request) -> dict[str, Any]:
        viewer = await self._viewer(request)
        return {
            "user": viewer.caller.name,
            "is_admin": viewer.is_admin,
            "version": __version__,
            "started_s": self._service.started_s,
        }

    async def live(self, request: Request) -> dict[str, Any]:
        viewer = await self._viewer(request)
        if not viewer.is_admin:
            raise AccessDenied("only administrators see the figures of the whole server")
        span_s = _number(request, "span_s", 600)
        return self._live.charts.columns(min(max(span_s, 1), SPAN_S_MAX))

    async def events(self, request: Request) -> Response:
        viewer = await self._viewer(request)
        user = viewer.caller.name
        if len(self._streams) >= STREAMS_MAX or self._streams.count(user) >= STREAMS_PER_USER_MAX:
            raise Unavailable("too many open pages: close some")

        async def next_event() -> bytes | None:
            latest = await self._live.next()
            try:
                now = await self._viewer(request)
            except (LoggedOut, DieselfsError):  # the next request of the browser gets the reason
                return None
            return latest if now.is_admin else b"{}"

        return EventStream(next_event, self._watching(user))

    @contextmanager
    def _watching(self, user: str) -> Iterator[None]:
        self._streams.append(user)
        self._live.watchers += 1
        try:
            yield
        finally:
            self._streams.remove(user)
            self._live.watchers -= 1

    async def datasets(self, request: Request) -> dict[str, Any]:
        viewer = await self._viewer(request)
        search, sort = request.query_params.get("search", "")[:200], request.query_params.get("sort", "name")
        page = _number(request, "page", 0)

        def read() -> dict[str, Any]:
            seen = [each for each in self._facts.datasets() if viewer.may_see(each.name)]
            owners = self._service.users.current().owners

            def owner(name: str) -> str:
                found = owners.get(name, "")
                return found if found == viewer.caller.name or viewer.right(name) >= Right.WRITE else ""

            return views.datasets_view(seen, search, sort, page, owner)

        return await self._read(read)

    async def dataset(self, request: Request) -> dict[str, Any]:
        viewer, name = await self._viewer(request), request.path_params["name"]
        if not viewer.may_see(name):
            raise _no_dataset(name)

        facts = self._facts
        try:
            dataset = await self._read(lambda: facts.dataset(name))
        except NotFound:
            raise _no_dataset(name) from None
        async with self._service.tags.reads:
            tags = await trio.to_thread.run_sync(facts.tags, dataset)

        def read() -> dict[str, Any]:
            now_ns, right, user = time_ns(), viewer.right(name), viewer.caller.name
            chunks, usage = facts.chunks(dataset), shown_usage(facts.usage(dataset), user, right)
            readers = shown_pins(facts.readers(dataset), user, right)
            return {
                **views.dataset_view(dataset),
                "right": right.name.lower(),
                "usage": views.usage_view(usage),
                "owner_usage": views.usage_view(facts.usage_of_user(usage.owner))
                if viewer.may_see_user(usage.owner)
                else None,
                "dead_entries": chunks.deleted_entries,
                "growth": views.growth_view(chunks, now_ns / 1e9),
                "tags": [views.tag_view(tag_name, tag) for tag_name, tag in tags],
                "reader_count": len(readers),
                "readers": views.readers_view(readers, now_ns),
                "jobs": [views.job_summary(job, now_ns, right) for job in facts.jobs_of(dataset)],
            }

        return await self._read(read)

    async def folder(self, request: Request) -> dict[str, Any]:
        caller = (await self._viewer(request)).caller
        after = unquote_to_bytes(request.query_params.get("after", ""))
        named = request.path_params["name"], _path(request)
        return await self._contents.folder(caller, address_of(request), *named, after)

    async def shape(self, request: Request) -> dict[str, Any]:
        caller = (await self._viewer(request)).caller
        named = request.path_params["name"], _path(request)
        return await self._contents.shape(caller, address_of(request), *named)

    async def states(self, request: Request) -> dict[str, Any]:
        caller = (await self._viewer(request)).caller
        name = request.path_params["name"]
        return {"states": await self._contents.states(caller, address_of(request), name)}

    async def changes(self, request: Request) -> dict[str, Any]:
        caller, asked = (await self._viewer(request)).caller, request.query_params
        states = asked.get("old", ""), asked.get("new", "")
        return await self._contents.changes(caller, address_of(request), request.path_params["name"], *states)

    async def data(self, request: Request) -> Response:
        viewer, name = await self._viewer(request), request.path_params["name"]
        if not viewer.may_see(name):
            raise _no_dataset(name)
        path, first = _path(request), _number(request, "first", 0)
        record = await self._read(lambda: self._facts.entry(name, path))
        asked = request.headers if request.method == "GET" else {}
        return await self._contents.file(viewer.caller, address_of(request), name, record, asked, first)

    async def usage(self, request: Request) -> dict[str, Any]:
        viewer, search = await self._viewer(request), request.query_params.get("search", "")[:200]

        def read() -> dict[str, Any]:
            if viewer.is_admin:
                return views.users_view(self._facts.usage_of_users(), search)
            return views.users_view([self._facts.usage_of_user(viewer.caller.name)], "")

        return await self._read(read)

    async def jobs(self, request: Request) -> dict[str, Any]:
        viewer = await self._viewer(request)

        def read() -> dict[str, Any]:
            now_ns = time_ns()
            seen = [job for job in self._facts.jobs() if viewer.may_see(job.dataset)]
            return {"jobs": [views.job_summary(job, now_ns, viewer.right(job.dataset)) for job in seen]}

        return await self._read(read)

    async def job(self, request: Request) -> dict[str, Any]:
        viewer, named = await self._viewer(request), request.path_params
        if not viewer.may_see(named["dataset"]):
            raise _no_dataset(named["dataset"])

        def read() -> dict[str, Any]:
            dataset = self._facts.dataset(named["dataset"])
            right = viewer.right(dataset.name)
            for found in self._facts.jobs_of(dataset):
                if found.job == named["job"] and found.fingerprint.startswith(named["id"]):
                    return views.job_view(found, self._facts.chunks(dataset), time_ns(), right)
            raise NotFound(f"job {named['job']} has ended: it has no members")

        return await self._read(read)

    async def health(self, request: Request) -> dict[str, Any]:
        """The checks of `dlcmd doctor`, as of up to HEALTH_S ago, and the other servers. Raises AccessDenied."""
        viewer = await self._viewer(request)
        if not viewer.is_admin:
            raise AccessDenied("only administrators see the checks of the server")
        async with self._checking:  # one check for all users
            if trio.current_time() >= self._checks_until_s:
                ask = self._ask(viewer.caller, address_of(request), "check_server", is_whole=True)
                async with ask as reply:
                    self._checks = [each._asdict() for each in reply.value.checks]
                self._checks_until_s = trio.current_time() + HEALTH_S
        others = self._others.checks() if self._others is not None else ()
        return {"checks": [*self._checks, *(each._asdict() for each in others)]}

    async def failures(self, request: Request) -> dict[str, Any]:
        viewer = await self._viewer(request)
        newest = self._service.recent.newest()
        return {"failures": views.failures_view(newest, viewer.caller.name, viewer.is_admin)}

    async def _read(self, read: Callable[[], Value]) -> Value:
        return await trio.to_thread.run_sync(read, limiter=self._reads, abandon_on_cancel=True)


def _no_dataset(name: str) -> NotFound:
    return NotFound(f"there is no dataset {name!r}, or you have no right to see it")


def _path(request: Request) -> bytes:
    """The path in a dataset that a request names, percent-encoded as `contents.py` gives it. Raises InvalidInput."""
    return check_path(unquote_to_bytes(request.query_params.get("path", "")))


def _number(request: Request, name: str, default: int) -> int:
    """Raises InvalidInput."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidInput(f"{name} is not a number")
    return int(text)
