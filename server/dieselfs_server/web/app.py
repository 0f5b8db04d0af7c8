"""Answers the requests of browsers: static files, logins, and what the views show. This module reads files."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time, time_ns
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import trio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from dieselfs import __version__
from dieselfs.errors import AccessDenied, DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.names import check_path
from dieselfs.net.auth import NONCE_BYTES, check_key_id, check_user_name
from dieselfs.telemetry import catalogue
from dieselfs_server.access.accounts import ALL_DATASETS, Accounts, Caller, Right
from dieselfs_server.admission.usage import shown_usage
from dieselfs_server.leases.lease import shown_pins
from dieselfs_server.service import Service
from dieselfs_server.web import views
from dieselfs_server.web.contents import Ask, Contents
from dieselfs_server.web.facts import Facts
from dieselfs_server.web.guard import EVENTS_PATH, Guard
from dieselfs_server.web.live import Live
from dieselfs_server.web.logins import SESSION_S, Logins, checked_proof
from dieselfs_server.web.serving import LOGGED_IN

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
BODY_BYTES_MAX = 4096
BODY_S = 10.0
SPAN_S_MAX = 24 * 3600
HEALTH_S = 60.0
"""The checks of the server write to its stores, so all users share them for this time."""
STREAMS_MAX = 64
STREAMS_PER_USER_MAX = 16
READS_MAX = 4
"""Requests that ask the stores at a time; others wait."""

Value = TypeVar("Value")

_TOO_MANY = "too many logins: wait a minute, then try again"

_STATUS: dict[type[DieselfsError], int] = {
    InvalidInput: 400,
    AccessDenied: 403,
    NotFound: 404,
    Unavailable: 503,
}


class _LoggedOut(Exception):
    """The request has no session, or that of a key that was removed."""


@dataclass(frozen=True)
class Viewer:
    """Who looks, with the rights of now."""

    caller: Caller
    accounts: Accounts
    now_s: float

    def right(self, dataset: str) -> Right:
        return self.caller.right_on(dataset, self.accounts, self.now_s)

    def may_see(self, dataset: str) -> bool:
        return self.right(dataset) >= Right.READ

    def may_see_user(self, user: str) -> bool:
        """What a user stores and has read: as in the API, administrators, and the user."""
        return user != "" and (self.is_admin or user == self.caller.name)

    @property
    def is_admin(self) -> bool:
        return self.right(ALL_DATASETS) >= Right.ADMIN


Endpoint = Callable[[Request], Awaitable[Any]]


def _answered(endpoint: Endpoint) -> Endpoint:
    """An endpoint that returns a response or a value for JSON; errors become answers."""

    async def answer(request: Request) -> Response:
        try:
            found = await endpoint(request)
        except _LoggedOut:
            return JSONResponse({"error": "log in first"}, 401)
        except DieselfsError as error:
            status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
            # Perhaps not all of the body was read, so the connection cannot be used again.
            headers = {"connection": "close"} if request.method == "POST" else None
            return JSONResponse({"error": str(error)}, status, headers)
        return found if isinstance(found, Response) else JSONResponse(found)

    return answer


class App:
    """`cookie`: its name; `port` is that of the listener, which cookies do not tell apart."""

    def __init__(
        self, service: Service, logins: Logins, live: Live, ask: Ask, is_encrypted: bool, port: int
    ) -> None:
        self._service = service
        self._logins = logins
        self._live = live
        self._is_encrypted = is_encrypted
        self._scheme = "https" if is_encrypted else "http"
        self._cookie = "__Host-dieselfs" if is_encrypted else f"dieselfs-{port}"
        self._facts = Facts(service.metadata, service.tags, service.usages, time_ns)
        self._ask = ask
        self._contents = Contents(ask)
        self._checking = trio.Lock()
        self._checks: list[dict[str, str]] = []
        self._checks_until_s = float("-inf")
        self._reads = trio.CapacityLimiter(READS_MAX)
        self._streams: list[str] = []  # the user of each
        self._refused = service.metrics.declare(catalogue.RPC_REFUSED_LOGINS)

    def guarded(self, names: Collection[str]) -> Guard:
        """The app with the rules for all requests."""
        posts = (self.challenge, self.login, self.link, self.logout)
        gets = (self.me, self.live, self.datasets, self.usage, self.jobs, self.failures, self.health)
        routes = [
            Route("/", self.index),
            *(Route(f"/api/{post.__name__}", _answered(post), methods=["POST"]) for post in posts),
            *(Route(f"/api/{get.__name__}", _answered(get)) for get in gets),
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
        return Guard(Starlette(routes=routes), self._scheme, names)

    async def index(self, _: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    # -- logins ------------------------------------------------------------------------------------------

    async def challenge(self, request: Request) -> dict[str, str]:
        fields = await _fields(request)
        nonce = _bytes_of(fields, "client_nonce", NONCE_BYTES)
        user, key_id = check_user_name(fields.get("user", "")), check_key_id(fields.get("key_id", ""))
        token, challenge = self._logins.challenge(_address(request), user, key_id, nonce)
        return {"challenge": token, "server_nonce": urlsafe_b64encode(challenge.server_nonce).decode()}

    async def login(self, request: Request) -> Response:
        fields, user = await self._tried(request), ""
        users = self._service.users
        try:
            challenge = self._logins.take_challenge(fields.get("challenge", ""))
            user = challenge.user
            if not self._logins.rate.may_be(_address(request), user):
                raise Unavailable(_TOO_MANY)
            known = await trio.to_thread.run_sync(users.verifier, challenge.user, challenge.key_id)
            origin = f"{self._scheme}://{request.headers['host']}"
            proof = checked_proof(challenge, origin, _bytes_of(fields, "proof", 32), known, users.salt)
        except AccessDenied as error:
            self._logins.rate.fail(_address(request), user)
            self._note_refusal(request, str(error))
            raise
        answer = self._opened(request, Caller(challenge.user, challenge.key_id), "key")
        answer.body = answer.render({"proof": urlsafe_b64encode(proof).decode()})
        answer.headers["content-length"] = str(len(answer.body))
        return answer

    async def link(self, request: Request) -> Response:
        fields = await self._tried(request)
        try:
            caller = self._logins.take_link(fields.get("token", ""))
        except AccessDenied as error:
            self._note_refusal(request, str(error))
            raise
        return self._opened(request, caller, "link")

    async def logout(self, request: Request) -> Response:
        await _fields(request)
        self._logins.close(request.cookies.get(self._cookie, ""))
        answer = JSONResponse({})
        answer.delete_cookie(
            self._cookie, path="/", secure=self._is_encrypted, httponly=True, samesite="strict"
        )
        return answer

    async def _tried(self, request: Request) -> dict[str, str]:
        """The fields of an attempt to log in. Raises Unavailable if there are too many."""
        if not self._logins.rate.take(_address(request), trio.current_time()):
            raise Unavailable(_TOO_MANY)
        return await _fields(request)

    def _opened(self, request: Request, caller: Caller, how: str) -> JSONResponse:
        if self._service.audit is not None:
            self._service.audit.write(
                "login", caller.name, _address(request), key_used=caller.key_id, page=how
            )
        self._logins.rate.succeed(_address(request), trio.current_time())
        self._logins.close(request.cookies.get(self._cookie, ""))
        answer = JSONResponse({})
        answer.set_cookie(
            self._cookie,
            self._logins.open(caller),
            max_age=int(SESSION_S),
            path="/",
            secure=self._is_encrypted,
            httponly=True,
            samesite="strict",
        )
        return answer

    def _note_refusal(self, request: Request, reason: str) -> None:
        self._refused.value += 1
        if self._service.audit is not None:
            self._service.audit.write("refused", "", _address(request), reason=reason, page="login")

    async def _viewer(self, request: Request) -> Viewer:
        """Raises _LoggedOut. Others no longer take the place of a connection that is logged in."""
        token = request.cookies.get(self._cookie, "")
        caller = self._logins.caller(token)
        if caller is None:
            raise _LoggedOut
        accounts = Accounts()
        if not caller.is_trusted:
            accounts = await trio.to_thread.run_sync(self._service.users.current)
            try:
                caller.key(accounts, time())
            except AccessDenied:
                self._logins.close(token)
                raise _LoggedOut from None
        request.scope.get(LOGGED_IN, bool)()
        return Viewer(caller, accounts, time())

    # -- views -------------------------------------------------------------------------------------------

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
            except (_LoggedOut, DieselfsError):  # the next request of the browser gets the reason
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
        return await self._contents.folder(caller, _address(request), *named, after)

    async def shape(self, request: Request) -> dict[str, Any]:
        caller = (await self._viewer(request)).caller
        named = request.path_params["name"], _path(request)
        return await self._contents.shape(caller, _address(request), *named)

    async def states(self, request: Request) -> dict[str, Any]:
        caller = (await self._viewer(request)).caller
        return {"states": await self._contents.states(caller, _address(request), request.path_params["name"])}

    async def changes(self, request: Request) -> dict[str, Any]:
        caller, asked = (await self._viewer(request)).caller, request.query_params
        states = asked.get("old", ""), asked.get("new", "")
        return await self._contents.changes(caller, _address(request), request.path_params["name"], *states)

    async def data(self, request: Request) -> Response:
        viewer, name = await self._viewer(request), request.path_params["name"]
        if not viewer.may_see(name):
            raise _no_dataset(name)
        path, first = _path(request), _number(request, "first", 0)
        record = await self._read(lambda: self._facts.entry(name, path))
        asked = request.headers if request.method == "GET" else {}
        return await self._contents.file(viewer.caller, _address(request), name, record, asked, first)

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
        """The checks of `dlcmd doctor`, as of up to HEALTH_S ago. Raises AccessDenied."""
        viewer = await self._viewer(request)
        if not viewer.is_admin:
            raise AccessDenied("only administrators see the checks of the server")
        async with self._checking:  # one check for all users
            if trio.current_time() >= self._checks_until_s:
                ask = self._ask(viewer.caller, _address(request), "check_server", is_whole=True)
                async with ask as reply:
                    self._checks = [each._asdict() for each in reply.value.checks]
                self._checks_until_s = trio.current_time() + HEALTH_S
        return {"checks": self._checks}

    async def failures(self, request: Request) -> dict[str, Any]:
        viewer = await self._viewer(request)
        newest = self._service.recent.newest()
        return {"failures": views.failures_view(newest, viewer.caller.name, viewer.is_admin)}

    async def _read(self, read: Callable[[], Value]) -> Value:
        return await trio.to_thread.run_sync(read, limiter=self._reads, abandon_on_cancel=True)


def _no_dataset(name: str) -> NotFound:
    return NotFound(f"there is no dataset {name!r}, or you have no right to see it")


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _path(request: Request) -> bytes:
    """The path in a dataset that a request names, percent-encoded as `contents.py` gives it. Raises InvalidInput."""
    return check_path(unquote_to_bytes(request.query_params.get("path", "")))


def _number(request: Request, name: str, default: int) -> int:
    """Raises InvalidInput."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidInput(f"{name} is not a number")
    return int(text)


def _bytes_of(fields: dict[str, str], name: str, length: int) -> bytes:
    """Raises InvalidInput."""
    try:
        value = urlsafe_b64decode(fields.get(name, ""))
    except ValueError:
        value = b""
    if len(value) != length:
        raise InvalidInput(f"{name} must be {length} bytes in URL-safe base64")
    return value


async def _fields(request: Request) -> dict[str, str]:
    """The body of a request: a JSON object of texts in ASCII. Raises InvalidInput."""
    body = bytearray()
    try:
        with trio.fail_after(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise InvalidInput(f"a body of more than {BODY_BYTES_MAX} bytes")
    except trio.TooSlowError:
        raise InvalidInput(f"the body took longer than {BODY_S:g} s") from None
    except ClientDisconnect:
        raise InvalidInput("the browser left before the end of the body") from None
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not all(
        isinstance(value, str) and value.isascii() for value in fields.values()
    ):
        raise InvalidInput("the body must be a JSON object of texts in ASCII")
    return fields
