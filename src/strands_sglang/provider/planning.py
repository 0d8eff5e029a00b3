"""Plans a turn: the text that extends its branch, or that it starts a new one.

Invariant: planning changes nothing. It decides everything that is recorded of a turn except the sampled tokens.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace

from strands_sglang.chat.bridge import Bridge, PromptText
from strands_sglang.chat.conversation import Conversation, Preamble
from strands_sglang.chat.conversation_index import IndexedTurn, Lineage
from strands_sglang.chat.conversation_shape import ConversationShape, Step, opening_shape, step_of
from strands_sglang.chat.image_files import ImageFile, images_of
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.soundness import Soundness, runtime_soundness
from strands_sglang.errors import BridgeRefusedError, ConfigurationError, TemplateRefusedError
from strands_sglang.provider.appending import Appended, Appender
from strands_sglang.provider.config import HiddenToolsPolicy, RewritePolicy, Settings
from strands_sglang.tokens import Join
from strands_sglang.tool_parsers import ToolParser
from strands_sglang.tool_parsers.base import PlainTextParser

logger = logging.getLogger(__name__)

_MAX_PREAMBLES = 1024

_logged: set[tuple[str, Step, RewritePolicy]] = set()


@dataclass(frozen=True, slots=True)
class Plan:
    """How a turn is made."""

    lineage: Lineage
    prompt: PromptText
    join: Join
    shape: ConversationShape
    exact: bool = True
    """Whether the prompt equals one rendering of its conversation, as far as known."""
    step: Step | None = None
    images: tuple[ImageFile, ...] = ()


class Planner:
    """Plans turns for one bridge and its soundness report."""

    def __init__(self, bridge: Bridge, soundness: Soundness, parser: ToolParser | None = None) -> None:
        self.bridge = bridge
        self.parser = parser or PlainTextParser()
        self.soundness = soundness
        self.appender = Appender(bridge, runtime_soundness(soundness.digest), self.parser)
        self._tools_shown: set[str] = set()  # keys of preambles

    def plan(self, conversation: Conversation, lineage: Lineage, settings: Settings) -> Plan:
        """Plan a turn; `settings` say what to do if history was rewritten."""
        if not lineage.aligned and settings.on_trim is RewritePolicy.REFUSE:
            raise BridgeRefusedError(
                "the oldest messages of the conversation were dropped, and on_trim is 'refuse': use a "
                "NullConversationManager, or set on_trim to 'fork' or 'keep'",
                step="trim",
            )
        if lineage.parent is not None:
            extended = self._extended(lineage.parent, conversation, lineage, settings)
            if extended is not None:
                return extended
            lineage = lineage.forked()
        whole = conversation.rendered(lineage.call_ids)
        join = Join.ROOT if lineage.rewritten_from is None else Join.FORKED
        shape = self.appender.inspected_shape(opening_shape(whole), whole)
        preamble = conversation.preamble
        opening = self.bridge.at(preamble.time).open(whole, preamble.template_tools)
        if settings.on_hidden_tools is HiddenToolsPolicy.REFUSE and not self.bridge.template.hides_tools:
            self._check_tools_shown(preamble, whole, opening)
        return Plan(lineage, opening, join, shape, images=tuple(images_of(whole)))

    def _check_tools_shown(self, preamble: Preamble, whole: list[TemplateMessage], opening: PromptText) -> None:
        """Raise ConfigurationError if a first prompt is the same without its tools; once for each preamble."""
        if preamble.template_tools is None or preamble.key in self._tools_shown:
            return
        with suppress(TemplateRefusedError):
            if self.bridge.at(preamble.time).open(whole).text == opening.text:
                names = ", ".join(tool["function"]["name"] for tool in preamble.template_tools[:8])
                raise ConfigurationError(
                    f"the chat template must write the agent's tools ({names}) into the prompt, but renders the same "
                    "prompt without them, so the model does not see them: pass a template that writes tools as "
                    "chat_template= (see docs/templates.md). If the system prompt describes them, or the model was "
                    "trained for exactly these, pass on_hidden_tools='allow'"
                )
        if len(self._tools_shown) >= _MAX_PREAMBLES:
            self._tools_shown.clear()
        self._tools_shown.add(preamble.key)

    def _extended(
        self, parent: IndexedTurn, conversation: Conversation, lineage: Lineage, settings: Settings
    ) -> Plan | None:
        reply, *new = conversation.rendered_from(lineage.known - 1, lineage.call_ids)
        fork = parent.transient and _forks_at_reminder(settings.on_reminder)
        if not new or fork:
            return None
        appended = self.appender.append(parent, reply, new, conversation, lineage)
        if not self._accepts(appended, step_of(new), settings.on_template_rewrite) or appended.prompt is None:
            return None
        proved = lineage.aligned and not parent.transient and appended.result.proved
        shape = parent.shape.after(new)
        return Plan(
            lineage,
            appended.prompt,
            Join.PROVED if proved else Join.KEPT,
            shape if appended.plain or not shape.plain else replace(shape, plain=False),
            exact=proved and parent.exact,
            step=step_of(new),
            images=tuple(images_of(new)),
        )

    def _accepts(self, appended: Appended, step: Step, policy: RewritePolicy) -> bool:
        result = appended.result
        if result.proved:
            return True
        _log_once(self.soundness.digest, step, policy, result.detail)
        if policy is RewritePolicy.REFUSE:
            raise BridgeRefusedError(
                f"a {step.value} step cannot be appended exactly with this chat template: {result.detail}. "
                "on_template_rewrite is 'refuse'; 'keep' appends to the branch, 'fork' renders a new one",
                step=step.value,
                first_difference=result.detail,
            )
        return policy is not RewritePolicy.FORK


def _log_once(digest: str, step: Step, policy: RewritePolicy, first_difference: str) -> None:
    if (digest, step, policy) in _logged:
        return
    _logged.add((digest, step, policy))
    if policy is RewritePolicy.KEEP:  # no warning: training stays exact, and every such turn is counted
        logger.info(
            "step=<%s>, first_difference=<%s> | the chat template would render this conversation differently from what "
            "the model saw; the sampled tokens are kept, and such turns are counted (on_template_rewrite='keep')",
            step.value,
            first_difference,
        )
    elif policy is RewritePolicy.FORK:
        logger.warning(
            "step=<%s>, first_difference=<%s> | the chat template rewrites earlier turns at this step, so each such "
            "turn starts a new branch (on_template_rewrite='fork'); 'keep' continues in one branch",
            step.value,
            first_difference,
        )


def _forks_at_reminder(policy: RewritePolicy) -> bool:
    if policy is RewritePolicy.REFUSE:
        raise BridgeRefusedError(
            "the prompt of the last turn had text that the conversation no longer contains (the framework's "
            "dynamic_trailing_blocks), and on_reminder is 'refuse': remove its source, or set "
            "on_reminder to 'keep' or 'fork'",
            step="reminder",
        )
    return policy is RewritePolicy.FORK
