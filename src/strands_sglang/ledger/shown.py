"""What comes from a ledger, as it may be shown to people: `shown`, and numbers of things: `counted`.

Invariant: what is shown is one line without anything that moves a cursor, hides text or turns its direction. Nobody who
writes into a ledger writes on the terminal of whoever reads it.
"""

from __future__ import annotations


def shown(text: str) -> str:
    r"""Return a text with everything that cannot be seen written out: `\n`, `\x1b`, `\u202e`.

    Args:
        text: Anything: an id, a file's name, a message that quotes one.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Return how many there are of something: `1 episode`, `1,024 episodes`.

    Args:
        number: How many.
        noun: What one of them is called.
        several: What more or fewer are called; None: the same with an s.
    """
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
