"""The plan of a turn: which branch it extends, with what text, and why so.

Invariant: planning changes nothing. Everything that will be recorded of a turn besides what is sampled is decided
here.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from strands_sglang.chat.bridge import Bridge, Piece
from strands_sglang.chat.canonical import canonical
from strands_sglang.chat.content import TemplateMessage, template_messages, template_tools
from strands_sglang.chat.findings import findings_of
from strands_sglang.chat.lineage import Entry, Lineage, Preamble, Standing, everywhere
from strands_sglang.chat.shape import Shape, Step, opening_shape, step_of
from strands_sglang.chat.verdict import Soundness
from strands_sglang.errors import BridgeRefusedError
from strands_sglang.provider.append import Appended, Appender, Conversation
from strands_sglang.provider.policy import RewritePolicy
from strands_sglang.tokens import Join
from strands_sglang.tool_parsers import ParsedTurn, ToolParser
from strands_sglang.tool_parsers.plain import PlainTextParser

logger = logging.getLogger(__name__)

_PREAMBLES = 256  # kept, of all that were ever seen
_said: set[tuple[str, Step, RewritePolicy]] = set()


@dataclass(frozen=True, slots=True)
class Plan:
    """How a turn will be made."""

    parent: Entry | None
    """The turn it goes on from; None: it begins a branch."""
    piece: Piece
    """What is appended, as text."""
    join: Join
    """How it is appended."""
    shape: Shape
    """The shape of the conversation before the turn."""
    aligned: bool
    """Whether the messages begin with the parent's."""
    rewritten: Entry | None
    """The turn whose conversation was rewritten into this one; None when nothing was."""
    discarded: Entry | None
    """A turn of the same agent whose reply is gone from the conversation: it was thrown away."""
    exact: bool = True
    """Whether the prompt is one rendering of its conversation, as far as is known."""
    step: Step | None = None
    """What is appended, and behind what; None when a branch begins."""


class Planner:
    """Plans turns with one bridge and what is proved of it."""

    def __init__(self, bridge: Bridge, soundness: Soundness, parser: ToolParser | None = None) -> None:
        self.bridge = bridge
        """Renders what is new."""
        self.soundness = soundness
        """Where that is exact, by the probes."""
        self.appender = Appender(bridge, findings_of(soundness.digest), parser or PlainTextParser())
        """Appends, and says whether that is exact."""
        self._tools: tuple[str | None, Any] = (None, None)
        self._preambles: dict[str, Preamble] = {}

    def preamble(self, system: str | None, tool_specs: Sequence[Mapping[str, Any]] | None) -> Preamble:
        """Return what stands in front of a conversation."""
        tools = tuple(tool_specs or ())
        try:
            key = orjson.dumps([system, tools], default=repr).decode()
        except TypeError:  # what JSON cannot hold as it stands: half a surrogate pair, a number of more than 64 bits
            key = repr(canonical({"role": system, "content": tools}))
        # The framework hands over a fresh copy of all tools at every turn, and every turn on record keeps its preamble.
        known = self._preambles.get(key)
        if known is None:
            if len(self._preambles) >= _PREAMBLES:
                self._preambles.pop(next(iter(self._preambles)), None)
            known = self._preambles[key] = Preamble(system, copy.deepcopy(tools), key)
        return known

    def plan(
        self,
        lineage: Lineage,
        preamble: Preamble,
        messages: Sequence[Mapping[str, Any]],
        hint: Entry | None,
        *,
        again: bool = False,
        named: Collection[int] = (),
        stands: Standing = everywhere,
        shown: Sequence[Mapping[str, Any]] | None = None,
        on_rewrite: RewritePolicy,
        on_trim: RewritePolicy,
        on_reminder: RewritePolicy = RewritePolicy.KEEP,
    ) -> Plan:
        """Plan a turn.

        Args:
            lineage: The turns known.
            preamble: What stands in front of the conversation.
            messages: The conversation, as later calls will repeat it.
            hint: The agent's last turn, by its own memory; None when it has none.
            again: Whether the agent asks a second time for what that turn was to be.
            named: Turns whose replies the agent's messages say they are.
            stands: Tells which replies stand in a conversation.
            shown: The conversation with what is shown in this call only; None: there is no such thing.
            on_rewrite: What to do where the template would rewrite history.
            on_trim: What to do where the oldest messages were dropped.
            on_reminder: What to do where something that was shown for one call is gone.

        Raises:
            BridgeRefusedError: The policy is to refuse.
            TemplateRefusedError: The template does not take the conversation.
            UnsupportedContentError: A message has a kind of content that cannot be rendered.
        """
        parent, known, aligned = lineage.find(preamble, messages, hint, named=named, stands=stands), 0, True
        if parent is not None:
            known = parent.count
        trimmed = lineage.trimmed(preamble, messages, hint, stands) if on_trim is not RewritePolicy.FORK else None
        if trimmed is not None and trimmed[0] is not parent:
            if on_trim is RewritePolicy.REFUSE:
                raise BridgeRefusedError(
                    "the oldest messages of the conversation were dropped, and on_trim is 'refuse': use a "
                    "NullConversationManager, or choose on_trim='fork' or 'keep'",
                    step="trim",
                )
            parent, known, aligned = *trimmed, False
        called = lineage.called(messages, stands) if hint is None else None
        origin = called[0] if called is not None else hint
        discarded = None
        if again and hint is not None and hint is not parent and _thrown_away(hint, preamble, messages):
            discarded = hint
        rewritten = origin if origin is not None and origin is not parent and origin is not discarded else None
        if rewritten is not None and parent is not None and _descends(parent, rewritten):
            rewritten = None
        tools = self._template_tools(preamble)
        messages = messages if shown is None else shown
        if parent is not None:
            new = template_messages(messages[known - 1 :], call_ids=lineage.call_ids, first=known - 1)[1:]
            forget = parent.passing and _forgets(on_reminder)
            conversation = Conversation(preamble, tools, messages, lineage.call_ids, known, aligned)
            appended = self._extend(parent, new, conversation, on_rewrite) if new and not forget else None
            if appended is not None and appended.piece is not None:
                proved = aligned and not parent.passing and appended.verdict.proved
                return Plan(
                    parent,
                    appended.piece,
                    Join.PROVED if proved else Join.KEPT,
                    self.appender.seen(parent.shape.behind(new), new),
                    aligned,
                    rewritten,
                    discarded,
                    exact=proved and parent.exact,
                    step=step_of(new),
                )
            rewritten = rewritten or parent
        whole = Conversation(preamble, tools, messages, lineage.call_ids, len(messages)).rendered()
        join = Join.ROOT if rewritten is None else Join.FORKED
        shape = self.appender.seen(opening_shape(whole), whole)
        return Plan(None, self.bridge.open(whole, tools), join, shape, True, rewritten, discarded)

    def seen(self, shape: Shape, parsed: ParsedTurn) -> Shape:
        """Return the shape of a conversation with a sampled turn at its end, once its texts were looked at."""
        said: TemplateMessage = {"role": "assistant", "content": parsed.text}
        if parsed.reasoning:
            said["reasoning_content"] = parsed.reasoning
        return self.appender.seen(shape, [said])

    def _extend(
        self, parent: Entry, new: list[TemplateMessage], conversation: Conversation, policy: RewritePolicy
    ) -> Appended | None:
        """Render new messages behind a turn; None when a new branch is to be made."""
        step, appended = step_of(new), self.appender.append(parent, new, conversation)
        verdict = appended.verdict
        if not verdict.proved:
            _say_once(self.soundness.digest, step, policy, verdict.witness)
            if policy is RewritePolicy.REFUSE:
                raise BridgeRefusedError(
                    f"a {step.value} step cannot be appended exactly with this chat template: {verdict.witness}. "
                    "on_template_rewrite is 'refuse'; 'keep' appends as it stands, 'fork' renders a new branch",
                    step=step.value,
                    witness=verdict.witness,
                )
            if policy is RewritePolicy.FORK:
                return None
        return appended

    def _template_tools(self, preamble: Preamble) -> Any:
        """Return tools in the template's form; agents hand over the same ones turn after turn."""
        known, made = self._tools
        if known != preamble.key:
            made = template_tools(preamble.tools)
            self._tools = (preamble.key, made)
        return made


def _say_once(digest: str, step: Step, policy: RewritePolicy, witness: str) -> None:
    """Say what becomes of a step that is not proved, once a process for each template, step and policy."""
    if (digest, step, policy) in _said:
        return
    _said.add((digest, step, policy))
    if policy is RewritePolicy.KEEP:  # exact for training, and every such turn is counted: nothing to be warned of
        logger.info(
            "step=<%s>, witness=<%s> | the chat template would not write this conversation as the model has seen it; "
            "the sampled tokens stay as they are, and such turns count as kept (on_template_rewrite='keep')",
            step.value,
            witness,
        )
    elif policy is RewritePolicy.FORK:
        logger.warning(
            "step=<%s>, witness=<%s> | the chat template writes earlier turns anew here, so each such turn begins a "
            "new branch (on_template_rewrite='fork'); 'keep' goes on in one",
            step.value,
            witness,
        )


def _thrown_away(turn: Entry, preamble: Preamble, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a conversation that asks again has nothing of a turn, not even an edited reply."""
    at = turn.prompt_count
    kept = turn.asked(preamble, messages) and len(messages) > at and messages[at]["role"] == "assistant"
    return not kept


def _forgets(policy: RewritePolicy) -> bool:
    """Return whether a conversation is rendered anew because what was shown for one call of it is gone."""
    if policy is RewritePolicy.REFUSE:
        raise BridgeRefusedError(
            "the last turn was shown text that the conversation no longer holds (the framework's "
            "dynamic_trailing_blocks), and on_reminder is 'refuse': take out what adds it, or choose "
            "on_reminder='keep' or 'fork'",
            step="reminder",
        )
    return policy is RewritePolicy.FORK


def _descends(entry: Entry, ancestor: Entry) -> bool:
    node: Entry | None = entry
    while node is not None:
        if node is ancestor:
            return True
        node = node.parent
    return False
