"""Archives whose bytes depend on nothing but the names, modes and contents of their files, and one time. No I/O."""

import gzip
import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

COMPRESSION = 2
"""Of packages, 0 to 9: the default, 6, takes many times as long for a tenth less."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, or with `link` a symbolic link to that path. Folders need none: those of the paths are made."""

    content: bytes = b""
    is_program: bool = False
    link: str = ""

    def member(self, name: str) -> tarfile.TarInfo:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(self.content), 0o755 if self.is_program else 0o644
        if self.link:
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, self.link, 0o777
        return member


Entries = Mapping[str, Entry]
"""By path, without a slash at the beginning."""


def tar(entries: Entries, time_s: int, root: str = "") -> bytes:
    """The files and their folders by name, all of root and of one time; `root` begins each name."""
    folders = {str(folder) for name in entries for folder in PurePosixPath(name).parents} - {"."}
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(folders | entries.keys()):
            entry = entries.get(name)
            member = entry.member(root + name) if entry else _folder(root + name)
            member.mtime, member.uname, member.gname = time_s, "root", "root"
            archive.addfile(member, io.BytesIO(entry.content) if entry else None)
    return written.getvalue()


def _folder(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    return member


def tar_gz(entries: Entries, time_s: int) -> bytes:
    return gzip.compress(tar(entries, time_s), mtime=0)


def deb(control: Entries, data: Entries, time_s: int) -> bytes:
    """A Debian package (deb(5)): `control` has the file `control` and the scripts, `data` the files to install."""
    return b"!<arch>\n" + b"".join(
        _ar_member(name, content, time_s)
        for name, content in (
            ("debian-binary", b"2.0\n"),
            ("control.tar.xz", lzma.compress(tar(control, time_s, "./"))),
            ("data.tar.xz", lzma.compress(tar(data, time_s, "./"), preset=COMPRESSION)),
        )
    )


def _ar_member(name: str, content: bytes, time_s: int) -> bytes:
    head = f"{name:<16}{time_s:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return head + content + b"\n" * (len(content) % 2)


def members(archive: bytes) -> Iterator[tuple[str, Entry]]:
    """The files and links of a tar archive, however it is compressed."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for member in opened:
            if member.issym():
                yield member.name, Entry(link=member.linkname)
            elif (file := opened.extractfile(member)) is not None:
                yield member.name, Entry(file.read(), bool(member.mode & 0o100))


def image(packed: Entries) -> dict[str, Entry]:
    """A container image (`docker save`) without the name of the container in which it was built, without its names but
    the first, and without the files for programs that do not read its manifest.
    """
    (manifest,) = json.loads(packed["manifest.json"].content)
    config = json.loads(packed[manifest["Config"]].content)
    config.pop("container", None)
    config.pop("parent", None)  # its digest covers the name of the container in which it was built
    for part in ("config", "container_config"):
        config.get(part, {}).pop("Hostname", None)
    content = json.dumps(config).encode()
    manifest["RepoTags"] = manifest["RepoTags"][:1]  # another one is that of the build
    manifest["Config"] = f"{hashlib.sha256(content).hexdigest()}.json"
    layers = {name: packed[name] for name in manifest["Layers"]}
    return {
        **layers,
        manifest["Config"]: Entry(content),
        "manifest.json": Entry(json.dumps([manifest]).encode()),
    }
