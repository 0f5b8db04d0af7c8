"""The sources of attached chunks, as this server may read them. This module opens files and sends requests.

Which sources may be read is the operator's decision (`attach_roots`): the server can read more than its users.
"""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from dieselfs.attached import web_url
from dieselfs.attached.opening import OpenSource, open_source
from dieselfs.attached.web_url import is_web_url
from dieselfs.chunk.format import Preamble
from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs_server.store.interface import OpenPayload

_REFUSED = "this server attaches nothing: see its setting attach_roots; dlcmd import copies the bytes instead"
_OUTSIDE = "it is not below attach_roots of this server; dlcmd import copies the bytes instead"


@dataclass(frozen=True, slots=True)
class Sources:
    """`roots`: what may be read: folders, as absolute paths, and URLs of folders of buckets and of the web; None: all
    that the user of the server may read.
    """

    roots: Sequence[str] | None = ()

    def open(self, source: AttachedSource, is_to_read: bool = False) -> OpenSource:
        """The version of the object that `source` names; the caller closes it. `is_to_read`: it may be compared at the
        first read, instead of now.

        Raises AccessDenied, NotFound, Unavailable, InvalidInput for no regular file; Damaged if the object has changed.
        """
        if self.roots is not None and not self.roots:
            raise AccessDenied(f"{source.name}: {_REFUSED}")
        opened = open_source(source.location, self._check_allowed, source if is_to_read else None)
        found = opened.source
        if found.version != source.version:
            opened.close()
            raise Damaged(
                f"{source.name}: it has changed since it was attached ({source.size_bytes} bytes and {source.mark} "
                f"then, {found.size_bytes} bytes and {found.mark} now); attach it again"
            )
        return opened

    def open_attached(self, source: AttachedSource, is_to_read: bool = True) -> OpenSource:
        """As `open`, for a chunk that is attached: Damaged, or Unavailable if a later try can succeed."""
        try:
            return self.open(source, is_to_read)
        except (AccessDenied, InvalidInput, NotFound) as error:
            raise Damaged(f"attached source {error}") from error

    def open_payload(self, preamble: Preamble, source: AttachedSource) -> OpenPayload:
        """The payload of an attached chunk in an open file, which the caller verifies. Raises Damaged, Unavailable."""
        name, length = payload_name(preamble, source), preamble.payload_length
        with closing(self.open_attached(source)) as opened:
            try:
                if opened.descriptor is not None:
                    return OpenPayload(os.dup(opened.descriptor), source.offset, length, name)
                content = memoryview(opened.read(source.offset, length))
                memory = OpenPayload(os.memfd_create("dieselfs-source", os.MFD_CLOEXEC), 0, length, name)
                try:
                    while content:
                        content = content[os.write(memory.descriptor, content) :]
                    return memory
                except BaseException:
                    os.close(memory.descriptor)
                    raise
            except OSError as error:
                raise Unavailable(f"{name}: {error.strerror}") from error

    def _check_allowed(self, location: bytes) -> None:
        """Raise AccessDenied for a location, without symbolic links, that is not below a root."""
        if self.roots is None:
            return
        if not any(_is_below(location, root) for root in self.roots):
            raise AccessDenied(f"{AttachedSource(location, 0, '').name}: {_OUTSIDE}")


def _is_below(location: bytes, root: str) -> bool:
    is_file = location.startswith(b"/")
    if is_file != root.startswith("/"):
        return False
    if is_file:
        # At each call: a root may become another folder while the server runs.
        return location.startswith(os.path.realpath(os.fsencode(root)).rstrip(b"/") + b"/")
    url = os.fsdecode(location)
    if is_web_url(url) or is_web_url(root):
        return is_web_url(url) and is_web_url(root) and web_url.is_below(url, root)
    from dieselfs.attached.bucket_object import is_below  # which needs the extra s3

    return is_below(location, root)


def payload_name(preamble: Preamble, source: AttachedSource) -> str:
    """How messages name the payload of an attached chunk."""
    return f"{source.name}, attached as chunk {chunk_name(preamble.chunk_id)} from offset {source.offset}"
