"""The rules for the language of documents, as functions of a page's text. Each yields `line: what to do`.

A sentence is what a paragraph, a list item or a cell of a table has between two full stops. Code, tables' rules and
comments are no sentences; a piece of code in a line counts as one word.
"""

import re
from collections.abc import Iterable, Iterator

LINE_CHARACTERS_MAX = 120
SENTENCE_WORDS_MAX = 40
SENTENCE_WORDS_MEAN_MAX = 25

BANNED = {
    r"go(es)? on": "continues",
    r"anew": "again",
    r"so (many|long|much)": "this many, that long",
    r"whoever": "name the component or the person",
    r"(?:he|him|his)": "it, they, or the name of the component",
    r"hardly": "rarely, barely, or a number",
    r"(is|are|was|were) told": "receives, gets, is notified",
    r"hears?": "receives",
    r"gives? up on": "abandons, stops",
    r"doubted": "suspected",
    r"(shelf|shelves)": "node cache",
    r"in stock": "prefetched",
    r"roll": "membership list",
    r"excerpts?": "extent, byte range",
    r"parcels?": "fetch batch",
    r"passengers?": "waiting readers",
}
"""What is not said, as an expression for whole words, and what is said instead."""

_OUTPUT = ("", "text", "console", "hexdump")  # languages of fenced blocks
_FENCE = re.compile(r"^\s*```")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"`+[^`]*`+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=\W*[A-Z0-9`])")
_ITEM = re.compile(r"^\s*(?:[*+-]|\d+[.)]|\([a-z]\))\s+")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|al)\.")
_BANNED = [(re.compile(rf"\b{words}\b", re.IGNORECASE), instead) for words, instead in BANNED.items()]


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line outside of fenced blocks and comments, a piece of code in it as one word."""
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    is_fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            is_fenced = not is_fenced
            yield number, ""
        elif not is_fenced:
            yield number, _LINK.sub(r"\1", _CODE.sub("CODE", line))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence with the line in which its paragraph begins."""
    for number, paragraph in _paragraphs(text):
        for sentence in _END.split(_ABBREVIATION.sub(r"\1", paragraph)):
            if any(character.isalpha() for character in sentence):
                yield number, sentence.strip()


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    for number, line in [*prose_lines(text), (0, "")]:
        is_row = line.lstrip().startswith("|")
        if lines and (not line.strip() or is_row or line.startswith(("#", ":::")) or _ITEM.match(line)):
            yield lines[0][0], " ".join(part.strip() for _, part in lines)
            lines = []
        if is_row:
            yield from ((number, cell.strip()) for cell in line.strip().strip("|").split("|") if cell.strip())
        elif line.startswith("#"):
            yield number, line.lstrip("# ")
        elif line.strip() and not line.startswith(("---", ":::")):
            lines.append((number, _ITEM.sub("", line)))


def words(sentence: str) -> int:
    return sum(any(character.isalnum() for character in word) for word in sentence.split())


def sentence_faults(text: str) -> Iterator[str]:
    """Sentences that are too long, and a mean that is."""
    counts = [(number, words(sentence), sentence) for number, sentence in sentences(text)]
    for number, count, sentence in counts:
        if count > SENTENCE_WORDS_MAX:
            yield f"{number}: {count} words, limit {SENTENCE_WORDS_MAX}: split it: {sentence[:60]}..."
    total = sum(count for _, count, _ in counts)
    if total > SENTENCE_WORDS_MEAN_MAX * len(counts):
        yield f"1: {total / len(counts):.0f} words a sentence on average, limit {SENTENCE_WORDS_MEAN_MAX}"


def word_faults(text: str) -> Iterator[str]:
    """Words that are banned."""
    for number, line in prose_lines(text):
        for expression, instead in _BANNED:
            for match in expression.finditer(line):
                yield f"{number}: {match[0]!r}: say {instead}"


def line_faults(text: str) -> Iterator[str]:
    """Lines that are too long. Rows of tables, output of programs and links cannot be broken."""
    fence: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fence = line.strip("` ") if fence is None else None
        elif fence in _OUTPUT or line.lstrip().startswith("|") or "](" in line:
            continue
        elif len(line) > LINE_CHARACTERS_MAX:
            yield f"{number}: {len(line)} characters, limit {LINE_CHARACTERS_MAX}"


def block_faults(text: str) -> Iterator[str]:
    """Blocks of code by indentation, which no test can find, and fences without a language."""
    is_fenced = False
    previous = ""
    for number, line in _numbered_lines(text):
        if _FENCE.match(line):
            if not is_fenced and line.strip() == "```":
                yield f"{number}: say of which language this block is: ```sh, ```python, ```text"
            is_fenced = not is_fenced
        elif not is_fenced and line.startswith("    ") and not previous.strip():
            yield f"{number}: fence this block, with its language: ```sh, ```python, ```text"
        previous = line


def _numbered_lines(text: str) -> Iterable[tuple[int, str]]:
    """The lines with their numbers, without those of comments."""
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    return enumerate(text.splitlines(), 1)
