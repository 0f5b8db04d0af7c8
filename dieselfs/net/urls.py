"""The parts of the URLs of object stores, metadata stores and objects. No I/O."""

from urllib.parse import SplitResult, unquote, urlsplit

from dieselfs.errors import InvalidInput

SCHEME_CHARACTERS_SHOWN = 20


def split(url: str) -> SplitResult:
    """As `urlsplit`. Raises InvalidInput for what is no URL; the message never repeats what may be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:  # its message may have the password
        parts = None
    if parts is None or "\0" in unquote(url):
        begin = url.partition(":")[0][:SCHEME_CHARACTERS_SHOWN]
        raise InvalidInput(
            f"{begin!r} begins something that is no URL: a bracket, or a character is not allowed"
        )
    return parts


def path_of(url: str) -> str:
    """The path of `posix:///path`, the pool of `rados://pool`; empty without one. Raises InvalidInput as `split`."""
    parts = split(url)
    return unquote(parts.netloc + parts.path)
