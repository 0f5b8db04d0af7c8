"""Objects in S3, Google Cloud Storage and Azure as sources: one, all below a folder, or those of a pattern.

This module sends requests.
"""

from functools import cache, partial

from dieselfs.bucket.client import Bucket, ObjectVersion
from dieselfs.bucket.url import parse_object
from dieselfs.errors import NotFound
from dieselfs_tools.archives.importing.remote_stream import RemoteStream
from dieselfs_tools.archives.importing.sample_shards import INDEX
from dieselfs_tools.cli.patterns import Pattern

_WILD = frozenset("*[{")


@cache
def opened(url: str) -> Bucket:
    """The bucket of an object. Raises InvalidInput, Unavailable without credentials."""
    return Bucket(parse_object(url)[0])


def _bucket(name: str, key: str) -> Bucket:
    """One for all objects with the same options."""
    return opened(_named(name, key, ""))


def expanded(name: str) -> list[str]:
    """The sources that a URL names, sorted: an object, the objects that match a pattern, or those below a folder, which
    is one source itself if it has an index (MDS, LitData).

    Raises InvalidInput, NotFound, Unavailable.
    """
    _, key = parse_object(name)
    bucket = _bucket(name, key)
    wild = next((place for place, character in enumerate(key) if character in _WILD), None)
    if wild is not None:
        pattern = Pattern("/" + key)
        folder = key[:wild].rpartition("/")[0]
        found = [one.key for one in bucket.below(folder) if pattern.matches(one.key.encode())]
    elif key and not key.endswith("/") and _exists(bucket, key):
        return [name]
    else:
        folder = key.strip("/")
        found = [one.key for one in bucket.below(folder) if one.size]
        if f"{folder}/{INDEX}".lstrip("/") in found:
            return [_named(name, key, folder + "/")]
    if not found:
        raise NotFound(f"{_named(name, key, key)}: there is no such object, and none below it")
    return [_named(name, key, one) for one in sorted(found)]


def _exists(bucket: Bucket, key: str) -> bool:
    try:
        bucket.find(key)
    except NotFound:
        return False
    return True


def _named(name: str, key: str, other: str) -> str:
    """The URL with another key."""
    url, _ = parse_object(name)
    options = name[len(f"{url.kind}://{url.bucket}/") + len(key) :]
    return f"{url.kind}://{url.bucket}/{other}{options}"


def beside(name: str, base: str) -> str:
    """The URL of an object in the folder `name`."""
    _, key = parse_object(name)
    return _named(name, key, key + base)


class BucketFile(RemoteStream):
    """One version of an object as a stream."""

    def __init__(self, name: str) -> None:
        """Raises InvalidInput, NotFound, Unavailable. Reading raises Damaged if the object was replaced."""
        _, key = parse_object(name)
        bucket = _bucket(name, key)
        self.version: ObjectVersion = bucket.find(key)
        super().__init__(partial(bucket.read_part, self.version), self.version.size, self.version.mtime_ns)
