"""The soundness report of a template: which steps are proved, and why others are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from strands_sglang.chat.conversation_shape import ConversationShape, Step


class FailureReason(str, Enum):
    """Why a step is not proved."""

    REWRITES = "rewrites"
    """The template changes text that it wrote before: appending is possible, but differs from one rendering."""
    TOKENS = "tokens"
    """The text is the same but its tokens are not: characters on both sides of the boundary form one token."""
    REFUSES = "refuses"
    LACKS = "lacks"
    UNPROBED = "unprobed"
    """No probe covers these messages."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of checking one step."""

    failure: FailureReason | None = None
    """Why the step is not proved; None if it is."""
    detail: str = ""
    """The first difference (see `first_difference`), or the template's error; empty if the step is proved."""

    @property
    def proved(self) -> bool:
        """Whether every probe gave equal tokens."""
        return self.failure is None


UNPROBED = StepResult(
    FailureReason.UNPROBED, "no probe covers these messages: they contain an answer, or leave calls unanswered"
)
DROPS_REASONING = StepResult(FailureReason.REWRITES, "the template does not write reasoning: sampled reasoning is lost")


@dataclass(frozen=True, slots=True)
class Soundness:
    """The results for one template and tokenizer."""

    digest: str
    """Hash of the template, its arguments and the tokenizer."""
    results: Mapping[tuple[Step, bool], StepResult]
    """By step and whether assistant turns have reasoning."""
    parallel: StepResult
    reasoning: bool
    without_tools: Mapping[bool, StepResult] = field(default_factory=dict)
    """For a user message if no tools are available, by whether assistant turns have reasoning."""

    def result(self, step: Step, shape: ConversationShape) -> StepResult:
        """Return the result of a step after a conversation of a shape: the first failure if any check failed."""
        if shape.reasoning and not self.reasoning:
            return DROPS_REASONING
        found = [self.results[check] for check in required_checks(step, shape)]
        if len(shape.calls) > 1:
            found.append(self.parallel)
        return next((result for result in found if not result.proved), found[0])

    @property
    def proved(self) -> list[str]:
        """Names of the proved steps."""
        return [name for name, result in self._named() if result.proved]

    @property
    def refused(self) -> dict[str, str]:
        """Names of the steps that are not proved, with the first difference or error of each."""
        return {name: result.detail for name, result in self._named() if not result.proved}

    def _named(self) -> list[tuple[str, StepResult]]:
        named = []
        for step in Step:
            first = self.results[step, self.reasoning]
            named.append((step.value, first))
            without_reasoning = self.results[step, False]
            if self.reasoning and without_reasoning.failure != first.failure:
                named.append((f"{step.value} without reasoning", without_reasoning))
            without_tools = self.without_tools.get(self.reasoning, first)
            if step is Step.USER and without_tools.failure != first.failure:
                named.append((f"{step.value} without tools", without_tools))
        return [*named, ("parallel tools", self.parallel)]

    @property
    def advice(self) -> str:
        """What to do, as text."""
        return " ".join(_advice(dict(self._named())))


def required_checks(step: Step, shape: ConversationShape) -> list[tuple[Step, bool]]:
    """Return what must be proved for a step after a conversation of a shape: steps, each with or without reasoning."""
    kinds = [kind for kind, present in ((True, shape.reasoning), (False, shape.no_reasoning)) if present] or [False]
    steps = [step, Step.ANSWER] if step is Step.USER and shape.in_tool_run else [step]
    return [(name, kind) for name in steps for kind in kinds]


def _advice(named: dict[str, StepResult]) -> list[str]:
    lines = []
    tool, user = named[Step.TOOL.value], named[Step.USER.value]
    if tool.proved:
        lines.append("Tool results are appended exactly.")
    elif tool.failure is FailureReason.LACKS:
        lines.append("The template does not support tools: pass one that does as chat_template=.")
    else:
        lines.append("Appending tool results is not proved: use fork, or a template that keeps its history.")
    if user.failure is FailureReason.REWRITES:
        lines.append("A user message makes the template rewrite history: use keep (append without rewriting) or fork.")
    elif not user.proved:
        lines.append("A user message cannot be appended: the conversation forks there.")
    if named["parallel tools"].failure is FailureReason.REFUSES:
        lines.append("The template accepts only one call per turn.")
    return lines
