"""The documents keep the rules of their language (`prose.py`), and those rules find what they are for."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.repository.prose import (
    LINE_CHARACTERS_MAX,
    SENTENCE_WORDS_MAX,
    block_faults,
    line_faults,
    sentence_faults,
    sentences,
    word_faults,
    words,
)
from tests.support.documents import DOCUMENTS, REPOSITORY

FOR_USERS = [
    REPOSITORY / "README.md",
    REPOSITORY / "deploy/README.md",
    *sorted((DOCUMENTS / "guide").glob("*.md")),
]
ALL = [*FOR_USERS, *sorted(REPOSITORY.glob("C*.md")), *sorted(DOCUMENTS.glob("**/*.md"))]


def holds(faults_of: Callable[[str], Iterable[str]], pages: list[Path]) -> None:
    faults = [
        f"{page.relative_to(REPOSITORY)}:{fault}"
        for page in dict.fromkeys(pages)
        for fault in faults_of(page.read_text(encoding="utf-8"))
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_sentences_for_users_are_short() -> None:
    holds(sentence_faults, FOR_USERS)


def test_pages_use_established_words() -> None:
    holds(word_faults, ALL)


def test_lines_fit_an_editor() -> None:
    holds(line_faults, ALL)


def test_blocks_for_users_say_what_they_are() -> None:
    holds(block_faults, FOR_USERS)


PAGE = """\
# A heading

The daemon retries. It waits
for `a b c` and [the server](x.md).

* An item. <!-- a comment, which
  goes on -->

| a cell | another one. With two |

```sh
goes on
```
"""


def test_sentences_of_paragraphs_items_and_cells() -> None:
    assert [sentence for _, sentence in sentences(PAGE)] == [
        "A heading",
        "The daemon retries.",
        "It waits for CODE and the server.",
        "An item.",
        "a cell",
        "another one.",
        "With two",
    ]
    assert words("It waits for CODE, and - the server.") == 7


def test_a_sentence_that_is_too_long() -> None:
    assert not list(sentence_faults("Short. Long " + "word " * (SENTENCE_WORDS_MAX - 2) + "end."))
    (fault,) = sentence_faults("Short. Long " + "word " * (SENTENCE_WORDS_MAX - 1) + "end.")
    assert fault.startswith(f"1: {SENTENCE_WORDS_MAX + 1} words")


def test_sentences_that_are_too_long_on_average() -> None:
    (fault,) = sentence_faults("word " * 25 + "end. ")
    assert "on average" in fault


@pytest.mark.parametrize(
    "text", ["The daemon goes on.", "is\ntold that he reads", "so many files", "the shelf"]
)
def test_words_that_are_not_used(text: str) -> None:
    assert list(word_faults(text))


def test_code_and_comments_are_no_prose() -> None:
    assert not list(word_faults(PAGE))


def test_lines_that_are_too_long() -> None:
    long = "x" * (LINE_CHARACTERS_MAX + 1)
    assert list(line_faults(long)) and list(line_faults(f"```sh\n{long}\n```"))
    assert not list(line_faults(f"| {long} |\n```text\n{long}\n```\n"))


def test_blocks_without_a_language() -> None:
    assert not list(block_faults(PAGE))
    assert list(block_faults("text\n\n    dlcmd ls\n"))
    assert list(block_faults("```\nx\n```"))
