"""What rendering the messages of a branch again would have made of its tokens: `rendered_view`.

Rendering again is what a client does that keeps messages and not tokens: the chat template may drop reasoning, spell
arguments in another way or change white space. The viewer shows the difference at the very place.

Invariant: the recorded tokens are only compared with the rendering, never replaced by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strands_sglang.chat.messages import template_messages, template_tools
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.provider.episode import read_conversations
from strands_sglang.viewer.drift import changed_spans
from strands_sglang.viewer.token_text import TokenTexts


def rendered_view(
    record: EpisodeRecord, branch: int, texts: TokenTexts | None, run: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return where the rendering of a branch's conversation differs from the prompt of its last turn.

    `texts`: the tokenizer; None: nothing can be rendered. `run`: content of run.json, for the options of the template;
    None if it is unknown. Returns `spans`: `[start, end, text, ids]` by position in the branch; `error`: why there is
    none, otherwise "".
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
        text = _rendered(found[0], texts, run)
    except Exception as error:  # a template may raise anything
        return {"spans": [], "error": f"the chat template refuses the conversation: {type(error).__name__}: {error}"}
    spans = changed_spans(recorded, texts.encode(text), texts)
    plain = [[span.start, span.end, texts.decode(span.ids), span.ids] for span in spans]
    return {"spans": plain, "error": "", "prompt": turn.sampled_start}


def _rendered(conversation: Mapping[str, Any], texts: TokenTexts, run: Mapping[str, Any] | None) -> str:
    messages: list[Any] = list(template_messages(conversation["messages"], call_ids=conversation.get("call_ids")))
    system = conversation.get("system")
    if isinstance(system, str):
        messages.insert(0, {"role": "system", "content": system})
    settings = (run or {}).get("settings")
    options = settings if isinstance(settings, dict) else {}
    chosen: dict[str, Any] = {}
    if isinstance(options.get("enable_thinking"), bool):
        chosen["enable_thinking"] = options["enable_thinking"]
    if isinstance(options.get("chat_template_kwargs"), dict):
        chosen |= options["chat_template_kwargs"]
    rendered: str = texts.tokenizer.apply_chat_template(
        messages, tools=template_tools(conversation.get("tools")), tokenize=False, add_generation_prompt=True, **chosen
    )
    return rendered
