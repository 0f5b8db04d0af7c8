"""What the errors of object storage mean: texts of obstore, with the answers of S3, GCS and Azure in them. No I/O."""

import errno
import re
from dataclasses import dataclass

from dieselfs.errors import DieselfsError, NotFound, StorageFull, Unavailable

_STATUS = re.compile(r"status code: (\d{3}) ?([A-Za-z -]*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.-]{1,100})</Code>|\"code\": ?\"([A-Za-z]{1,100})\"")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})|\"message\": ?\"([^\"]{1,300})")
_SYSTEM = re.compile(r"\b(?:message|error): \"([^\"]{1,300})\"")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_DEBUG = "\n\nDebug source:"

_NO_BUCKET = frozenset(("NoSuchBucket", "ContainerNotFound"))
_FULL = frozenset(("QuotaExceeded", "StorageFull", "XMinioStorageFull", "InsufficientCapacity"))
_WRONG_REGION = frozenset(
    ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
)
_WRONG_CLOCK = frozenset(("RequestTimeTooSkewed", "RequestExpired"))
_NO_RIGHT = frozenset(("AccessDenied", "AllAccessDisabled", "AuthorizationPermissionMismatch"))


@dataclass(frozen=True, slots=True)
class Failure:
    """`status`: of HTTP, 0 without an answer. `code`: that of the storage, or empty. `reason`: one line."""

    status: int
    code: str
    reason: str

    @property
    def is_object_missing(self) -> bool:
        return self.status == 404 and not self.is_bucket_missing

    @property
    def is_bucket_missing(self) -> bool:
        return self.code in _NO_BUCKET or (self.status == 404 and "bucket does not exist" in self.reason)

    @property
    def is_range_behind_end(self) -> bool:
        return self.status == 416 or self.code == "InvalidRange" or "Wanted range starting at" in self.reason

    def error(self, where: str) -> DieselfsError:
        """The error to raise `from cause`."""
        if self.is_object_missing:
            return NotFound(f"{where}: there is no such object")
        if self.status == 507 or self.code in _FULL:
            return StorageFull(f"{where}: {self.reason}")
        advice, _ = _advice(self)
        return Unavailable(f"{where}: {self.reason}" + (f"; {advice}" if advice else ""))

    @property
    def cause(self) -> OSError | None:
        """An error with one of the numbers of `retrying.LASTING`, if a retry changes nothing; otherwise None."""
        _, number = _advice(self)
        return OSError(number, self.reason) if number else None


def _advice(failure: Failure) -> tuple[str, int]:
    """What to do next, and the `errno` of a lasting cause, or 0."""
    if failure.is_bucket_missing:
        return "create the bucket first, or correct its name", errno.EINVAL
    if failure.code in _WRONG_CLOCK:
        return "the clocks of this machine and of the endpoint differ: set the time", errno.EACCES
    if (
        failure.code in _WRONG_REGION
        or 300 <= failure.status < 400
        or "redirect without LOCATION" in failure.reason
    ):
        return "give the region of the bucket: region=NAME in the URL of the store", errno.EINVAL
    if failure.code in _NO_RIGHT:
        return "these credentials need the rights to read, write, delete and list", errno.EACCES
    if failure.status in (401, 403):
        return "check the credentials and their rights", errno.EACCES
    return "", 0


def parse_failure(text: str) -> Failure:
    """The cause in the text of an exception of obstore: an answer of the storage, or what the network said."""
    shown, _, debug = text.partition(_DEBUG)
    status = _STATUS.search(shown)
    if status is None:
        return Failure(0, "", _network_reason(shown, debug))
    return answered(int(status[1]), status[2].strip(), shown)


def answered(status: int, words: str, text: str) -> Failure:
    """The cause in an answer of the storage. `words`: of its status."""
    code, message = _found(_CODE, text), _found(_MESSAGE, text)
    reason = f"HTTP status {status} {code or words}".rstrip() + (f": {_one_line(message)}" if message else "")
    return Failure(status, code, reason.rstrip("."))


def _network_reason(shown: str, debug: str) -> str:
    if certificate := _CERTIFICATE.search(debug):
        return f"the certificate of the endpoint is refused ({certificate[1]})"
    if "InvalidMessage" in debug:
        return "the endpoint does not speak TLS; does its URL begin with http:// ?"
    if kind := _KIND.search(debug):
        causes = _SYSTEM.findall(debug)
        if causes:
            return _one_line(causes[-1])
        return {"Timeout": "no answer in time", "Connect": "cannot connect"}.get(
            kind[1], "the connection ended before the answer was complete"
        )
    return _one_line(shown)


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return next(filter(None, match.groups()), "") if match else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
