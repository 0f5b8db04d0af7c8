"""The source of an attached chunk: what names one, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.chunk.source import AttachedSource
from dieselfs.fields import FieldsFault

GOOD = AttachedSource(b"/data/a.tar", 1000, "mtime_ns=1", 100)

parts = st.binary(min_size=1, max_size=20).filter(
    lambda part: part not in (b".", b"..") and not set(part) & set(b"/\0")
)
sources = st.builds(
    lambda path, size, mark, offset: AttachedSource(b"/" + b"/".join(path), size + offset, mark, offset),
    st.lists(parts, min_size=1, max_size=5),
    st.integers(0, 1 << 40),
    st.text(min_size=1, max_size=50, alphabet=st.characters(codec="utf-8")),
    st.integers(0, 1 << 40),
)


@given(sources, st.integers(0, 1 << 26))
def test_fields_and_back(source: AttachedSource, payload_length: int) -> None:
    fits = source.offset + payload_length <= source.size_bytes
    if fits:
        assert AttachedSource.of_fields(dict(source.fields()), payload_length) == source
    else:
        with pytest.raises(FieldsFault, match="lies outside of it"):
            AttachedSource.of_fields(dict(source.fields()), payload_length)


@pytest.mark.parametrize(
    "field, value, reason",
    [
        ("source", b"", "empty"),
        ("source", b"/a\0b", "NUL"),
        ("source", b"/" + b"a" * 4095, "too long"),
        ("source", b"a/b.tar", "neither an absolute path nor a URL"),
        ("source", b"file:///a", "neither an absolute path nor a URL"),
        ("source", b"/a/../b", "an empty part"),
        ("source", b"/a/./b", "an empty part"),
        ("source", b"//b", "an empty part"),
        ("source_size", -1, "out of range"),
        ("source_size", 1 << 61, "out of range"),
        ("source_mark", "", "mark"),
        ("source_mark", "m" * 256, "mark"),
        ("source_offset", -1, "outside"),
        ("source_offset", 991, "outside"),
    ],
)
def test_what_names_no_source(field: str, value: object, reason: str) -> None:
    AttachedSource.of_fields(dict(GOOD.fields()), 10)
    with pytest.raises(FieldsFault, match=reason):
        AttachedSource.of_fields({**GOOD.fields(), field: value}, 10)
