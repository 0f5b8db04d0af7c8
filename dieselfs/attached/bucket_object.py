"""An object in S3, Google Cloud Storage or Azure as a source. This module sends requests."""

import os
from collections.abc import Callable
from functools import cache

from dieselfs.attached.interface import OpenSource
from dieselfs.bucket.client import Bucket, ObjectVersion
from dieselfs.bucket.url import BucketUrl, parse_object
from dieselfs.chunk.source import ETAG, MODIFIED, AttachedSource
from dieselfs.errors import InvalidInput

_UNSAFE = frozenset(("", ".", ".."))


class BucketObject(OpenSource):
    """The storage compares the version at each read, so an object with an ETag is not looked up."""

    def __init__(
        self, location: bytes, check_allowed: Callable[[bytes], None], known: AttachedSource | None = None
    ) -> None:
        """`known`: the version to read; None looks up the present one. Raises InvalidInput, AccessDenied, NotFound,
        Unavailable.
        """
        url, key = parse_object(os.fsdecode(location))
        if _UNSAFE & set(key.split("/")):
            raise InvalidInput(
                f"{os.fsdecode(location)!r} is not the URL of an object; write s3://BUCKET/KEY"
            )
        check_allowed(location)
        self._bucket = opened(str(url), tuple(url.options.items()))
        if known is not None and known.mark.startswith(ETAG):
            self._version = ObjectVersion(key, known.size_bytes, 0, known.mark.removeprefix(ETAG))
        else:
            self._version = self._bucket.find(key)
        tag, self.mtime_ns = self._version.tag, self._version.mtime_ns
        mark = f"{MODIFIED}{self.mtime_ns}" if tag is None else ETAG + tag
        self.source = AttachedSource(location, self._version.size, mark)

    def read(self, offset: int, length: int) -> bytes:
        return self._bucket.read_part(self._version, offset, offset + length) if length else b""


@cache
def opened(url: str, options: tuple[tuple[str, str], ...]) -> Bucket:
    """One for all objects of a bucket, with its connections. Raises InvalidInput, Unavailable without credentials."""
    kind, _, bucket = url.partition("://")
    return Bucket(BucketUrl(kind, bucket, "", dict(options)))


def is_below(location: bytes, root: str) -> bool:
    """Whether the object at a URL is in the bucket and in the folder of another URL, with the same options."""
    url, key = parse_object(os.fsdecode(location))
    root_url, folder = parse_object(root)
    folder = folder.strip("/")
    return url == root_url and (not folder or key.startswith(folder + "/"))
