"""The errors of object storage become one line with the cause, and what to do; lasting ones are not tried again."""

import pytest

from dieselfs.bucket.errors import parse_failure
from dieselfs.errors import NotFound, StorageFull, Unavailable
from dieselfs_server.store.wrapper import LASTING

_ANSWER = (
    "Generic S3 error: Error performing PUT http://host/data/x in 2ms - Server returned non-2xx status code: "
)


def answer(status: str, code: str = "", message: str = "") -> str:
    """As obstore writes it."""
    body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>{message}</Message><HostId>7</HostId></Error>'
    return f"{_ANSWER}{status}: {body if code else ''}\n\nDebug source:\nGeneric {{ status: 999 }}"


def network(inner: str, kind: str = "Connect") -> str:
    return (
        "Generic S3 error: Error performing GET http://host/data/x in 1ms - HTTP error: error sending request\n\n"
        f"Debug source:\nGeneric {{ inner: Http( HttpError {{\n    kind: {kind},\n source: {inner} }} ) }}"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            answer("403 Forbidden", "SignatureDoesNotMatch", "The signature is\n wrong."),
            "x: HTTP status 403 SignatureDoesNotMatch: The signature is wrong; check the credentials and their rights",
        ),
        (answer("403 Forbidden"), "x: HTTP status 403 Forbidden; check the credentials and their rights"),
        (
            answer("403 Forbidden", "AccessDenied"),
            "x: HTTP status 403 AccessDenied; these credentials need the rights to read, write, delete and list",
        ),
        (
            answer("403 Forbidden", "RequestTimeTooSkewed"),
            "x: HTTP status 403 RequestTimeTooSkewed; "
            "the clocks of this machine and of the endpoint differ: set the time",
        ),
        (
            answer("404 Not Found", "NoSuchBucket"),
            "x: HTTP status 404 NoSuchBucket; create the bucket first, or correct its name",
        ),
        (
            answer("400 Bad Request", "AuthorizationHeaderMalformed", "expecting 'eu-west-1'"),
            "x: HTTP status 400 AuthorizationHeaderMalformed: expecting 'eu-west-1'; "
            "give the region of the bucket: region=NAME in the URL of the store",
        ),
    ],
)
def test_a_lasting_refusal_says_what_to_do(text: str, line: str) -> None:
    failure = parse_failure(text)
    error = failure.error("x")
    assert isinstance(error, Unavailable) and str(error) == line
    assert failure.cause is not None and failure.cause.errno in LASTING


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (answer("503 Service Unavailable", "SlowDown"), "x: HTTP status 503 SlowDown"),
        (answer("500 Internal Server Error"), "x: HTTP status 500 Internal Server Error"),
        (network('Os { code: 111, message: "Connection refused" }'), "x: Connection refused"),
        (
            network(
                'ConnectError( "dns error", Custom { error: "failed to lookup address information: unknown" } )'
            ),
            "x: failed to lookup address information: unknown",
        ),
        (network("TimedOut", kind="Timeout"), "x: no answer in time"),
        (
            network("IncompleteBody", kind="Interrupted"),
            "x: the connection ended before the answer was complete",
        ),
        (
            network("Custom { error: InvalidMessage( InvalidContentType ) }"),
            "x: the endpoint does not speak TLS; does its URL begin with http:// ?",
        ),
        (
            network("Custom { error: InvalidCertificate( UnknownIssuer ) }"),
            "x: the certificate of the endpoint is refused (UnknownIssuer)",
        ),
        ("Something new\nof two lines", "x: Something new of two lines"),
    ],
)
def test_what_may_pass_is_tried_again(text: str, line: str) -> None:
    failure = parse_failure(text)
    error = failure.error("x")
    assert isinstance(error, Unavailable) and str(error) == line
    assert failure.cause is None


def test_a_missing_object_is_not_a_missing_bucket() -> None:
    missing = parse_failure(answer("404 Not Found", "NoSuchKey"))
    assert missing.is_object_missing and isinstance(missing.error("x"), NotFound)
    of_google = (
        '404 Not Found: { "error": { "code": 404, "message": "The specified bucket does not exist." } }'
    )
    for text in (answer("404 Not Found", "ContainerNotFound"), _ANSWER + of_google):
        assert parse_failure(text).is_bucket_missing
        assert isinstance(parse_failure(text).error("x"), Unavailable)


@pytest.mark.parametrize(
    "text", [answer("403 Forbidden", "QuotaExceeded"), answer("507 Insufficient Storage")]
)
def test_no_room_is_not_tried_again(text: str) -> None:
    assert isinstance(parse_failure(text).error("x"), StorageFull)


def test_a_range_behind_the_end_is_told_apart() -> None:
    assert parse_failure(answer("416 Range Not Satisfiable", "InvalidRange")).is_range_behind_end
    of_azure = "Generic MicrosoftAzure error: Wanted range starting at 5, but object was only 5 bytes long"
    assert parse_failure(of_azure).is_range_behind_end
    assert not parse_failure(answer("404 Not Found", "NoSuchKey")).is_range_behind_end
