"""The URL of a bucket: where chunks are in S3, Google Cloud Storage or Azure, and which options it takes. No I/O.

s3://BUCKET/PREFIX?endpoint=https://HOST:PORT&region=NAME&profile=NAME&ca=FILE
gs://BUCKET/PREFIX
az://CONTAINER/PREFIX?account=NAME&endpoint=https://HOST:PORT&ca=FILE
...?anonymous=true    a public bucket, without credentials
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from dieselfs.errors import InvalidInput
from dieselfs.net.address import TcpAddress, split

OPTIONS: Mapping[str, frozenset[str]] = {
    "s3": frozenset(("endpoint", "region", "profile", "ca", "anonymous")),
    "gs": frozenset(("endpoint", "ca", "anonymous")),
    "az": frozenset(("account", "endpoint", "ca", "anonymous")),
}
"""By kind of store. None is a secret: a command line and a log show them."""

FORMS: Mapping[str, str] = {
    "s3": "s3://BUCKET/PREFIX?endpoint=https://HOST:PORT&region=NAME",
    "gs": "gs://BUCKET/PREFIX",
    "az": "az://CONTAINER/PREFIX?account=NAME",
}
"""How messages show a URL of each kind."""


_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_VISIBLE = re.compile(r"[!-~]+")
_NAMES = {"region": re.compile(r"[A-Za-z0-9_-]{1,100}"), "account": re.compile(r"[A-Za-z0-9-]{1,100}")}


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """`kind` is a key of OPTIONS; `prefix` is empty, or folders without a slash at either end."""

    kind: str
    bucket: str
    prefix: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> "BucketUrl":
        """Raises InvalidInput. The message never repeats what may be a secret."""
        parts = split(url)
        if parts.scheme not in OPTIONS:
            raise InvalidInput(f"URLs of buckets begin with {', '.join(f'{kind}://' for kind in OPTIONS)}")
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if "@" in parts.netloc:
            raise InvalidInput(
                f"store {place!r}: credentials do not belong into a URL; {_ELSEWHERE[parts.scheme]}"
            )
        bucket, prefix = parts.netloc, unquote(parts.path).strip("/")
        if not _BUCKET.fullmatch(bucket):
            raise InvalidInput(
                f"store {place!r}: {bucket!r} is not the name of a bucket; write {FORMS[parts.scheme]}"
            )
        if (prefix and not _PREFIX.fullmatch(prefix)) or {".", ".."} & set(prefix.split("/")):
            raise InvalidInput(f"store {place!r}: a prefix has letters, digits and . _ - /")
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        options = dict(pairs)
        known = OPTIONS[parts.scheme]
        if unknown := options.keys() - known:
            raise InvalidInput(
                f"store {place!r}: unknown option {min(unknown)!r}; the options are {', '.join(sorted(known))}. "
                f"For credentials, {_ELSEWHERE[parts.scheme]}"
            )
        if len(options) < len(pairs) or not all(options.values()):
            raise InvalidInput(f"store {place!r}: give each option once, with a value")
        if "endpoint" in options:
            check_endpoint(options["endpoint"], f"store {place!r}")
        if options.get("anonymous", "true") != "true":
            raise InvalidInput(f"store {place!r}: write anonymous=true, or leave it out")
        if "anonymous" in options and "profile" in options:
            raise InvalidInput(f"store {place!r}: anonymous and profile exclude each other")
        for name in options.keys() & _NAMES.keys():
            check_name(name, options[name], f"store {place!r}")
        return cls(parts.scheme, bucket, prefix, options)

    @property
    def is_anonymous(self) -> bool:
        """Whether no credentials are used."""
        return "anonymous" in self.options

    def __str__(self) -> str:
        return f"{self.kind}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


_OBJECT = re.compile(r"(?P<bucket>[a-z0-9]+://[^/?]*)/?(?P<key>.*?)(?P<options>\?[a-z]+=.*)?", re.DOTALL)


def parse_object(url: str) -> tuple[BucketUrl, str]:
    """The bucket, without a prefix, and the key of `s3://BUCKET/KEY?endpoint=...`. The key is as it stands there, with
    any characters. Raises InvalidInput.
    """
    match = _OBJECT.fullmatch(url)
    if match is None:
        raise InvalidInput(f"{url!r} is not the URL of an object; write for example s3://BUCKET/KEY")
    return BucketUrl.parse(match["bucket"] + (match["options"] or "")), match["key"]


def is_object_url(text: str) -> bool:
    """Whether a text begins as the URL of an object or of a bucket."""
    return text.startswith(tuple(f"{kind}://" for kind in OPTIONS))


def check_endpoint(endpoint: str, where: str) -> None:
    """Raise InvalidInput unless this is the URL of a server. `where` begins the message."""
    try:
        parts = urlsplit(endpoint)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if (
        not is_valid
        or not _VISIBLE.fullmatch(endpoint)
        or parts.username is not None
        or parts.query
        or parts.fragment
    ):
        raise InvalidInput(
            f"{where}: the endpoint is no URL of a server; write for example https://s3.example.org:7480"
        )


def check_name(kind: str, name: str, where: str) -> None:
    """Raise InvalidInput unless `name` can be a `region` or an `account`, by `kind`. `where` begins the message."""
    if not _NAMES[kind].fullmatch(name):
        raise InvalidInput(f"{where}: {kind}: {name!r} is not a name of one; it has letters, digits and -")


def check_credential(name: str, value: str | None, where: str) -> None:
    """Raise InvalidInput for a text that can be no part of credentials: HTTP could not carry it. It is not shown."""
    if not value or not _VISIBLE.fullmatch(value):
        raise InvalidInput(
            f"{where}: the {name} is empty, or has a line break, a space, or a letter that is not ASCII"
        )


def endpoint_danger(endpoint: str | None) -> str:
    """What hosts on the network between can do; empty if nothing, or if the endpoint is on this machine."""
    parts = urlsplit(endpoint or "")
    if parts.scheme != "http" or TcpAddress(parts.hostname or "", parts.port or 80).is_loopback:
        return ""
    return "is used without TLS: hosts on the way can read and change all data, and pose as this server"


_ELSEWHERE = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or the role of the machine",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a file, or use the account of the machine",
    "az": "set AZURE_STORAGE_ACCOUNT_KEY, or use the identity of the machine",
}
