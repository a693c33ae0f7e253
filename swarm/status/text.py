"""Text from peers made fit to be shown: hostile until it has gone through here.

Pure. Takes out what could reorder, hide or break a line (control, format and bidirectional
characters), and bounds the length. Escaping for HTML is the template's work, not done here.
"""

import unicodedata

MAX_COMBINING = 2  # marks in a row on one letter; more pile up over other lines
_ELLIPSIS = "…"


def clean(text: str, limit: int) -> str:
    """At most `limit` characters of `text` on one line, without invisible or reordering ones."""
    if len(text) <= limit and text.isascii() and text.isprintable():
        return " ".join(text.split())
    kept: list[str] = []
    combining = 0
    for char in text[: 8 * limit]:
        category = unicodedata.category(char)
        combining = combining + 1 if category in ("Mn", "Me") else 0
        if category[0] == "Z" or char in "\t\n\r":
            kept.append(" ")
        elif category[0] != "C" and combining <= MAX_COMBINING:
            kept.append(char)
    line = " ".join("".join(kept).split())
    return line if len(line) <= limit and len(text) <= 8 * limit else line[: limit - 1] + _ELLIPSIS


def short_id(peer: str) -> str:
    """The end of a peer id, which is what differs from one to the next."""
    return peer[-8:]


def duration(seconds: float) -> str:
    """A length of time for a person, in its largest unit: ``"3 min"``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def listed(items: list[str], limit: int = 4) -> str:
    """``"a, b and 3 more"``."""
    shown = items[:limit]
    rest = len(items) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
