"""Text that a stranger chose, made fit to be shown: hostile until it has gone through here.

Pure. Takes out what could move a cursor, set a title, or reorder, hide or break a line: control characters
with the escape that begins a terminal's sequences, format and bidirectional characters. What is taken out
is one character at a time, so a sequence that comes in pieces gets through no better. Escaping for HTML is
a template's work, not done here.
"""

import re
import unicodedata

MAX_COMBINING = 2  # marks in a row on one letter; more pile up over other lines
_ELLIPSIS = "…"
_JOINERS = "\u200c\u200d"  # within words of some languages, and within emoji
_PLAIN = re.compile(r"[ -~\n\t]*")


def shown(text: str) -> str:
    """The text for a terminal, with its lines and tabs, and without anything a terminal obeys."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(char for char in text if char in "\n\t" or char in _JOINERS or not _is_hidden(char))


def one_line(text: str, limit: int | None = None) -> str:
    """The text on one line, of at most `limit` characters, without invisible or reordering ones."""
    if (limit is None or len(text) <= limit) and text.isascii() and text.isprintable():
        return " ".join(text.split())
    kept: list[str] = []
    combining = 0
    looked_at = text if limit is None else text[: 8 * limit]
    for char in looked_at:
        category = unicodedata.category(char)
        combining = combining + 1 if category in ("Mn", "Me") else 0
        if category[0] == "Z" or char in "\t\n\r":
            kept.append(" ")
        elif category[0] != "C" and combining <= MAX_COMBINING:
            kept.append(char)
    line = " ".join("".join(kept).split())
    if limit is None or (len(line) <= limit and len(text) <= 8 * limit):
        return line
    return line[: limit - 1] + _ELLIPSIS


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
