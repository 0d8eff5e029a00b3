"""Encodes the first prompts of episodes without encoding their repeated parts again.

First prompts have much text in common. A tokenizer splits a text at its control tokens before it does anything else, so
a text can be cut before a control token and the parts encoded one by one. Long parts are cached when they occur for the
second time.

Invariant: the ids are those of the whole text. A text is cut only before control tokens that take nothing of the text
before them into account, and tokenizers whose control tokens are matched in normalised text are not used this way.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from strands_sglang.chat.control_tokens import ControlTokens

_SHORTEST: Final = 64
"""In characters."""
_MOST_CHARACTERS: Final = 4_000_000
"""In characters, of all cached parts."""
_MOST_SEEN: Final = 100_000


class SectionCache:
    """The cached parts of one tokenizer's first prompts. Thread-safe."""

    def __init__(self, control: ControlTokens, encode: Callable[[str], list[int]], slow: int) -> None:
        """Above `slow` characters `encode` is called in a thread, not on an event loop."""
        self._control, self._encode, self._slow = control, encode, slow
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        self._seen: set[int] = set()
        self._size = 0
        self._lock = threading.Lock()
        self._slow_locks = tuple(threading.Lock() for _ in range(16))

    def encode(self, text: str) -> array[int]:
        """Return the ids of a text."""
        ids = array("i")
        at = end = 0  # of the parts that are not encoded yet
        for section in self._sections(text):
            end += len(section)
            if not self._is_repeated(section):
                continue
            start = end - len(section)
            if start > at:
                ids.extend(self._encode(text[at:start]))
            ids.extend(self._ids(section))
            at = end
        if end > at:
            ids.extend(self._encode(text[at:end]))
        return ids

    def is_slow(self, text: str) -> bool:
        """Return whether encoding a text takes long enough to block an event loop noticeably."""
        return sum(len(section) for section in self._sections(text) if section not in self._known) > self._slow

    def _sections(self, text: str) -> Iterator[str]:
        """Each part is long enough to be cached, except the last."""
        at, cuttable = 0, self._control.cuttable
        for token, start, _ in self._control.spans(text):
            if start - at >= _SHORTEST and token in cuttable:
                yield text[at:start]
                at = start
        yield text[at:]

    def _is_repeated(self, section: str) -> bool:
        if len(section) < _SHORTEST:
            return False
        if section in self._known or len(section) > self._slow:
            return True
        once = hash(section)
        if once in self._seen:
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(once)
        return False

    def _ids(self, section: str) -> array[int]:
        known = self._known.get(section)
        if known is not None:
            return known
        if len(section) <= self._slow:
            return self._added(section)
        # In a thread. The episodes of a group ask for the same text at the same time: one of them encodes it.
        with self._slow_locks[hash(section) % len(self._slow_locks)]:
            return self._known.get(section) or self._added(section)

    def _added(self, section: str) -> array[int]:
        ids = array("i", self._encode(section))
        with self._lock:
            if section not in self._known and len(section) <= _MOST_CHARACTERS // 4:
                self._known[section] = ids
                self._size += len(section)
                while self._size > _MOST_CHARACTERS:
                    self._size -= len(self._known.popitem(last=False)[0])
        return ids
