"""Small words for people: ids, times and lists. Pure."""


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
