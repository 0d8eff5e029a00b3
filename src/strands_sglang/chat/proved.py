"""Bridges that were tried out, kept for as long as their tokenizer lives.

Invariant: a template is tried out once for each tokenizer and template arguments, told apart by the hash of all three.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.control import added_tokens
from strands_sglang.chat.encoder import Encoder
from strands_sglang.chat.proof import prove
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.chat.verdict import Soundness

_BRIDGES: weakref.WeakKeyDictionary[Any, dict[str, tuple[Bridge, Soundness]]] = weakref.WeakKeyDictionary()
_PROVED: dict[str, Soundness] = {}
"""By digest: another copy of the same tokenizer is not tried out again."""


def sound_bridge(
    tokenizer: Any, *, chat_template: str | None = None, arguments: Mapping[str, Any] | None = None
) -> tuple[Bridge, Soundness]:
    """Return the bridge of a template and what is proved of it. Whoever keeps the bridge keeps the tokenizer too."""
    added = sorted(added_tokens(tokenizer))
    known = _BRIDGES.setdefault(tokenizer, {})
    own = getattr(tokenizer, "chat_template", None) if chat_template is None else chat_template
    key = f"{own!r} {sorted((arguments or {}).items())!r} {added!r}"
    if key not in known:
        # A proxy: a bridge that held its tokenizer would keep it in this table for ever.
        held = weakref.proxy(tokenizer)
        encoder = Encoder(held)
        bridge = Bridge(ChatTemplate(held, encoder.control, chat_template, arguments), encoder)
        digest = hashlib.sha256(f"{bridge.template.source}\n{key}\n{encoder.digest}".encode()).hexdigest()[:16]
        if digest not in _PROVED:
            _PROVED[digest] = prove(bridge, digest)
        known[key] = (bridge, _PROVED[digest])
    return known[key]


def soundness(
    tokenizer: Any, *, chat_template: str | None = None, arguments: Mapping[str, Any] | None = None
) -> Soundness:
    """Say on which steps new messages can be appended exactly with this tokenizer's chat template.

    Args:
        tokenizer: A transformers tokenizer.
        chat_template: Another template than the tokenizer's own.
        arguments: Arguments of the template, such as `{"enable_thinking": False}`.

    Returns:
        The verdicts.
    """
    return sound_bridge(tokenizer, chat_template=chat_template, arguments=arguments)[1]
