"""State of each template in this process: its bridge, its soundness report, and evidence from real conversations.

Probes are synthetic, but the result must hold for real conversations. So the first conversation of each kind, with its
own system prompt and tools, is compared with one rendering before a step counts as proved; conversations with texts
that the template inspects are compared every time; and an audit can withdraw a result later.

Invariant: a stand-in is used only after a real conversation of its kind, with the same system prompt and tools, was
equal to one rendering. A withdrawn result is never reinstated.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.control_tokens import added_tokens
from strands_sglang.chat.conversation import Preamble
from strands_sglang.chat.conversation_shape import ConversationShape, Step
from strands_sglang.chat.soundness.checks import (
    TOOLS,
    check_long_conversation,
    check_step,
    inspected_conversations,
    prove,
)
from strands_sglang.chat.soundness.inspection import Inspections, inspect
from strands_sglang.chat.soundness.report import DROPS_REASONING, FailureReason, Soundness, StepResult, required_checks
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.chat.tokenization import Encoder, load_tokenizer

logger = logging.getLogger(__name__)

_MAX_PREAMBLES = 1024

_bridges: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], tuple[Bridge, Soundness]]] = weakref.WeakKeyDictionary()
_reports: dict[str, Soundness] = {}
"""Another copy of the same tokenizer is not checked again."""


def sound_bridge(
    tokenizer: Any, *, chat_template: str | None = None, arguments: Mapping[str, Any] | None = None
) -> tuple[Bridge, Soundness]:
    """Return the bridge of a template and its soundness report.

    The bridge is cached as long as the tokenizer lives, and holds only a weak reference to it: a caller that keeps the
    bridge must keep the tokenizer, too.
    """
    added = tuple(added_tokens(tokenizer))
    known = _bridges.setdefault(tokenizer, {})
    own = getattr(tokenizer, "chat_template", None) if chat_template is None else chat_template
    own = own if isinstance(own, str) else repr(own)
    given = repr(sorted(arguments.items())) if arguments else "[]"
    key = (own, given, added)
    found = known.get(key)
    if found is None:
        # A proxy: a bridge with a strong reference would keep its tokenizer in this table forever.
        held = weakref.proxy(tokenizer)
        encoder = Encoder(held)
        bridge = Bridge(ChatTemplate(held, encoder.control, chat_template, arguments), encoder)
        named = f"{bridge.template.source}\n{own!r} {given} {sorted(added)!r}\n{encoder.digest}"
        digest = hashlib.sha256(named.encode()).hexdigest()[:16]
        if digest not in _reports:
            _reports[digest] = prove(bridge, digest)
        found = known[key] = (bridge, _reports[digest])
    return found


def soundness(
    tokenizer: Any, *, chat_template: str | None = None, arguments: Mapping[str, Any] | None = None
) -> Soundness:
    """Return for which steps new messages can be appended exactly with this tokenizer's chat template.

    Args:
        tokenizer: A transformers tokenizer, or the name or path to load it from.
        chat_template: A template to use instead of the tokenizer's own.
        arguments: Template arguments, such as `{"enable_thinking": False}`.

    Example:
        ```python
        print(soundness("Qwen/Qwen3-8B", arguments={"enable_thinking": False}).advice)
        ```
    """
    return sound_bridge(load_tokenizer(tokenizer), chat_template=chat_template, arguments=arguments)[1]


class StandIn(str, Enum):
    """Which stand-in conversation gives the same continuation as the real one, for one kind of step."""

    WITHOUT_PREAMBLE = "without preamble"
    """System prompt and tools do not affect the continuation."""
    WITH_PREAMBLE = "with preamble"
    NONE = "none"
    """Only the real conversation gives it."""


@dataclass
class RuntimeSoundness:
    """State of one template with its arguments and tokenizer in this process. Thread-safe."""

    digest: str
    """Empty if not identified."""
    withdrawn: dict[tuple[Step, bool], StepResult] = field(default_factory=dict)
    """Results that replace withdrawn ones, by step and whether assistant turns have reasoning."""

    def __post_init__(self) -> None:
        self._results: dict[Any, StepResult] = {}
        self._long_conversations: dict[Any, dict[Step, str]] = {}
        self._stand_ins: OrderedDict[str, dict[Any, StandIn]] = OrderedDict()
        self._inspections: Inspections | None = None
        self._episodes = 0
        self._lock = threading.Lock()

    def result(self, bridge: Bridge, step: Step, shape: ConversationShape, *, tools: bool) -> StepResult:
        """Return the result of a step after a conversation of a shape: the first failure if any check failed."""
        if shape.reasoning and not bridge.template.writes_reasoning:
            return DROPS_REASONING
        found = []
        for name, kind in required_checks(step, shape):
            if (name, kind) in self.withdrawn:
                return self.withdrawn[name, kind]
            calls = 3 if len(shape.calls) > 1 and name is step else 1
            for given in shape.given or (None,):
                key = (name, kind, tools, shape.system is None, shape.history, calls, given)
                if key not in self._results:
                    self._results[key] = check_step(
                        bridge, name, kind, tools=tools, like=shape, calls=calls, given=given
                    )
                found.append(self._results[key])
        return next((result for result in found if not result.proved), found[0])

    def is_withdrawn(self, result: StepResult) -> bool:
        """Return whether an audit withdrew what the probes found."""
        return result in list(self.withdrawn.values())  # a copy: audits run in a thread

    def inspections(self, bridge: Bridge) -> Inspections:
        """Return the queries that the template makes on the texts of a conversation."""
        if self._inspections is None:
            template = bridge.template
            conversations = [
                (messages, tools)
                for messages in inspected_conversations(template.writes_reasoning)
                for tools in (None, TOOLS)
            ]
            self._inspections = inspect(template, conversations)
        return self._inspections

    def depends_on_position(
        self, bridge: Bridge, step: Step, shape: ConversationShape, *, tools: bool, proved: bool
    ) -> bool:
        """Return whether the template writes a step differently in long conversations, or cannot be inspected.

        `proved`: or rewrites what precedes the step there.
        """
        if self.inspections(bridge).unbounded:
            return True
        key = (shape.reasoning, shape.no_reasoning, tools, shape.system is None, shape.given, proved)
        if key not in self._long_conversations:
            self._long_conversations[key] = check_long_conversation(
                bridge,
                reasoning=shape.reasoning,
                no_reasoning=shape.no_reasoning,
                tools=tools,
                system=shape.system is not None,
                given=shape.given,
                proved=proved,
            )
        checked = Step.TOOL if step is Step.USER_AFTER_TOOL else step
        return checked in self._long_conversations[key]

    def stand_in(self, preamble: Preamble, step: Step, shape: ConversationShape) -> StandIn | None:
        """Return which stand-in to use; None if no conversation of this kind was compared with this preamble yet."""
        known = self._stand_ins.get(preamble.key)
        return None if known is None else known.get((step, shape.kind))

    def learn(self, preamble: Preamble, step: Step, shape: ConversationShape, stand_in: StandIn) -> None:
        """Remember which stand-in to use."""
        with self._lock:
            self._stand_ins.setdefault(preamble.key, {})[step, shape.kind] = stand_in
            self._stand_ins.move_to_end(preamble.key)
            while len(self._stand_ins) > _MAX_PREAMBLES:
                self._stand_ins.popitem(last=False)

    def count_episode(self, first: int) -> bool:
        """Count an episode; return whether it is among the `first` ones of this process."""
        with self._lock:
            self._episodes += 1
            return self._episodes <= first

    def withdraw(self, step: Step, shape: ConversationShape, difference: str) -> None:
        """Withdraw the result of a step after conversations of this shape, and log it."""
        with self._lock:
            fresh = [check for check in required_checks(step, shape) if check not in self.withdrawn]
            for check in fresh:
                self.withdrawn[check] = StepResult(FailureReason.REWRITES, difference)
        if fresh:
            logger.warning(
                "step=<%s>, difference=<%s> | one rendering of a conversation differs from its branch; the step no "
                "longer counts as proved",
                step.value,
                difference,
            )


_runtimes: dict[str, RuntimeSoundness] = {}


def runtime_soundness(digest: str) -> RuntimeSoundness:
    """Return the state of a template, by the digest of its soundness report."""
    return _runtimes.setdefault(digest, RuntimeSoundness(digest))
