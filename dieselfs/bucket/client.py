"""The objects below a prefix of one bucket, through obstore: whole objects, ranges and sorted listings. This module
opens files and sockets.

Only this module uses obstore, and botocore for the credentials of S3. No request takes longer than BUCKET_TIMEOUT_S.
Parts of large objects are repeated here; everything else is left to `RetryingStore`. Errors name the object and the
cause.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dieselfs.bucket.errors import parse_failure
from dieselfs.bucket.signed import Failed, SignedReads
from dieselfs.bucket.url import BucketUrl, check_credential, check_endpoint, check_name, endpoint_danger
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, Unavailable, os_errors_as
from dieselfs.limits import MIB

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Credential

CONNECT_TIMEOUT_S = 3.0
BUCKET_TIMEOUT_S = 10.0
"""Limit of one request, from its first byte to the last of the answer. 64 MiB then need 6.7 MB/s."""

SIGNED_S = 300.0
"""How long a URL of a read is valid, also if the clock of the storage differs."""

CREDENTIALS_AGE_MAX_S = 300.0
"""How long credentials are used before botocore is asked again; it renews them ten minutes before they expire."""

_RENEWED_BEFORE_S = 300.0
"""obstore asks for new credentials this long before the old ones expire."""

PART_BYTES = 8 * MIB
"""Objects that are larger and may be replaced are sent and read in parts of this size, PARTS_AT_ONCE_MAX at once."""

PARTS_AT_ONCE_MAX = 4
PART_RETRIES_MAX = 4
PART_RETRY_S_MAX = 8.0
"""Only the part that failed is retried: PART_RETRIES_MAX times, within PART_RETRY_S_MAX of its first request."""

READ_TRIES_MAX = 8
"""Tries to read an object that is replaced meanwhile."""

LISTED_AT_ONCE = 1000
"""S3 lists, and removes, as many in one request."""

DEFAULT_REGION = "us-east-1"

log = logging.getLogger(__name__)

_INSTALL = "in a checkout: pip install '.[s3]'"


class Bucket:
    """Raises InvalidInput for contradictory settings, Unavailable if there are no credentials. Sends no request.

    `key`: the name of an object, relative to the prefix. Every method raises Unavailable when the storage does not
    answer in time or refuses, and StorageFull when it has no room. May be used by any number of threads.
    """

    def __init__(
        self, url: BucketUrl, timeout_s: float = BUCKET_TIMEOUT_S, part_retries_max: int = PART_RETRIES_MAX
    ) -> None:
        try:
            import obstore
            from obstore import exceptions
        except ImportError as error:
            raise InvalidInput(f"store {url}: it needs the package obstore: {_INSTALL} ({error})") from None
        self._obstore = obstore
        self._errors = exceptions
        self._url = url
        open_objects = _opener(url, timeout_s)
        self._objects, self._parted = open_objects(0), open_objects(part_retries_max)
        self._signed = None
        if (
            url.kind == "s3" or "endpoint" in url.options
        ):  # those of Google and Microsoft themselves are believed
            times_s = (CONNECT_TIMEOUT_S, timeout_s)
            self._signed = SignedReads(
                _signer(url, self._objects), _authority(url), times_s, PART_RETRY_S_MAX
            )

    def __str__(self) -> str:
        return str(self._url)

    def create(self, key: str, content: bytes) -> None:
        """Create an object, atomically. Raises AlreadyExists."""
        with self._translated(key):
            self._obstore.put(self._objects, key, content, mode="create", use_multipart=False)

    def replace(self, key: str, content: bytes) -> None:
        """Create or replace an object, atomically: readers see the old or the new content.

        A process that dies meanwhile may leave parts that no listing shows.
        """
        with self._translated(key):
            self._obstore.put(
                self._parted,
                key,
                content,
                use_multipart=len(content) > PART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE_MAX,
            )

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes (at least 1) from `offset` on; fewer only at the end of the object. Raises NotFound."""
        try:
            with self._translated(key):
                return self._obstore.get_range(self._objects, key, start=offset, length=length).to_bytes()
        except _RangeBehindEnd:
            return b""

    def read_whole(self, key: str) -> bytes:
        """The content of an object that may be replaced meanwhile. Raises NotFound."""
        for _ in range(READ_TRIES_MAX):
            content = self._read_version(key)
            if content is not None:
                return content
        raise Unavailable(f"{self._where(key)}: it is replaced again and again while it is read")

    def _read_version(self, key: str) -> bytes | None:
        """None if it was replaced meanwhile."""
        with self._translated(key):
            found = self._obstore.get(self._objects, key)
            length, version = found.meta["size"], found.meta["e_tag"]
            if length <= PART_BYTES:
                return found.bytes().to_bytes()
            del found  # ends the request
        content = bytearray()
        try:
            while len(content) < length:
                end = min(len(content) + PART_BYTES, length)
                with self._translated(key):
                    part = self._obstore.get(
                        self._parted, key, options={"range": (len(content), end), "if_match": version}
                    )
                    content += part.bytes().to_bytes()
        except (_Replaced, _RangeBehindEnd):
            return None
        return bytes(content)

    def size(self, key: str) -> int:
        """Length in bytes. Raises NotFound."""
        with self._translated(key):
            return self._obstore.head(self._objects, key)["size"]

    def find(self, key: str) -> "ObjectVersion":
        """The present version of an object. Raises NotFound."""
        if self._signed is not None:
            headers, _ = self._request("HEAD", key, {})
            return ObjectVersion.of_headers(key, headers)
        with self._translated(key):
            return ObjectVersion.of(self._obstore.head(self._objects, key))

    def below(self, folder: str) -> "Iterator[ObjectVersion]":
        """The objects in a folder (empty: all), and in the folders in it, sorted as bytes."""
        return map(ObjectVersion.of, self._listed(folder))

    def read_part(self, version: "ObjectVersion", begin: int, end: int) -> bytes:
        """The bytes from `begin` to before `end`, within the object. Raises NotFound, and Damaged if the object was
        replaced.
        """
        try:
            if self._signed is not None:
                headers = {} if version.tag is None else {"If-Match": version.tag}
                return self._request("GET", version.key, headers, begin, end - begin)[1]
            with self._translated(version.key):
                options: GetOptions = {"range": (begin, end), "if_match": version.tag}
                return self._obstore.get(self._parted, version.key, options=options).bytes().to_bytes()
        except (_Replaced, _RangeBehindEnd):
            raise Damaged(f"{self._where(version.key)}: it was replaced while it was read") from None

    def _request(
        self, method: str, key: str, headers: Mapping[str, str], begin: int = 0, length: int = 0
    ) -> tuple[Mapping[str, str], bytes]:
        """A read of a source, which somebody else may have named: no redirect is followed."""
        assert self._signed is not None
        try:
            return self._signed.request(method, key, headers, begin, length)
        except Failed as error:
            failure, where = error.failure, self._where(key)
            if failure.status == 412:
                raise _Replaced(f"{where}: was replaced meanwhile") from None
            if failure.is_range_behind_end:
                raise _RangeBehindEnd(f"{where}: {failure.reason}") from None
            raise failure.error(where) from failure.cause

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects. No error for those that do not exist."""
        try:
            with self._translated(keys[0]):
                self._obstore.delete(self._objects, keys)
        except NotFound:
            for key in keys if len(keys) > 1 else ():
                self.remove([key])

    def keys(self, folder: str, after: str = "") -> Iterator[str]:
        """The names of the objects in `folder` that are after `after`, sorted as bytes, without the folder."""
        begin = len(folder) + 1
        return (row["path"][begin:] for row in self._listed(folder, f"{folder}/{after}" if after else None))

    def _listed(self, folder: str, after: str | None = None) -> "Iterator[ObjectMeta]":
        with self._translated(folder):
            pages = self._obstore.list(self._objects, folder or None, offset=after, chunk_size=LISTED_AT_ONCE)
        while True:
            with self._translated(folder):
                page = next(pages, None)
            if page is None:
                return
            yield from page

    def folders(self) -> list[str]:
        """The names of the folders directly below the prefix."""
        with self._translated(""):
            found = self._obstore.list_with_delimiter(self._objects)
        return sorted(path.rpartition("/")[2] for path in found["common_prefixes"])

    def _where(self, key: str) -> str:
        return f"object store {self._url}" + (f": {key}" if key else "")

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """Turn an error of obstore into a DieselfsError with the object and the cause."""
        try:
            yield
        except self._errors.AlreadyExistsError:
            raise AlreadyExists(f"{self._where(key)}: already exists") from None
        except self._errors.PreconditionError:
            raise _Replaced(f"{self._where(key)}: was replaced meanwhile") from None
        except (self._errors.BaseError, OSError) as error:
            failure = parse_failure(str(error))
            if failure.is_range_behind_end:
                raise _RangeBehindEnd(f"{self._where(key)}: {failure.reason}") from None
            if isinstance(error, FileNotFoundError) and not failure.is_bucket_missing:
                raise NotFound(f"{self._where(key)}: there is no such object") from None
            raise failure.error(self._where(key)) from failure.cause


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One version of an object. `tag`: the ETag, None where the storage has none."""

    key: str
    size: int
    mtime_ns: int
    tag: str | None

    @classmethod
    def of_headers(cls, key: str, headers: Mapping[str, str]) -> "ObjectVersion":
        """Raises Unavailable if they are not those of an object."""
        try:
            modified = parsedate_to_datetime(headers["Last-Modified"])
            return cls(
                key, int(headers["Content-Length"]), int(modified.timestamp()) * 10**9, headers.get("ETag")
            )
        except (KeyError, ValueError) as error:
            raise Unavailable(f"{key}: what answers is no storage of objects: {error}") from None

    @classmethod
    def of(cls, meta: "ObjectMeta") -> "ObjectVersion":
        mtime_ns = int(meta["last_modified"].timestamp()) * 10**9
        return cls(meta["path"], meta["size"], mtime_ns, meta["e_tag"])


class _Replaced(Unavailable):
    """The object is no longer the version that was asked for."""


class _RangeBehindEnd(Unavailable):
    """The object ends before the first requested byte."""


def _opener(url: BucketUrl, timeout_s: float) -> "Callable[[int], ObjectStore]":
    """Opens the bucket, for as many retries of a request."""
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    endpoint = _endpoint(url)
    client = _client_options(url, endpoint, timeout_s)
    if danger := endpoint_danger(endpoint):
        log.warning("object store %s: %s %s (docs/guide/hardening.md)", url, endpoint, danger)
    stores: dict[str, tuple[Any, str]] = {
        "s3": (S3Store, "endpoint"),
        "gs": (GCSStore, "base_url"),
        "az": (AzureStore, "endpoint"),
    }
    store, endpoint_name = stores[url.kind]
    config: dict[str, Any] = {"skip_signature": url.is_anonymous}
    config |= {endpoint_name: endpoint} if endpoint else {}
    config |= {"account_name": url.options["account"]} if "account" in url.options else {}
    provider: dict[str, Any] = {}
    if url.kind == "s3":
        provider["credential_provider"], config["region"] = _s3_credentials(url)

    def open_objects(retries_max: int) -> Any:
        retry: RetryConfig = {
            "max_retries": retries_max,
            "retry_timeout": timedelta(seconds=PART_RETRY_S_MAX),
        }
        try:
            return store(
                url.bucket,
                prefix=url.prefix or None,
                config=config,
                client_options=client,
                retry_config=retry,
                **provider,
            )
        except (BaseError, ValueError) as error:
            raise InvalidInput(f"store {url}: {parse_failure(str(error)).reason}") from None

    return open_objects


def _signer(url: BucketUrl, objects: Any) -> Callable[[str, str], str]:
    """From method and key to a URL that is valid for SIGNED_S; of an anonymous request, without a signature."""
    import obstore
    from obstore.exceptions import BaseError

    base = ""
    if url.is_anonymous:
        base = _endpoint(url) or f"https://s3.{_s3_credentials(url)[1]}.amazonaws.com"

    make: Any = obstore.sign

    def sign(method: str, key: str) -> str:
        if url.is_anonymous:
            return "/".join(filter(None, (base.rstrip("/"), url.bucket, url.prefix, quote(key))))
        if url.kind != "s3" and quote(key) != key:  # obstore signs another name
            raise InvalidInput(
                f"object store {url}: {key}: such an endpoint needs a name of A-Z a-z 0-9 . _ ~ - /"
            )
        if url.kind == "az":
            method = "GET"  # obstore signs no rights for HEAD, for which Azure wants those of GET
        try:
            signed: str = make(objects, method, key, timedelta(seconds=SIGNED_S))
        except (BaseError, OSError) as error:
            raise Unavailable(
                f"object store {url}: {key}: these credentials cannot sign a request{_SIGNING[url.kind]}: "
                f"{parse_failure(str(error)).reason}"
            ) from None
        return signed

    return sign


_SIGNING: Mapping[str, str] = {
    "s3": "",
    "gs": ", which another endpoint than that of Google needs; use the file of a service account",
    "az": ", which another endpoint than that of Azure needs; use the key of the account",
}
"""What to do without them, by kind of store."""


def _authority(url: BucketUrl) -> str | None:
    """The file of certificates that are trusted as well."""
    return url.options.get("ca") or (os.environ.get("AWS_CA_BUNDLE") if url.kind == "s3" else None)


def _endpoint(url: BucketUrl) -> str | None:
    """The endpoint of the URL; of S3 also that which the environment gives, by the names of the AWS tools."""
    if url.kind != "s3" or "endpoint" in url.options:
        return url.options.get("endpoint")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if endpoint := os.environ.get(name):
            check_endpoint(endpoint, name)
            return endpoint
    return None


def _client_options(url: BucketUrl, endpoint: str | None, timeout_s: float) -> "ClientConfig":
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "timeout": timedelta(seconds=timeout_s),
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
    }
    if authority := _authority(url):
        with os_errors_as(InvalidInput, f"store {url}: ca: cannot read {authority}"):
            options["root_certificate"] = Path(authority).read_bytes()
    return options


def _s3_credentials(url: BucketUrl) -> tuple[Callable[[], "S3Credential"] | None, str]:
    """A source of credentials that are valid now, and the region: as the AWS tools find them. None for anonymous
    requests.
    """
    try:
        from botocore.exceptions import BotoCoreError, ConfigParseError, ProfileNotFound
        from botocore.session import Session
    except ImportError as error:
        raise InvalidInput(f"store {url}: it needs the package botocore: {_INSTALL} ({error})") from None
    try:
        session = Session(profile=url.options.get("profile"))
        found = None if url.is_anonymous else session.get_credentials()
        region = url.options.get("region") or session.get_config_variable("region") or DEFAULT_REGION
    except (ConfigParseError, ProfileNotFound) as error:
        raise InvalidInput(f"store {url}: {error}") from None
    except BotoCoreError as error:  # a process or a service that gives none
        raise Unavailable(f"store {url}: {error}") from None
    check_name("region", region, f"store {url}")
    if url.is_anonymous:
        return None, region
    if found is None:
        raise Unavailable(
            f"store {url}: no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or use a profile (AWS_PROFILE, profile=NAME) or the role of the machine; for a public bucket, write "
            "?anonymous=true behind the URL"
        )

    def current() -> "S3Credential":
        frozen = found.get_frozen_credentials()
        check_credential("access key", frozen.access_key, f"store {url}")
        check_credential("secret key", frozen.secret_key, f"store {url}")
        if frozen.token:
            check_credential("session token", frozen.token, f"store {url}")
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token or None,
            "expires_at": datetime.now(UTC) + timedelta(seconds=CREDENTIALS_AGE_MAX_S + _RENEWED_BEFORE_S),
        }

    try:
        current()
    except BotoCoreError as error:
        raise Unavailable(f"store {url}: {error}") from None
    return current, region
