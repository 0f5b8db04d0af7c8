"""The page in a real browser, Debian's chromium: logins, layout, accessibility, and what changes while one looks."""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Locator, Page, Response, expect, sync_playwright

from dieselfs.cluster.member import Member
from dieselfs.cluster.node_progress import NodeProgress
from dieselfs.cluster.secret import JobSecret
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError
from dieselfs.limits import GIB, MIB
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.limit_kinds import QuotaRecord
from dieselfs.rpc.members import JobId
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from lab.network import clear
from tests.support import hostile_files, webm
from tests.support.dlcmd import wait_until
from tests.support.many_datasets import add_datasets
from tests.support.server import RunningServer, running_server
from tests.support.small_chunks import store

CHROMIUM = shutil.which("chromium")
PLACES = (
    "",
    "datasets",
    "datasets/counted",
    "datasets/looked?folder=a",
    "datasets/looked?folder=b",
    "jobs",
    "jobs/counted/train/{job}",
    "usage",
    "errors",
)
SECRET = JobSecret(b"s" * 32)
NODES = 12
TIMEOUT_MS = 60_000
expect.set_options(timeout=TIMEOUT_MS)
TABS_MAX = 50
DRAWN = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return data.some((value, place) => place % 4 === 3 && value > 0);
}"""
"""Whether a canvas shows anything."""
FETCHED = """async () => {
    const live = await (await fetch("/api/live?span_s=600")).json();
    return Math.max(...live.mount_bytes);
}"""
"""The largest rate at which mounts have fetched, as the chart has it."""
GREY = """video => {
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.drawImage(video, 0, 0);
    return canvas.getImageData(5, 5, 1, 1).data[0];
}"""
"""How light the picture is that a video shows."""

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a dataset, a tag, a job, an error, and ten thousand other datasets."""
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("XDG_RUNTIME_DIR", str(folder))  # where the server finds daemons of its user
        with running_server(folder, ("--web", "127.0.0.1:0")) as server:
            with Dataset(server.settings(), "counted", must_exist=False) as data:
                store(data, tmp_path_factory.mktemp("files"))
            with Dataset(server.settings(), "looked", must_exist=False) as data:
                data.create()
                hostile_files.store(data)
            with closing(server.client()) as client:
                client.put_tag("counted", "v1")
                join_all(server)
                with pytest.raises(DieselfsError):
                    client.dataset("<img src=x onerror=alert(1)>")
            add_datasets(folder / "metadata.db", 10_000)
            server.user("ann", counted="read")
            with closing(server.client()) as client:
                client.set_owner("counted", "ann")
                client.set_quota(QuotaRecord("dataset:counted", 8 * MIB, 250))
                client.set_quota(QuotaRecord("user:ann", 13 * MIB // 2, -1))
            yield server


def join_all(server: RunningServer) -> None:
    terms = JobId("counted", "train", 1, b"d" * 32)
    with closing(server.client()) as client:
        for rank in range(NODES):
            member = Member(
                f"node-{rank:02}", rank, TcpAddress("10.0.0.1", 7000), (1 + rank % 3) * GIB, bytes(16)
            )
            told = NodeProgress(60, 2, 250 + rank, 1000, 30, 100, limit="store", text="100 reads a second.")
            sealed = SECRET.seal(member, terms, 0)
            client.join_job(terms, SECRET.fingerprint(), sealed, 0, told.encode())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must log no error, and ask no host but the server's; the answer 401 to a first look is no error."""
    with browser.new_context(ignore_https_errors=True) as context:
        hosts: set[str | None] = set()
        context.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda line: (
                faults.append(line.text) if line.type == "error" and "401" not in line.text else None
            ),
        )
        yield page
        assert not faults, faults
        assert hosts == {"127.0.0.1"}, hosts


def log_in(page: Page, server: RunningServer, key_file: Path | None = None) -> str:
    """As the user of the server, or of a key; returns the address of the page."""
    with closing(server.client(key_file)) as client:
        link = client.open_page(0)
    page.goto(f"{link.address}#login={link.token}")
    page.get_by_role("button", name="Log out").wait_for()
    return link.address


def show(page: Page, address: str, place: str) -> None:
    place = f"#/{place.format(job=SECRET.fingerprint().hex()[:16])}"
    page.goto(f"{address}{place}")
    page.locator(f"main[data-place='{place}']:not([aria-busy]) h1").wait_for()
    expect(page.locator("#state")).to_have_text("live")


def screenshots(folder: Path) -> Path:
    """Where they are written, for people who look: a folder that they name, or else that of the test."""
    return Path(os.environ.get("DIESELFS_SCREENSHOTS", folder))


def tab_to(page: Page, target: Locator, key: str = "Tab") -> None:
    """Press a key until the target has the focus."""
    target.wait_for()
    for _ in range(TABS_MAX):
        page.keyboard.press(key)
        if target.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"{target} cannot be reached with {key}")


def test_a_link_a_key_and_logging_out(page: Page, server: RunningServer) -> None:
    address = log_in(page, server)
    assert "login" not in page.url
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Key file").wait_for()
    page.get_by_label("or its line").fill("dieselfs-key ann k1 AAAA")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("no key file")
    page.get_by_label("or its line").fill("")
    page.get_by_label("Key file").set_input_files(server.folder / "ann.key")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#user")).to_have_text("ann")
    show(page, address, "datasets")
    expect(page.get_by_role("row")).to_have_count(2)


def test_an_open_page_follows_again_after_a_refusal_or_asks_for_a_login(
    page: Page, server: RunningServer
) -> None:
    page.route("**/events", lambda route: route.fulfill(status=401))  # as after a restart of the server
    with page.expect_response("**/events"):
        log_in(page, server)
    page.unroute("**/events")
    expect(page.locator("#state")).to_have_text("live")
    page.route("**/events", lambda route: route.fulfill(status=401))
    with page.expect_response("**/events"):
        page.reload()
    page.context.clear_cookies()
    page.get_by_label("Key file").wait_for()


def test_a_server_that_hangs_is_not_live(page: Page, server: RunningServer) -> None:
    log_in(page, server)
    expect(page.get_by_label("Health")).to_contain_text("checks")
    server.process.send_signal(signal.SIGSTOP)
    try:
        expect(page.locator("#state")).to_have_text(re.compile("no answer for [0-9]+ s"))
    finally:
        server.process.send_signal(signal.SIGCONT)
    expect(page.locator("#state")).to_have_text("live")


def test_an_ordinary_user_starts_at_the_datasets(page: Page, server: RunningServer) -> None:
    log_in(page, server, server.folder / "ann.key")
    expect(page.get_by_role("heading", name="Datasets")).to_be_visible()
    expect(page.get_by_role("link", name="Now")).to_be_hidden()


def test_no_line_is_drawn_where_samples_are_missing(page: Page, server: RunningServer) -> None:
    address = log_in(page, server)
    drawn = """async () => {
        const { Chart } = await import("/static/chart.js");
        const chart = new Chart("", String, [{ key: "a" }], { spanS: 60 });
        chart.columns = { time: [0, 2, 4, 20, 22, 24], a: [1, 1, 1, 1, null, 1] };
        return chart.data();
    }"""
    show(page, address, "")
    assert page.evaluate(drawn) == [[0, 2, 4, 17, 20, 22, 24], [1, 1, 1, None, 1, None, 1]]


@pytest.mark.parametrize(("scheme", "widths"), [("light", (1280, 390)), ("dark", (1280, 390))])
def test_layout_and_accessibility(
    page: Page, server: RunningServer, scheme: str, widths: tuple[int, ...], tmp_path: Path
) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    address = log_in(page, server)
    found = []
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        for place in PLACES:
            if place.startswith("jobs"):
                join_all(server)  # leases are short
            show(page, address, place)
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{place} at {width}: wider than the window")
            name = f"{place.replace('/', '-') or 'now'}-{width}-{scheme}.png"
            page.screenshot(path=screenshots(tmp_path) / name)
            for violation in Axe().run(page).response["violations"]:
                nodes = [node["html"][:120] for node in violation["nodes"][:3]]
                found.append(f"{place} at {width}: {violation['impact']} {violation['id']} {nodes}")
    assert not found, "\n".join(found)


def test_ten_thousand_datasets_by_keyboard(page: Page, server: RunningServer) -> None:
    address = log_in(page, server)
    show(page, address, "datasets")
    expect(page.get_by_role("row")).to_have_count(101)
    page.get_by_role("button", name="Size").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("rowheader").first).to_have_text("set-09999")
    expect(page.get_by_role("columnheader", name="Size")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("button", name="Size")).to_be_focused()
    page.get_by_label("Search").fill("unted")
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("link", name="counted").click()
    expect(page.get_by_role("heading", name="counted")).to_be_focused()
    expect(page.get_by_role("rowheader", name="v1")).to_be_visible()


def test_a_dataset_and_back_by_keyboard_alone(page: Page, server: RunningServer) -> None:
    with closing(server.client()) as client:
        page.goto(client.open_page(0).address)
    tab_to(page, page.get_by_label("or its line"))
    page.keyboard.insert_text((server.folder / "ann.key").read_text().strip())
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("navigation").get_by_role("link", name="Datasets"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("rowheader").get_by_role("link", name="counted"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="counted")).to_be_focused()
    tab_to(page, page.locator("main").get_by_role("link", name="Datasets"), "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Datasets")).to_be_focused()
    expect(page.get_by_role("row")).to_have_count(2)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_growth_of_a_dataset_is_drawn(page: Page, server: RunningServer, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    show(page, log_in(page, server), "datasets/counted")
    growth = page.locator("figure", has_text="Growth")
    canvas = growth.locator("canvas")
    expect(canvas).to_be_visible()
    wait_until(lambda: canvas.evaluate(DRAWN))
    box = canvas.bounding_box()
    assert box is not None and box["width"] > width / 2 - 150 and box["x"] + box["width"] <= width
    expect(growth.locator("b")).to_have_text(re.compile(r"^6\.\d+\sMiB$"))


def test_folders_pictures_text_and_sound_are_looked_at(page: Page, server: RunningServer) -> None:
    show(page, log_in(page, server), "datasets/looked")
    files = page.get_by_role("region", name="Files")
    files.get_by_role("link", name="a/").click()
    drawn = page.get_by_role("img", name="grey.PNG")
    wait_until(lambda: drawn.evaluate("image => image.naturalWidth") == 8)
    page.locator(".path").get_by_role("link", name="looked").click()
    files.get_by_role("link", name="b/").click()
    texts = {
        "lines.jsonl": '{"label": "dog"}',
        "long.txt": "The first 1\u00a0KiB of 3.91\u00a0KiB",
        "raw.bin": "not text in UTF-8",
        "\\xff.txt": "odd name",
    }
    for name, text in texts.items():
        files.get_by_role("button", name=name).click()
        expect(page.locator("[aria-live]")).to_contain_text(text)
    files.get_by_role("button", name="sound.wav").click()
    sound = page.get_by_label("sound.wav", exact=True)
    wait_until(lambda: sound.evaluate("sound => sound.duration") == 1)


@pytest.fixture(scope="module")
def watched(server: RunningServer) -> Iterator[str]:
    """A dataset with a video and a sound of 16 and 9.6 MB, of which a browser does not fetch all at first."""
    with Dataset(server.settings(), "watched", must_exist=False) as data:
        data.put("clip.webm", webm.clip())
        data.put("long.wav", hostile_files.sound(seconds=1200))
        data.flush()
        yield data.name
        data.delete_dataset()


@pytest.mark.parametrize(("name", "duration", "later"), [("clip.webm", 40, 31.5), ("long.wav", 1200, 1100.5)])
def test_a_player_plays_and_seeks_by_ranges(
    page: Page, server: RunningServer, watched: str, name: str, duration: int, later: float
) -> None:
    fetched: list[Response] = []
    page.on("response", lambda answer: fetched.append(answer) if "/data/" in answer.url else None)
    show(page, log_in(page, server), f"datasets/{watched}")
    page.get_by_role("button", name=name, exact=True).click()
    player = page.get_by_label(name, exact=True)
    wait_until(lambda: player.evaluate("player => player.duration") == duration)
    player.evaluate("player => player.play()")
    wait_until(lambda: player.evaluate("player => player.currentTime > 0.3"))
    assert fetched[0].status == 206 and "sandbox" in fetched[0].headers["content-security-policy"]
    player.evaluate("(player, later) => { player.currentTime = later; }", later)
    wait_until(lambda: player.evaluate("(player, later) => player.currentTime > later + 0.3", later))
    # Perhaps before it sought: on a loaded machine, a browser fetches ahead to the end meanwhile.
    asked = [(answer.status, answer.request.all_headers()["range"]) for answer in fetched]
    assert any(status == 206 and int(text[6:].split("-")[0]) > 5_000_000 for status, text in asked), asked
    if name == "clip.webm":
        assert player.evaluate("video => [video.videoWidth, video.videoHeight]") == [*webm.SIZE]
        player.evaluate("video => { video.pause(); video.currentTime = 20.5; }")
        wait_until(lambda: abs(player.evaluate(GREY) - webm.grey_at(20)) <= 2)


def test_classes_and_changes_are_shown_on_request(page: Page, server: RunningServer) -> None:
    show(page, log_in(page, server), "datasets/looked")
    page.get_by_text("Classes and sizes").click()
    expect(page.locator(".bars").first.get_by_role("listitem")).to_contain_text(
        ["hostile", "b 5 files", "a 1 files"]
    )
    page.get_by_text("What changed").click()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_text("16 files are the same.")).to_be_visible()


def test_nothing_in_a_dataset_runs(browser: Browser, server: RunningServer) -> None:
    with browser.new_context(ignore_https_errors=True) as context:
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        address = log_in(page, server)
        show(page, address, "datasets/looked?folder=hostile")
        expect(page.locator(".picture .dim")).to_have_count(3)  # no pictures, whatever their names say
        for name in hostile_files.HOSTILE:
            if name.endswith((".png", ".gif")):
                continue
            page.get_by_role("button", name=name, exact=True).click()
            expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
        assert page.locator("main img").count() == 1  # both a picture and a script
        for name in hostile_files.HOSTILE:
            place = f"/data/looked?path={quote(quote(f'hostile/{name}'))}"
            is_loaded = "import(place).then(() => true, () => false)"
            assert not page.evaluate(f"place => {is_loaded}", place), name
            assert page.evaluate("window.ran === undefined && !document.title.includes('ran')"), name
            opened = context.new_page()
            with suppress(Error):  # it is saved, not shown
                opened.goto(f"{address.rstrip('/')}{place}")
            assert opened.evaluate("window.ran === undefined && document.title !== 'ran'"), name
            opened.close()


def test_text_of_others_is_not_parsed(page: Page, server: RunningServer) -> None:
    address = log_in(page, server)
    show(page, address, "errors")
    expect(page.get_by_role("cell", name="<img src=x onerror=alert(1)>").first).to_be_visible()
    assert page.locator("main img").count() == 0


def test_errors_and_jobs_are_searched(page: Page, server: RunningServer) -> None:
    join_all(server)
    address = log_in(page, server)
    for place, found, missing in (("errors", "get_DATASET onerror", "no error"), ("jobs", "train", "no job")):
        show(page, address, place)
        page.get_by_label("Search").fill(missing.upper() + " has this")
        expect(page.locator("main .empty")).to_have_text(re.compile(missing, re.IGNORECASE))
        page.get_by_label("Search").fill(found)
        expect(page.get_by_role("row")).to_have_count(2)
        assert "search=" in page.url


def test_a_table_stays_where_it_is_while_it_changes(page: Page, server: RunningServer) -> None:
    join_all(server)
    page.set_viewport_size({"width": 320, "height": 640})
    address = log_in(page, server)
    show(page, address, "jobs/counted/train/{job}")
    members = page.get_by_role("region", name="Members")
    members.evaluate("table => { table.focus(); table.scrollLeft = 20; table.dataset.old = 'yes'; }")
    expect(members).not_to_have_attribute("data-old", "yes")
    assert members.evaluate("table => table.scrollLeft") == 20
    expect(members).to_be_focused()


def test_quotas_are_text_beside_their_bars(page: Page, server: RunningServer) -> None:
    address = log_in(page, server)
    show(page, address, "datasets/counted")
    quotas = page.locator("section", has=page.get_by_role("heading", name="Quotas"))
    expect(quotas.locator("dt")).to_have_text(
        ["This dataset: bytes of chunks", "This dataset: files", "All datasets of ann: bytes of chunks"]
    )
    states = [
        r"^6\.\d+\sMiB of 8\sMiB 7\d(\.\d)?\s%$",
        r"^257 of 250 103\s%, full$",
        r"of 6\.50\sMiB 9\d(\.\d)?\s%, nearly full$",
    ]
    expect(quotas.locator("dd")).to_have_text([re.compile(state) for state in states])
    expect(page.locator(".tiles", has_text="Written by all")).to_contain_text(
        re.compile(r"Written by all\s*6\.\d+\sMiB")
    )
    log_in(page, server, server.folder / "ann.key")
    show(page, address, "usage")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("rowheader")).to_have_text("ann")
    assert page.get_by_label("Search").count() == 0


def test_a_job_shows_its_nodes(page: Page, server: RunningServer) -> None:
    join_all(server)
    address = log_in(page, server)
    show(page, address, "jobs/counted/train/{job}")
    epochs = page.get_by_role("region", name="Epoch")
    expect(epochs.get_by_role("row")).to_have_count(1 + NODES)
    expect(epochs.get_by_role("row").nth(1)).to_contain_text("25")
    expect(epochs.get_by_role("row").nth(1)).to_contain_text("store")
    expect(page.locator(".map li")).to_have_count(NODES)
    expect(page.locator(".map li.late").first).to_be_visible()  # nobody renews


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
def test_figures_change_while_a_mount_reads(page: Page, server: RunningServer, tmp_path: Path) -> None:
    address = log_in(page, server)
    show(page, address, "")
    local = page.get_by_role("region", name="Mounts and caches on this machine")
    assert local.count() == 0
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("XDG_RUNTIME_DIR", str(server.folder))
        place = tmp_path / "mount"
        place.mkdir()
        (secret := tmp_path / "secret").touch(0o600)
        secret.write_text("0123456789abcdef" * 4)
        options = MountOptions(
            server=server.unix,
            memory_bytes=128 * MIB,
            log_file=f"{place}.log",
            job="alone",
            job_node="node-1",
            job_host="127.0.0.1",
            job_secret=str(secret),
        )
        control.mount("counted", place, options)
        try:
            expect(local.get_by_role("rowheader", name="counted")).to_be_visible()
            paths = (place / ".dieselfs/shuffle/seed=1,epoch=0").read_text().splitlines()
            for path in paths[: len(paths) // 2]:  # so the epoch has not ended
                (place / path).read_bytes()
            fetched = page.locator("figure", has_text="Mounts on this machine")
            expect(fetched).to_be_visible()
            wait_until(lambda: page.evaluate(FETCHED) > 0)
            expect(fetched.locator("b")).not_to_have_text("–")
            page.screenshot(path=screenshots(tmp_path) / "mount.png", full_page=True)
            show(page, address, "jobs")
            page.get_by_role("link", name="alone").click()
            epoch = page.get_by_role("region", name="Epoch").get_by_role("row").nth(1)
            expect(epoch).to_contain_text(re.compile(r"^node-1\s*0\s*\d\d(\.\d)?\s%"))
            page.screenshot(path=screenshots(tmp_path) / "job.png", full_page=True)
        finally:
            clear(place)
    expect(local).to_have_count(0)
