"""What is proved of a template, and what is not, in a form a person can read and a program can act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from strands_sglang.chat.shape import Shape, Step


class Trouble(str, Enum):
    """Why a step is not proved."""

    REWRITES = "rewrites"
    """The template changes what it wrote before; appending is possible, and differs from a whole rendering."""
    TOKENS = "tokens"
    """The text is the same but its tokens are not: letters of both sides of the join make one token."""
    REFUSES = "refuses"
    """The template raises an error."""
    LACKS = "lacks"
    """The template does not write such messages at all."""
    UNTRIED = "untried"
    """No probe looks like this."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the probes of one step said."""

    trouble: Trouble | None = None
    """None: proved."""
    witness: str = ""
    """Where it first went wrong: text before, then what stood there and what stands there now."""

    @property
    def proved(self) -> bool:
        """Whether every probe gave equal tokens."""
        return self.trouble is None


UNTRIED = Verdict(Trouble.UNTRIED, "such messages were not tried: an answer among them, or calls left open")


DROPS_REASONING = Verdict(Trouble.REWRITES, "the template writes no reasoning: what was sampled of it is left out")


@dataclass(frozen=True, slots=True)
class Soundness:
    """The verdicts on one template and tokenizer."""

    digest: str
    """Hash of the template, its arguments and the tokenizer."""
    verdicts: Mapping[tuple[Step, bool], Verdict]
    """By step and whether assistant turns have reasoning."""
    parallel: Verdict
    """On several results of one turn."""
    reasoning: bool
    """Whether the template writes reasoning."""
    without_tools: Mapping[bool, Verdict] = field(default_factory=dict)
    """On a user message where no tools are on offer, by whether assistant turns have reasoning."""

    def verdict(self, step: Step, shape: Shape) -> Verdict:
        """Return what is known of a step behind a conversation of a shape; the first refusal counts."""
        if shape.reasoning and not self.reasoning:
            return DROPS_REASONING
        found = [self.verdicts[name, kind] for name, kind in asked(step, shape)]
        if len(shape.calls) > 1:
            found.append(self.parallel)
        return next((verdict for verdict in found if not verdict.proved), found[0])

    @property
    def proved(self) -> list[str]:
        """Names of the proved steps."""
        return [name for name, verdict in self._named() if verdict.proved]

    @property
    def refused(self) -> dict[str, str]:
        """Names of the others, with their witnesses."""
        return {name: verdict.witness for name, verdict in self._named() if not verdict.proved}

    def _named(self) -> list[tuple[str, Verdict]]:
        named = []
        for step in Step:
            first = self.verdicts[step, self.reasoning]
            named.append((step.value, first))
            bare = self.verdicts[step, False]
            if self.reasoning and bare.trouble != first.trouble:
                named.append((f"{step.value} without reasoning", bare))
            toolless = self.without_tools.get(self.reasoning, first)
            if step is Step.USER and toolless.trouble != first.trouble:
                named.append((f"{step.value} without tools", toolless))
        return [*named, ("parallel tools", self.parallel)]

    @property
    def advice(self) -> str:
        """What to do, in words."""
        return " ".join(_advice(dict(self._named())))


def asked(step: Step, shape: Shape) -> list[tuple[Step, bool]]:
    """Return what has to be proved for a step behind a conversation of a shape: steps, and reasoning or not."""
    kinds = [kind for kind, present in ((True, shape.reasoning), (False, shape.bare)) if present] or [False]
    steps = [step, Step.ANSWER] if step is Step.USER and shape.run else [step]
    return [(name, kind) for name in steps for kind in kinds]


def _advice(named: dict[str, Verdict]) -> list[str]:
    lines = []
    tool, user = named[Step.TOOL.value], named[Step.USER.value]
    if tool.proved:
        lines.append("Tool results are appended exactly.")
    elif tool.trouble is Trouble.LACKS:
        lines.append("The template knows no tools: give one that does (chat_template=).")
    else:
        lines.append("Tool results cannot be proved: choose fork, or a template that keeps its history.")
    if user.trouble is Trouble.REWRITES:
        lines.append("A user turn makes the template rewrite history: keep (append as it stands) or fork.")
    elif not user.proved:
        lines.append("A user turn cannot be appended: the conversation forks there.")
    if named["parallel tools"].trouble is Trouble.REFUSES:
        lines.append("One call a turn only.")
    return lines
