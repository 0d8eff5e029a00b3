"""What was found out about a template while it is used, in this process.

Probes are made-up conversations; what counts is the real one. So the first conversation of each kind, with its own
system prompt and tools, is compared with one rendering of it before the step counts as proved; whatever the template
can tell from a stand-in is compared every time; and an audit may withdraw a verdict later.

Invariant: a step is `trusted` only after a real conversation of its kind, with the same system prompt and tools, was
one rendering; a verdict that was withdrawn never comes back.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.inspected import Inspections, inspect
from strands_sglang.chat.lineage import Preamble
from strands_sglang.chat.probes import SYSTEM, TOOLS, assistant, results
from strands_sglang.chat.proof import judge
from strands_sglang.chat.shape import Shape, Step
from strands_sglang.chat.verdict import DROPS_REASONING, Trouble, Verdict, asked
from strands_sglang.chat.walk import walk

logger = logging.getLogger(__name__)

_PREAMBLES = 1024
"""System prompts and tools whose kinds are remembered."""


class Trust(str, Enum):
    """How a step of one kind may be appended."""

    ALONE = "alone"
    """Behind a stand-in without system prompt and tools: the template does not look at them there."""
    BEHIND_PREAMBLE = "behind preamble"
    """Behind a stand-in with system prompt and tools."""
    NEVER = "never"
    """Only behind the real conversation: a stand-in gave something else."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What an audit found in this process, of one template."""

    audited: int = 0
    """Conversations that were compared with one rendering."""
    differences: int = 0
    """Those that were another text than the branch, in a place that was called proved."""
    withdrawn: int = 0
    """Verdicts that were withdrawn."""


@dataclass
class Findings:
    """What was found out about one template, its arguments and tokenizer. Safe to use from several threads."""

    digest: str
    """Of the template, its arguments and the tokenizer; "" for one that is not told apart."""
    counts: Counts = field(default_factory=Counts)
    """What audits found."""
    withdrawn: dict[tuple[Step, bool], Verdict] = field(default_factory=dict)
    """Verdicts that were withdrawn, by step and whether assistant turns have reasoning."""

    def __post_init__(self) -> None:
        self._verdicts: dict[Any, Verdict] = {}
        self._walks: dict[Any, dict[Step, str]] = {}
        self._trusted: OrderedDict[str, dict[Any, Trust]] = OrderedDict()
        self._inspections: Inspections | None = None
        self._episodes = 0
        self._lock = threading.Lock()

    def verdict(self, bridge: Bridge, step: Step, shape: Shape, *, tools: bool) -> Verdict:
        """Return what is known of a step behind a conversation of a shape; the first refusal counts."""
        if shape.reasoning and not bridge.template.writes_reasoning:
            return DROPS_REASONING
        found = []
        for name, kind in asked(step, shape):
            if (name, kind) in self.withdrawn:
                return self.withdrawn[name, kind]
            calls = 3 if len(shape.calls) > 1 and name is step else 1
            key = (name, kind, tools, shape.system is None, shape.course, calls)
            if key not in self._verdicts:
                self._verdicts[key] = judge(bridge, name, kind, tools=tools, like=shape, calls=calls)
            found.append(self._verdicts[key])
        return next((verdict for verdict in found if not verdict.proved), found[0])

    def inspections(self, bridge: Bridge) -> Inspections:
        """Return what the template asks of the texts of a conversation."""
        if self._inspections is None:
            template = bridge.template
            talks = [(talk, tools) for talk in _talks(template.writes_reasoning) for tools in (None, TOOLS)]
            self._inspections = inspect(template, talks)
        return self._inspections

    def counts_places(self, bridge: Bridge, step: Step, shape: Shape, *, tools: bool) -> bool:
        """Return whether a template writes a step otherwise in long conversations, or asks what cannot be kept."""
        if self.inspections(bridge).unbounded:
            return True
        key = (shape.reasoning, shape.bare, tools, shape.system is None)
        if key not in self._walks:
            system = shape.system is not None
            self._walks[key] = walk(bridge, reasoning=shape.reasoning, bare=shape.bare, tools=tools, system=system)
        asked_of = Step.TOOL if step is Step.USER_AFTER_TOOL else step
        return asked_of in self._walks[key]

    def trust(self, preamble: Preamble, step: Step, shape: Shape) -> Trust | None:
        """Return how a step may be appended; None when no conversation of its kind was seen with this preamble."""
        known = self._trusted.get(preamble.key)
        return None if known is None else known.get((step, shape.kind))

    def learn(self, preamble: Preamble, step: Step, shape: Shape, trust: Trust) -> None:
        """Remember how a step may be appended."""
        with self._lock:
            self._trusted.setdefault(preamble.key, {})[step, shape.kind] = trust
            self._trusted.move_to_end(preamble.key)
            while len(self._trusted) > _PREAMBLES:
                self._trusted.popitem(last=False)

    def first(self, count: int) -> bool:
        """Return whether an episode is one of the first in this process; it is counted by asking."""
        with self._lock:
            self._episodes += 1
            return self._episodes <= count

    def audited(self) -> None:
        """Count a conversation that was compared."""
        with self._lock:
            known = self.counts
            self.counts = Counts(known.audited + 1, known.differences, known.withdrawn)

    def withdraw(self, step: Step, shape: Shape, witness: str) -> None:
        """Withdraw what was proved of a step behind conversations like this one, and say so."""
        with self._lock:
            fresh = [kind for kind in asked(step, shape) if kind not in self.withdrawn]
            for kind in fresh:
                self.withdrawn[kind] = Verdict(Trouble.REWRITES, witness)
            known = self.counts
            self.counts = Counts(known.audited, known.differences + 1, known.withdrawn + len(fresh))
        if fresh:
            logger.warning(
                "step=<%s>, witness=<%s> | a whole rendering differs from what was appended: no longer proved",
                step.value,
                witness,
            )


_FINDINGS: dict[str, Findings] = {}


def findings_of(digest: str) -> Findings:
    """Return what this process found out about a template, by the digest of its soundness."""
    return _FINDINGS.setdefault(digest, Findings(digest))


def _talks(reasoning: bool) -> list[list[Any]]:
    """Return conversations to notice what a template asks."""
    question: dict[str, Any] = {"role": "user", "content": "x"}
    made: list[list[Any]] = []
    for thinks in {False, reasoning}:
        answer = assistant("x", thinks)
        if thinks:
            answer["reasoning_content"] = "x"
        used = [assistant("", thinks, 1, 1), *results(["x"], 1)]
        more = [assistant("x", thinks, 2, 2), *results(["x", "x"], 2)]
        made += [[question], [question, answer, question], [SYSTEM, question, answer, question, answer, question]]
        made += [[question, *used], [question, *used, answer, question], [SYSTEM, question, answer, question, *more]]
        made += [[question, *used, *more, question]]
    return made
