"""What would have become of tokens if their text were encoded again, or the messages rendered again.

The package never does either. The viewer shows it token by token, because it is what a client trains on that only has
the text (`drift_view`) or the messages (`rendered_view`). Messages are rendered with the run's template and the time of
the episode: a difference is never that of another day.

Invariants: replacing the ids of each span by its new ids, from the last to the first, gives exactly the other ids. The
recorded tokens are only compared, never replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from strands_sglang._json import as_dict
from strands_sglang.chat.messages import template_messages, template_tools
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.errors import StrandsSGLangError
from strands_sglang.ledger.messages import read_conversations
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.tokens import TokenTree
from strands_sglang.tokens.alignment import align, align_text
from strands_sglang.viewer.token_text import TokenTexts


class ChangedSpan(NamedTuple):
    """Tokens that would have become others."""

    start: int
    """Position of the first token, counted from the first of the compared ids."""
    end: int
    """Position after the last token; equal to `start` if tokens would have been added only."""
    ids: list[int]


def drift_view(record: EpisodeRecord, texts: TokenTexts | None) -> dict[str, Any]:
    """Return what encoding the text of each turn again would have made of its sampled tokens, for the page.

    `turns`: by id of the turn, `[start, end, ids]` by position among its sampled tokens, [] if nothing changes; turns
    that cannot be encoded are absent. `words`: text of each new id, or its bytes as hex in a list of one.
    """
    turns: dict[str, list[list[Any]]] = {}
    words: dict[str, Any] = {}
    if texts is None:
        return {"turns": turns, "words": words}
    try:
        tree = record.tree()
    except StrandsSGLangError:  # told by `episode_view`
        tree = TokenTree(record.id)
    for turn in tree:
        try:
            spans = reencoded(turn.sampled, texts) if turn.sampled else []
        except (OverflowError, TypeError, ValueError):  # ids that no tokenizer has
            continue
        turns[str(turn.id)] = [list(span) for span in spans]
        for id in {id for span in spans for id in span.ids}:
            text = texts.text_of(id)
            words[str(id)] = [texts.bytes_of(id).hex()] if text is None else text
    return {"turns": turns, "words": words}


def reencoded(ids: Sequence[int], texts: TokenTexts) -> list[ChangedSpan]:
    """Return where decoding ids and encoding the text again gives other tokens; empty: it gives the same."""
    return changed_spans(list(ids), texts.encode(texts.decode(ids)), texts)


def changed_spans(before: list[int], after: list[int], texts: TokenTexts) -> list[ChangedSpan]:
    """Return the differences between two lists of ids: by their text if it is the same, by ids otherwise."""
    if before == after:
        return []
    left, right = [texts.bytes_of(id) for id in before], [texts.bytes_of(id) for id in after]
    if b"".join(left) == b"".join(right):
        found = align_text(before, after, [len(data) for data in left], [len(data) for data in right])
    else:
        ends = {id for id in {*before, *after} if texts.is_special(id) or b"\n" in texts.bytes_of(id)}
        found = align(before, after, frozenset(ends))
    return [ChangedSpan(start, end, after[new_start:new_end]) for start, end, new_start, new_end in found]


def rendered_view(
    record: EpisodeRecord, branch: int, texts: TokenTexts | None, run: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return where the rendering of a branch's conversation differs from the prompt of its last turn.

    `spans`: `[start, end, text, ids]` by position in the branch; `error`: why there is none, otherwise "".
    """
    if texts is None:
        return {"spans": [], "error": "the tokenizer is unknown: start the viewer with --tokenizer"}
    if record.end is None:
        return {"spans": [], "error": "the messages of an episode are recorded when it ends"}
    found = [one for one in read_conversations(record.end.data) if one.get("branch") == branch]
    if not found:
        return {"spans": [], "error": "the conversation of this branch is not recorded"}
    tree = record.tree()
    if not 0 <= branch < len(tree):
        return {"spans": [], "error": "the branch of this conversation is not recorded"}
    turn = tree[branch]
    recorded = tree.ids(turn)[: turn.sampled_start].tolist()
    try:
        text = _rendered(found[0], _template_of(run, texts).at(record.template_time))
    except StrandsSGLangError as error:
        return {"spans": [], "error": str(error)}
    except Exception as error:  # the conversation may be damaged
        return {"spans": [], "error": f"the conversation cannot be rendered: {type(error).__name__}: {error}"}
    spans = changed_spans(recorded, texts.encode(text), texts)
    plain = [[span.start, span.end, texts.decode(span.ids), span.ids] for span in spans]
    return {"spans": plain, "error": "", "prompt": turn.sampled_start}


def _template_of(run: Mapping[str, Any] | None, texts: TokenTexts) -> ChatTemplate:
    """Return the chat template of a run with its arguments; `run`: the content of run.json."""
    from strands_sglang.provider.config import template_arguments  # with it comes the SDK

    settings = dict(as_dict((run or {}).get("settings")))
    source = settings.get("chat_template")
    source = source if isinstance(source, str) else None
    arguments = template_arguments(source or str(texts.tokenizer.chat_template), settings)
    return ChatTemplate(texts.tokenizer, texts.control, source, arguments)


def _rendered(conversation: Mapping[str, Any], template: ChatTemplate) -> str:
    messages: list[Any] = list(template_messages(conversation["messages"], call_ids=conversation.get("call_ids")))
    system = conversation.get("system")
    if isinstance(system, str):
        messages.insert(0, {"role": "system", "content": system})
    return template.official(template.fitted(messages), tools=template_tools(conversation.get("tools")))
