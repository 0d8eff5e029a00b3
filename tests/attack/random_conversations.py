"""Random conversations, planned as `SGLangModel` plans them; each step is compared with one rendering.

Sampled turns are canonical here: exactly as the template itself writes them. So one rendering of the whole conversation
must equal the branch, token for token, wherever a join is `PROVED`. From a join that is `KEPT` on, what is appended
must be what the template writes for the new messages in this conversation.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.conversation import Conversation
from strands_sglang.chat.conversation_index import ConversationIndex, IndexedTurn
from strands_sglang.chat.differences import SampledTurn
from strands_sglang.chat.messages import TemplateMessage, template_messages, template_tools
from strands_sglang.chat.soundness import sound_bridge
from strands_sglang.errors import TemplateRefusedError
from strands_sglang.provider.audit import Auditor
from strands_sglang.provider.config import HiddenToolsPolicy, RewritePolicy, Settings
from strands_sglang.provider.planning import Plan, Planner
from strands_sglang.tokens import Join
from support.families import FAMILIES, tokenizer

_NESTED = {
    "expression": {"type": "string"},
    "options": {
        "type": "object",
        "properties": {
            "deep": {"type": "array", "items": {"type": ["integer", "null"]}},
            "m": {"enum": ["x", 1, None]},
        },
    },
}


def _spec(name: str, description: str, properties: Any = None) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {"expression": {"type": "string", "description": "e"}}}
    return {"name": name, "description": description, "inputSchema": {"json": schema}}


_TOOLS = (
    (),
    (_spec("calculator", "Work it out."),),
    (_spec("calculator", "Work it out."), _spec("look_up", "Schlägt nach 🙂", _NESTED), _spec("a-b_C9", "")),
)
_SYSTEMS = (
    *(None, "", "Be kind.", " spaced \n", "/no_think", "Be brief. /no_think", "/think", "Grüße\n\n中文"),
    "Be kind. " * 40,
)
_USERS = (
    *("a?", "a?", "", "  ", "\n", "  x \n\n", "Grüße 🙂", "/no_think", "/nothink", "hi /think", "<b>x</b>", "e\u0301"),
    *("ﬁ Ⅷ", "\u200b", "x" * 400, "a?/nothink", "[1, 2]", "null", "\ufeffx", "\u202eab", "1", "Observation: x", "</s"),
    *("<|", "Human: x", "None", "true", "<tool_response>x</tool_response>", "xQzAnchorqZx"),
)
_RESULTS = (
    *(
        *("87", "", "  ", " \n", "\n\na\n", '{"a": 1}', "[]", "error", "x" * 300, "Grüße 🙂 中文", "e\u0301"),
        "<b>&amp;</b>",
    ),
    *(
        *("\\n", "\t", "\u2028", "None", "'q' \"qq\"", "{%x%}", "/no_think", "line1\nline2\n", "ﬁ", "\u200b\u200d"),
        *("y" * 700, "xQzAnchorqZx xQzReplyqZx"),
    ),
)
_TEXTS = ("It is", "Grüße 🙂,", "好的", "a\n\nb", "`x < 1`", "No. 5\tx", "é", "- a\n- b")
_ARGUMENTS = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "preserve_thinking": (True,),
    "clear_thinking": (False,),
    "truncate_history_thinking": (False,),
    "tools_in_user_message": (False,),
}
_GREETED: tuple[Any, ...] = (
    {"role": "user", "content": [{"text": "This is the context."}]},
    {"role": "assistant", "content": [{"text": "Got it. Thanks for the context!"}]},
)
_EXAMPLE: tuple[Any, ...] = (
    {"role": "user", "content": [{"text": "What is 2+2?"}]},
    {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": "call90000", "name": "calculator", "input": {"expression": "2+2"}}}],
    },
    {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": "call90000", "status": "success", "content": [{"text": "4"}]}}],
    },
    {"role": "assistant", "content": [{"text": "It is 4."}]},
)
OPENINGS: dict[str, tuple[Any, ...]] = {"none": (), "answer": _GREETED, "calls": _EXAMPLE}
"""Messages before the first question, with assistant turns that nobody sampled."""
_ENDS = ("", ".", "!", "🙂", ")", "```", "5", "é", "…")


@dataclass
class Found:
    """The result of an attack."""

    counts: Counter[str] = field(default_factory=Counter)
    """Counts by kind."""
    examples: list[str] = field(default_factory=list)
    """Descriptions of differences."""
    withdrawn: bool = False
    """Whether the audit withdrew what differed."""


class Subject:
    """A template under attack."""

    def __init__(self, name: str, tok: Any, template: str | None = None, **arguments: Any) -> None:
        self.name, self._tokenizer = f"{name} {arguments or ''}".strip(), tok
        bridge, sound = sound_bridge(tok, chat_template=template, arguments=arguments)
        self.bridge: Bridge = bridge
        self.planner = Planner(bridge, sound)
        self.auditor = Auditor(self.planner.appender)

    def official(self, messages: list[TemplateMessage], tools: Any, *, generate: bool = True) -> str:
        """Return the rendering of transformers."""
        template = self.bridge.template
        return template.official(template.fitted(messages), tools=tools, generate=generate)

    def holds_control(self, text: str) -> bool:
        """Return whether a text holds a control token's literal: transformers would make a token of it."""
        return next(self.bridge.encoder.control.find(text), None) is not None


def family_arguments() -> list[tuple[str, dict[str, Any]]]:
    """Return every family with no template arguments, and with each that its template reads."""
    known: list[tuple[str, dict[str, Any]]] = []
    for name in FAMILIES:
        source = str(tokenizer(name).chat_template)
        known.append((name, {}))
        for argument, values in _ARGUMENTS.items():
            known += [(name, {argument: value}) for value in values if argument in source]
    return known


class RandomConversation:
    """One random conversation, planned and indexed as a model does."""

    def __init__(self, subject: Subject, rng: random.Random, found: Found, opening: str | None = None) -> None:
        """`opening`: a name in `OPENINGS`; None: a random one."""
        self.subject, self.rng, self.found = subject, rng, found
        self.specs = rng.choice(_TOOLS if subject.bridge.template.writes_calls else _TOOLS[:2])
        self.tools = template_tools(self.specs)
        self.system = rng.choice(_SYSTEMS)
        offered = ("none", "none", "answer", "calls") if self.specs else ("none", "none", "answer")
        self.messages: list[dict[str, Any]] = [
            *OPENINGS[opening or rng.choice(offered)],
            {"role": "user", "content": [{"text": self._text(_USERS)}]},
        ]
        self.index, self.ids = ConversationIndex(), array("i")
        self.reasoning_share = (
            rng.choice(("always", "never", "some")) if subject.bridge.template.writes_reasoning else "never"
        )
        self.entry: IndexedTurn | None = None
        self.kept = False

    def _text(self, texts: tuple[str, ...]) -> str:
        return self.rng.choice([text for text in texts if not self.subject.holds_control(text)])

    def _rendered(self, count: int | None = None) -> list[TemplateMessage]:
        made = template_messages(self.messages[:count])
        return made if self.system is None else [{"role": "system", "content": self.system}, *made]

    def run(self, turns: int) -> None:
        """Run until the turns are used up, or something cannot be compared with a rendering; then audit it.

        What differs is `standing` if its own audit does not withdraw it: before its episode ends, and is exported.
        """
        counts, differs = self.found.counts, False
        for number in range(turns):
            try:
                plan = self._plan()
                whole = self.subject.official(self._rendered(), self.tools)
            except TemplateRefusedError:
                counts["refused"] += 1
                break
            known = counts["differences"]
            if not self._check(plan, whole):
                if differs := counts["differences"] > known:
                    self._turn(number, plan, answers=True)  # as it would be sampled, and then audited
                break
            if not self._turn(number, plan):
                break
        withdrawn = self.entry is not None and self.subject.auditor.audit(self.entry) is not None
        counts["found by the audit"] += withdrawn
        counts["standing"] += differs and not withdrawn

    def _plan(self) -> Plan:
        conversation = self._conversation()
        lineage = self.index.lineage(conversation, self.entry, trimmed=True)
        return self.subject.planner.plan(
            conversation, lineage, Settings(on_trim=RewritePolicy.KEEP, on_hidden_tools=HiddenToolsPolicy.ALLOW)
        )

    def _conversation(self) -> Conversation:
        return Conversation.of(list(self.messages), system=self.system, tool_specs=self.specs)

    def _check(self, plan: Plan, whole: str) -> bool:
        """Compare a prompt with one rendering; return whether they are equal."""
        bridge, counts = self.subject.bridge, self.found.counts
        extension = bridge.encode(plan.prompt)
        self.ids = (self.ids if plan.lineage.parent is not None else array("i")) + extension.closing + extension.context
        counts[plan.join.value] += 1
        if plan.step is not None:
            counts[f"{plan.step.value} {plan.join.value}"] += 1
        self.kept = plan.join is Join.KEPT or (self.kept and plan.lineage.parent is not None)
        same = whole.endswith(plan.prompt.text) if self.kept else self.ids == bridge.encoder.encode(whole)
        if not same:
            counts["differences"] += 1
            ours = bridge.encoder.decode(self.ids)
            at = next((n for n, (a, b) in enumerate(zip(ours, whole, strict=False)) if a != b), 0)
            self.found.examples.append(
                f"{self.subject.name}: {plan.join.value}: ours {ours[max(0, at - 40) : at + 40]!r}, "
                f"official {whole[max(0, at - 40) : at + 40]!r}, system {self.system!r:.40}"
            )
        return same

    def _turn(self, number: int, plan: Plan, *, answers: bool = False) -> bool:
        """Sample a canonical turn (`answers`: without calls), index it and answer it; return whether there is one."""
        rng, bridge = self.rng, self.subject.bridge
        calls = rng.choice((0, 1, 1, 2, 4)) if bridge.template.writes_calls and self.specs and not answers else 0
        mark, ending = f"Fin{number}Q", "" if calls else rng.choice(_ENDS)
        blocks: list[dict[str, Any]] = []
        if self.reasoning_share == "always" or (self.reasoning_share == "some" and rng.random() < 0.5):
            blocks.append(
                {"reasoningContent": {"reasoningText": {"text": f"{rng.choice(_TEXTS)} hm{rng.choice(_ENDS)}"}}}
            )
        if not calls:
            blocks.append({"text": f"{rng.choice(_TEXTS)} {mark}{ending}"})
        elif rng.random() < 0.4:
            blocks.append({"text": f"Now {rng.choice(_TEXTS)}"})
        uses = [(rng.choice(self.specs)["name"], f"call{number:03d}{at:02d}") for at in range(calls)]
        for name, call_id in uses:
            given = rng.choice(({"expression": f"{rng.choice(_TEXTS)} {mark}"}, {"options": {"deep": [1]}, "e": mark}))
            blocks.append({"toolUse": {"toolUseId": call_id, "name": name, "input": given}})
        reply = {"role": "assistant", "content": blocks}
        if calls:
            results = [
                {"toolResult": {"toolUseId": call_id, "status": "success", "content": [{"text": self._text(_RESULTS)}]}}
                for _, call_id in uses
            ]
            after = [{"text": self._text(_USERS)}] if rng.random() < 0.15 else []
            answer = {"role": "user", "content": [*results, *after]}
        else:
            answer = {"role": "user", "content": [{"text": self._text(_USERS)}]}
        shape = plan.shape.with_reply(tuple(uses), "reasoningContent" in blocks[0])
        sampled = self._canonical(reply, shape, "tool" if calls else "user", mark, ending)
        if sampled is None:
            return False
        control = bridge.encoder.control
        text = bridge.encoder.sampled(sampled)
        sampled_turn = SampledTurn(plan.prompt.text, text, "", tuple(token for token in sampled if token in control))
        self.ids += array("i", sampled)
        self.entry = self.index.add(
            number,
            self._conversation(),
            plan.lineage,
            reply,
            shape,
            ended_by=control.ended_by(sampled),
            end=len(self.ids),
            sampled=sampled_turn,
            exact=plan.exact,
            step=plan.step,
        )
        self.messages += [reply, answer]
        return True

    def _canonical(self, reply: dict[str, Any], shape: Any, role: str, mark: str, ending: str) -> array[int] | None:
        """Return the tokens the template itself writes for a turn; None if it writes none after this prompt."""
        bridge, counts = self.subject.bridge, self.found.counts
        boundary = bridge.boundary(shape, role)
        if boundary is None:
            return None
        end = None if boundary.end_of_turn is None else boundary.tokens[boundary.end_of_turn]
        rendered = [*self._rendered(), *template_messages([reply])]
        try:
            text = self.subject.official(rendered, self.tools, generate=False)
        except TemplateRefusedError:
            counts["turn refused"] += 1
            return None
        if mark not in text:
            counts["turn dropped"] += 1
            return None
        at = text.rindex(mark) + len(mark)
        at += len(ending) if text.startswith(ending, at) else 0
        after = list(bridge.encoder.control.find(text, at))
        if end is None:
            text = text[: after[boundary.own - 1].end if boundary.own and len(after) >= boundary.own else at]
        else:
            usual = [token for token in after if token.id == end][:1] or after[-1:]
            text = text[: usual[0].end if usual else at]
        ids = bridge.encoder.encode(text)
        if ids[: len(self.ids)] == self.ids:
            return ids[len(self.ids) :]
        # The template writes history differently from a prompt; a model still samples its text after the prompt.
        counts["prompted differently"] += 1
        if end is None or "tool_calls" in rendered[-1]:
            return None
        return bridge.encoder.encode(f"{rendered[-1]['content']}{bridge.encoder.control.texts[end]}")


def attack(subject: Subject, conversations: int, seed: int, turns: int = 12) -> Found:
    """Run random conversations with a template."""
    found, rng = Found(), random.Random(f"{subject.name} {seed}")
    before = len(subject.planner.appender.soundness.withdrawn)
    for _ in range(conversations):
        RandomConversation(subject, rng, found).run(rng.randint(1, turns))
    found.withdrawn = len(subject.planner.appender.soundness.withdrawn) > before
    return found
