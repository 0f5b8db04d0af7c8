"""`dlcmd dashboard`: the web page of a server, or of the embedded server of this home."""

import html
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click

from dieselfs.errors import DieselfsError
from dieselfs.net.private_file import write_private_file
from dieselfs.process.state_dirs import make_private, runtime_folder
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.session import Session

LEASE_S = 20
RENEW_S = 5.0
"""How often the embedded server is asked to keep the page."""


@options.verb(
    "dashboard", "dlcmd dashboard", "dlcmd dashboard --open", "dlcmd dashboard --server tcp://10.0.0.5"
)
@options.flag("--open", "is_opened", text="Open the page in your browser.")
def dashboard(session: Session, is_opened: bool) -> int:
    """Print a link to the web page: datasets, jobs, rates and errors, in a browser.

    The link logs one browser in, as you, once, within 10 minutes. Without a configured server, this serves the page of
    your data on this machine until Ctrl-C.
    """
    client, is_embedded = session.client, session.settings().server is None
    link = client.open_page(LEASE_S)
    url = f"{link.address}#login={link.token}"
    output = session.output
    if link.fingerprint:
        shown = ":".join(f"{byte:02X}" for byte in link.fingerprint)
        output.note(f"certificate of the page (SHA-256): {shown}")
    fields = {"url": url, "expires_s": link.expires_s, "fingerprint": link.fingerprint.hex()}
    if not is_embedded:
        _show(output, url, fields, is_opened)
        return output.summary("", {})
    try:
        with suppress(KeyboardInterrupt):  # how it ends, also just after the link
            _show(output, url, fields, is_opened)
            output.note("serving the page; Ctrl-C ends it")
            while True:
                time.sleep(RENEW_S)
                client.keep_page(LEASE_S)
    finally:
        with suppress(DieselfsError):
            client.keep_page(0)
    return output.summary("", {})


def _show(output: Output, url: str, fields: Mapping[str, object], is_opened: bool) -> None:
    output.record("page", url, fields)
    sys.stdout.flush()
    if is_opened and click.launch(str(_redirect(url))) != 0:
        output.aside("no browser could be started: open the link yourself")


def _redirect(url: str) -> Path:
    """A private file that leads a browser to the link, which other users would see as a word of its command. The link
    is of use once, so the file stays until the next one replaces it.
    """
    make_private(runtime_folder())
    path = runtime_folder() / "dashboard.html"
    target = html.escape(url, quote=True)
    write_private_file(path, f'<meta http-equiv="refresh" content="0; url={target}">\n'.encode())
    return path
