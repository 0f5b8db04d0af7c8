"""The page of a real server: logins, rights, headers, bounds and events, as a browser and an attacker send them."""

import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError
from dieselfs.names import COLUMNS_PATH
from dieselfs.net import auth
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.limit_kinds import QuotaRecord, RateRecord
from dieselfs_server.web.contents import FILE_BYTES_MAX
from dieselfs_server.web.guard import HEADERS
from dieselfs_server.web.logins import TRIES_PER_ADDRESS
from dieselfs_server.web.views import READERS_MAX
from tests.support.many_datasets import add_datasets
from tests.support.server import RunningServer, running_server, start_server

READING = (
    *("/api/me", "/api/live", "/api/datasets", "/api/datasets/open", "/api/jobs", "/api/jobs/open/j/0"),
    *("/api/usage", "/api/failures", "/events", "/api/health"),
    *("/api/datasets/open/folder", "/data/open?path=a/page.html"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server"), ("--web", "127.0.0.1:0")) as server:
        with closing(server.client()) as client:
            for name in ("open", "closed"):
                client.create_dataset(name)
                with Dataset(server.settings(), name) as data:
                    data.put("a/page.html", b"<script>")
                    data.put("a/long.png", b"png" * 700_000)
        server.user("ann", open="read")
        yield server


@pytest.fixture(scope="module")
def local(server: RunningServer) -> Iterator[ServerClient]:
    with closing(server.client()) as client:
        yield client


@pytest.fixture(scope="module")
def ann(server: RunningServer) -> Iterator[ServerClient]:
    with closing(server.client(server.folder / "ann.key")) as client:
        yield client


class Browser(httpx.Client):
    """Requests as the page sends them."""

    def __init__(self, client: ServerClient) -> None:
        self.link = client.open_page(0)
        super().__init__(base_url=self.link.address, verify=False, timeout=30)
        self.origin = self.link.address.rstrip("/")

    def send_fields(self, path: str, **fields: str) -> httpx.Response:
        return self.post(path, json=fields, headers={"origin": self.origin})

    def log_in(self) -> httpx.Response:
        return self.send_fields("/api/link", token=self.link.token)

    def with_key(self, key: auth.Key, origin: str = "") -> httpx.Response:
        nonce = bytes(32)
        fields = {"user": key.user, "key_id": key.key_id, "client_nonce": urlsafe_b64encode(nonce).decode()}
        challenge = self.send_fields("/api/challenge", **fields).json()
        names = auth.PAGE_ROLE, (origin or self.origin).encode(), key.user, key.key_id
        transcript = auth.transcript(*names, nonce, urlsafe_b64decode(challenge["server_nonce"]))
        proof = urlsafe_b64encode(auth.client_proof(key, transcript)).decode()
        return self.send_fields("/api/login", challenge=challenge["challenge"], proof=proof)


@pytest.fixture
def stranger(ann: ServerClient) -> Iterator[Browser]:
    with Browser(ann) as browser:
        yield browser


@pytest.fixture
def user(stranger: Browser) -> Browser:
    assert stranger.log_in().status_code == 200
    return stranger


@pytest.fixture
def admin(local: ServerClient) -> Iterator[Browser]:
    with Browser(local) as browser:
        browser.log_in()
        yield browser


@pytest.mark.parametrize("path", READING)
def test_nothing_is_shown_without_a_login(stranger: Browser, path: str) -> None:
    answer = stranger.get(path)
    assert (answer.status_code, answer.json()) == (401, {"error": "log in first"})


def test_a_link_logs_one_browser_in(ann: ServerClient, stranger: Browser) -> None:
    answer = stranger.log_in()
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-dieselfs=")
    assert all(part in cookie for part in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"))
    assert stranger.get("/api/me").json()["user"] == "ann"
    with Browser(ann) as other:
        assert other.send_fields("/api/link", token=stranger.link.token).status_code == 403
        assert other.get("/api/me").status_code == 401


def test_a_key_logs_in_and_the_server_proves_itself(server: RunningServer, stranger: Browser) -> None:
    key = auth.read_key_file(server.folder / "ann.key")
    answer = stranger.with_key(key)
    assert answer.status_code == 200 and len(urlsafe_b64decode(answer.json()["proof"])) == 32
    assert stranger.get("/api/me").json()["user"] == "ann"


def test_a_wrong_key_and_a_proof_for_another_page_are_refused(
    server: RunningServer, stranger: Browser
) -> None:
    key = auth.read_key_file(server.folder / "ann.key")
    for answer in (
        stranger.with_key(auth.Key("ann", key.key_id, bytes(32))),
        stranger.with_key(auth.Key("nobody", "k", bytes(32))),
        stranger.with_key(key, origin="https://evil.example.org"),
    ):
        assert (answer.status_code, "unknown key" in answer.json()["error"]) == (403, True)
        assert "set-cookie" not in answer.headers
    audit = [json.loads(line) for line in (server.folder / "state" / "audit.log").read_text().splitlines()]
    assert any(entry["event"] == "refused" and entry.get("page") == "login" for entry in audit)
    assert any(entry["event"] == "login" and entry["user"] == "ann" and "page" in entry for entry in audit)


def test_a_session_ends_with_the_key_and_with_logging_out(server: RunningServer, user: Browser) -> None:
    user.send_fields("/api/logout")
    assert user.get("/api/me").status_code == 401
    file = server.user("bob", open="read")
    with closing(server.client(file)) as bob, Browser(bob) as browser, closing(server.client()) as local:
        browser.log_in()
        assert browser.get("/api/me").status_code == 200
        local.remove_key("bob")
        assert browser.get("/api/me").status_code == 401


def test_users_see_what_they_may_read(user: Browser, admin: Browser) -> None:
    assert [row["name"] for row in user.get("/api/datasets").json()["rows"]] == ["open"]
    assert [row["name"] for row in admin.get("/api/datasets").json()["rows"]] == ["closed", "open"]
    assert user.get("/api/datasets/open").json()["right"] == "read"
    hidden, missing = user.get("/api/datasets/closed"), user.get("/api/datasets/missing")
    assert hidden.status_code == missing.status_code == 404
    assert hidden.json()["error"].replace("closed", "missing") == missing.json()["error"]
    assert user.get("/api/jobs/closed/j/0").status_code == 404
    assert user.get("/api/live").status_code == 403
    assert "sent_bytes" in admin.get("/api/live?span_s=60").json()


def test_all_readers_count_beyond_those_that_are_shown(
    local: ServerClient, user: Browser, admin: Browser
) -> None:
    local.create_dataset("read")
    local.grant("ann", "read", "read")
    for number in range(READERS_MAX + 1):
        local.pin("read", f"mount-{number}", 0, 0, 60)
    for browser, found, shown in ((user, 0, 0), (admin, READERS_MAX + 1, READERS_MAX)):
        dataset = browser.get("/api/datasets/read").json()
        assert (dataset["reader_count"], len(dataset["readers"])) == (found, shown)
    local.drop_dataset("read")
    local.grant("ann", "read", "none")


def test_usage_is_seen_as_in_the_api(server: RunningServer, user: Browser, admin: Browser) -> None:
    eve = server.user("eve", hers="write")
    with closing(server.client()) as local, closing(server.client(eve)) as client, Browser(client) as owner:
        local.create_dataset("hers")
        local.grant("ann", "hers", "read")
        local.set_owner("hers", "eve")
        local.set_quota(QuotaRecord("user:eve", 5000, 10))
        local.set_quota(QuotaRecord("dataset:hers", -1, 7))
        owner.log_in()
        seen = [browser.get("/api/datasets/hers").json() for browser in (user, owner, admin)]
        assert [each["usage"]["owner"] for each in seen] == ["", "eve", "eve"]
        assert [each["usage"]["quota_files"] for each in seen] == [7] * 3
        assert seen[0]["owner_usage"] is None
        assert [each["owner_usage"]["quota_bytes"] for each in seen[1:]] == [5000] * 2
        for browser, names in ((user, ["ann"]), (owner, ["eve"])):
            for query in ("", "?search=e"):
                rows = browser.get(f"/api/usage{query}").json()["rows"]
                assert [row["name"] for row in rows] == names
        rows = admin.get("/api/usage?search=ev").json()["rows"]
        assert [(row["name"], row["quota_files"]) for row in rows] == [("eve", 10)]


def test_users_see_their_own_errors(ann: ServerClient, user: Browser, admin: Browser) -> None:
    for ask in (ann.tags, ann.dataset):  # the second is a question, to which "no" is no error
        with pytest.raises(DieselfsError):
            ask("closed")
    (mine, *_) = user.get("/api/failures").json()["failures"]
    assert (mine["what"], mine["user"], mine["outcome"]) == ("list_tags", "ann", "NotFound")
    assert {each["user"] for each in user.get("/api/failures").json()["failures"]} == {"ann"}
    assert any(each["number"] == mine["number"] for each in admin.get("/api/failures").json()["failures"])


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/me", "/missing", "/static/../app.py"])
def test_every_answer_has_the_headers(user: Browser, path: str) -> None:
    answer = user.get(path)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy


def test_files_are_read_with_the_rights_and_the_counts_of_a_reader(
    server: RunningServer, user: Browser, ann: ServerClient
) -> None:
    entries = user.get("/api/datasets/open/folder?path=a").json()["entries"]
    assert [(each["path"], each["kind"], each["bytes"]) for each in entries] == [
        ("a/long.png", "image", 2_100_000),
        ("a/page.html", "text", 8),
    ]
    (before,) = ann.usage("open")
    assert user.get("/data/open?path=a/long.png").content == b"png" * 700_000
    (after,) = ann.usage("open")
    assert after.read_bytes - before.read_bytes == 2_100_000
    for path in ("/api/datasets/closed/folder?path=a", "/data/closed?path=a/page.html"):
        assert user.get(path).status_code == 404


def test_health_has_what_runs_out(admin: Browser) -> None:
    checks = {each["name"]: each["state"] for each in admin.get("/api/health").json()["checks"]}
    assert checks.keys() >= {"store", "metadata", "disk", "identity", "room", "quotas", "keys"}
    assert "server" not in checks  # without etcd, it knows no other
    assert checks["store"] == checks["quotas"] == "ok"


def test_a_rate_holds_for_what_the_page_reads(server: RunningServer) -> None:
    with closing(server.client()) as client, closing(server.client(server.user("kim", open="read"))) as kim:
        client.set_rate(RateRecord("kim", bytes_per_s=1 << 20))
        with Browser(kim) as browser:
            browser.log_in()
            began_s = time.monotonic()
            assert len(browser.get("/data/open?path=a/long.png").content) == 2_100_000
            assert time.monotonic() - began_s > 0.9  # a second's bytes are free


def test_of_an_encrypted_dataset_nothing_is_shown(
    server: RunningServer, admin: Browser, tmp_path: Path
) -> None:
    settings = replace(server.settings(), identity=str(tmp_path / "identity"), cache=tmp_path / "cache")
    with Dataset(settings, "sealed", must_exist=False) as data:
        data.client.encrypt(data.create())
        data.put("secret", b"text")
        data.flush()
    folder = admin.get("/api/datasets/sealed/folder").json()
    assert folder == {"is_encrypted": True, "entries": [], "next": None}
    shape = admin.get("/api/datasets/sealed/shape")
    assert shape.status_code == 400 and "is encrypted" in shape.json()["error"]


def test_owners_are_shown_to_those_who_may_write(
    server: RunningServer, user: Browser, admin: Browser
) -> None:
    with closing(server.client()) as client, closing(server.client(server.user("eva", open="read"))) as eva:
        client.set_owner("open", "eva")
        with Browser(eva) as owner:
            owner.log_in()
            seen = [browser.get("/api/datasets?search=open").json() for browser in (user, owner, admin)]
        client.set_owner("open", "")
    assert [each["rows"][0]["owner"] for each in seen] == ["", "eva", "eva"]


def test_classes_sizes_and_changes(server: RunningServer, admin: Browser) -> None:
    files = {
        b"cat/1": b"a" * 1000,
        b"cat/\xff/2": b"b",
        b"dog/1": b"c" * 3,
        b"top": b"",
        b"long": bytes(6 << 20),
    }
    with closing(server.client()) as client, Dataset(server.settings(), "versions", must_exist=False) as data:
        data.create()
        for path, content in files.items():
            data.put(path, content)
        data.flush()
        client.put_tag("versions", "v1")
        data.put("dog/1", b"d" * 3)
        data.put("cat/1", b"a" * 1000)  # another time, the same content
        data.put("new", b"12")
        data.delete("top")
        data.put(COLUMNS_PATH, b"table")
        data.flush()
    shape = admin.get("/api/datasets/versions/shape").json()
    classes = [(each["name"], each["files"], each["bytes"]) for each in shape["classes"]]
    assert classes == [("cat", 2, 1001), ("dog", 1, 3)]
    sizes = [(each["below"], each["files"]) for each in shape["sizes"]]
    assert (shape["files"], sizes) == (5, [(2, 1), (4, 2), (1024, 1), (8 << 20, 1)])
    listed = admin.get("/api/datasets/versions/folder").json()["entries"]
    assert [each["path"] for each in listed] == ["cat", "dog", "long", "new"]
    (inner,) = admin.get("/api/datasets/versions/shape?path=cat").json()["classes"]
    assert (inner["name"], inner["path"], inner["files"]) == ("\\xff", "cat/%FF", 1)
    assert "v1" in admin.get("/api/datasets/versions/states").json()["states"]
    changes = admin.get("/api/datasets/versions/changes?old=v1").json()
    first = {
        kind: [file["name"] for file in changes[kind]["first"]] for kind in ("added", "removed", "changed")
    }
    assert first == {"added": ["new"], "removed": ["top"], "changed": ["dog/1"]}
    assert (changes["same"], changes["added"]["bytes"]) == (3, 2)


def test_files_are_confined(user: Browser) -> None:
    found = {path: user.get(f"/data/open?path=a/{path}") for path in ("page.html", "long.png")}
    kinds = {path: answer.headers["content-type"] for path, answer in found.items()}
    assert kinds == {"page.html": "text/plain; charset=utf-8", "long.png": "image/png"}
    saved = [answer.headers["content-disposition"].partition(";")[0] for answer in found.values()]
    assert saved == ["attachment", "inline"]
    for answer in found.values():
        policies = answer.headers.get_list("content-security-policy")
        assert "default-src 'none'; sandbox" in policies and len(policies) == 2
        assert answer.headers["x-content-type-options"] == "nosniff"
    first = user.get("/data/open?path=a/long.png&first=4")
    assert (first.content, first.headers["content-type"]) == (b"pngp", "text/plain; charset=utf-8")


def test_ranges_of_a_file(server: RunningServer, user: Browser) -> None:
    content = bytes(range(251)) * 40_000  # of several chunks
    with Dataset(server.settings(), "open") as data:
        data.put("films/one.mp4", content)
        data.flush()
        data.put("films/large.mp4", bytes(FILE_BYTES_MAX) + b"end")
        data.flush()
    path, size = "/data/open?path=films/one.mp4", len(content)
    whole = user.get(path)
    tag = whole.headers["etag"]
    assert (whole.status_code, whole.content, whole.headers["accept-ranges"]) == (200, content, "bytes")
    for asked, begin, end in (
        ("bytes=0-3", 0, 4),
        ("bytes=4000000-9000000", 4_000_000, 9_000_001),
        ("bytes=10039990-", 10_039_990, size),
        ("bytes=-7", size - 7, size),
        ("bytes=5-99999999999", 5, size),
    ):
        for headers in ({"range": asked}, {"range": asked, "if-range": tag}):
            part = user.get(path, headers=headers)
            assert (part.status_code, part.content) == (206, content[begin:end])
            assert part.headers["content-range"] == f"bytes {begin}-{end - 1}/{size}"
            assert (part.headers["content-type"], part.headers["etag"]) == ("video/mp4", tag)
    for asked in ("bytes=10040000-", "bytes=-0"):
        beyond = user.get(path, headers={"range": asked})
        assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    for headers in (
        {"range": "bytes=0-1,4-5"},
        {"range": "rows=0-1"},
        {"range": "bytes=0-1", "if-range": '"x"'},
    ):
        assert user.get(path, headers=headers).status_code == 200
    assert user.head(path, headers={"range": "bytes=0-1"}).status_code == 200
    large = "/data/open?path=films/large.mp4"
    assert user.get(large).status_code == 400
    first = user.get(large, headers={"range": "bytes=0-"})
    assert (first.status_code, len(first.content)) == (206, FILE_BYTES_MAX)
    assert user.get(large, headers={"range": f"bytes={FILE_BYTES_MAX}-"}).content == b"end"
    closed = user.get("/data/closed?path=a/long.png", headers={"range": "bytes=0-1"})
    assert closed.status_code == 404
    with Dataset(server.settings(), "open") as data:
        data.put("films/one.mp4", content[::-1])
    assert user.get(path, headers={"range": "bytes=0-1", "if-range": tag}).content == content[::-1]


@pytest.mark.parametrize("host", ["evil.example.org", "storage-1.evil.org:7071", ""])
def test_another_name_is_refused(user: Browser, host: str) -> None:
    assert user.get("/api/me", headers={"host": host}).status_code in (400, 421)


def test_other_sites_cannot_post(ann: ServerClient, stranger: Browser) -> None:
    for headers in ({}, {"origin": "https://evil.example.org"}, {"origin": "null"}):
        answer = stranger.post("/api/link", json={"token": stranger.link.token}, headers=headers)
        assert answer.status_code == 403
    assert stranger.log_in().status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/datasets?sort=secret", 400),
        ("/api/datasets?page=-1", 400),
        ("/api/datasets?page=99999999999999", 400),
        ("/api/live?span_s=x", 403),
        ("/api/jobs/open/none/00", 404),
        ("/static/missing.js", 404),
        ("/api/health", 403),
        ("/data/open?path=a/missing", 404),
        ("/api/datasets/open/shape?path=none", 404),
        ("/api/datasets/closed/shape", 404),
        ("/api/datasets/closed/states", 404),
        ("/api/datasets/open/changes?old=none", 404),
        ("/api/datasets/open/changes?old=%23x", 400),
        ("/data/open?path=a", 404),
        ("/data/open?path=a/../b", 400),
        ("/data/open?path=a/page.html&first=99999999", 400),
        ("/api/datasets/open/folder?path=a/page.html", 400),
        ("/api/datasets/open/folder?path=none", 404),
    ],
)
def test_bad_requests_are_one_line(user: Browser, path: str, status: int) -> None:
    answer = user.get(path)
    assert answer.status_code == status
    if path.startswith("/api"):
        assert "\n" not in answer.json()["error"]


def test_bad_bodies_are_refused(stranger: Browser) -> None:
    headers = {"origin": stranger.origin}
    for body in (b"", b"x", b"[]", b'{"token": 1}', b"[" * 3000, b"x" * 5000):
        assert stranger.post("/api/link", content=body, headers=headers).status_code == 400
    assert stranger.put("/api/link").status_code == 405


@pytest.mark.parametrize(("user", "key_id"), [("", "k"), ("ann", ""), ("\\ud800", "k"), ("a" * 65, "k")])
def test_a_challenge_for_a_name_that_nobody_has_is_refused(stranger: Browser, user: str, key_id: str) -> None:
    nonce = urlsafe_b64encode(bytes(32)).decode()
    body = f'{{"user": "{user}", "key_id": "{key_id}", "client_nonce": "{nonce}"}}'
    answer = stranger.post("/api/challenge", content=body, headers={"origin": stranger.origin})
    assert answer.status_code == 400


def test_events_follow_each_other(admin: Browser, user: Browser) -> None:
    def events(browser: Browser) -> Iterator[dict[str, object]]:
        with browser.stream("GET", "/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    seen = events(admin)
    first, second = next(seen), next(seen)
    assert "sample" in second and first != second
    assert next(events(user)) == {}


def test_pages_are_quick_with_ten_thousand_datasets(tmp_path: Path) -> None:
    with running_server(tmp_path, ("--web", "127.0.0.1:0")) as own, closing(own.client()) as local:
        add_datasets(tmp_path / "metadata.db", 10_000)
        with Browser(local) as browser:
            browser.log_in()
            took = []
            for query in (
                "sort=-size",
                "search=set-0099",
                "sort=name&page=99",
                "sort=files",
                "search=5&sort=-updated",
            ):
                began_s = time.monotonic()
                found = browser.get(f"/api/datasets?{query}").json()
                took.append(time.monotonic() - began_s)
                assert found["total"] == 10_000 and len(found["rows"]) <= 100
            assert sorted(took)[len(took) // 2] < 0.5
            assert browser.get("/api/jobs").json() == {"jobs": []}


def test_logins_of_an_address_are_bounded(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, ("--web", "127.0.0.1:0")) as own,
        closing(own.client()) as local,
        Browser(local) as browser,
    ):
        assert browser.log_in().status_code == 200  # does not count
        tries = range(TRIES_PER_ADDRESS + 1)
        codes = [browser.send_fields("/api/link", token="x").status_code for _ in tries]
        assert codes == [403] * TRIES_PER_ADDRESS + [503]
        assert browser.get("/").status_code == 200


def test_the_certificate_is_the_same_after_a_restart(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        with (
            running_server(tmp_path, ("--web", "127.0.0.1:0")) as own,
            closing(own.client()) as local,
            Browser(local) as browser,
        ):
            seen.append(browser.link.fingerprint)
    assert seen[0] == seen[1] != b""


def test_a_page_that_others_could_read_on_the_way_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the page needs TLS there"):
        start_server(tmp_path, ("--web", "0.0.0.0:0", "--tls", "off"))
