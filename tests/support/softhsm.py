"""A token in software, of SoftHSM."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

LIBRARY = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "4711"


@dataclass(frozen=True)
class SoftToken:
    """`folder`: its objects, encrypted with the PIN."""

    folder: Path
    pin_file: Path

    def uri(self, label: str, token: str = "dieselfs") -> str:
        return f"pkcs11:token={token};object={label}?module-path={LIBRARY}&pin-source={self.pin_file}"


@contextmanager
def soft_token(folder: Path) -> Iterator[SoftToken]:
    """A new token, for this process and those that it starts. A process has one: the library reads the place once."""
    if shutil.which("softhsm2-util") is None or not LIBRARY.exists():
        pytest.skip("needs SoftHSM: apt-get install softhsm2")
    pytest.importorskip("pkcs11", reason="needs the extra 'pkcs11'")
    tokens, pin_file, settings = folder / "tokens", folder / "pin", folder / "softhsm2.conf"
    tokens.mkdir(mode=0o700, parents=True)
    settings.write_text(f"directories.tokendir = {tokens}\nobjectstore.backend = file\nlog.level = ERROR\n")
    pin_file.touch(mode=0o600)
    pin_file.write_text(f"{PIN}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(settings))
        command = [
            "softhsm2-util",
            "--init-token",
            "--free",
            "--label",
            "dieselfs",
            "--pin",
            PIN,
            "--so-pin",
            PIN,
        ]
        subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
        yield SoftToken(tokens, pin_file)
