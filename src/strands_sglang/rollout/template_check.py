"""Every conversation on record held against one rendering of the chat template: `check_templates`.

A certificate says that tokens are those that were sent and sampled. This says whether what was sent is what the
template writes for the whole conversation, wherever a join is called proved.

Invariant: nothing is sampled, and nothing on record is changed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from strands_sglang.chat.content import template_tools
from strands_sglang.chat.lineage import Preamble
from strands_sglang.ledger.ledger import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.shown import counted
from strands_sglang.model import SGLangModel
from strands_sglang.provider.append import Conversation
from strands_sglang.provider.conversations import read_conversations, told_by
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.job import Setup
from strands_sglang.rollout.replay import NoEngine


@dataclass(frozen=True, slots=True)
class TemplateDifference:
    """A conversation that the template writes otherwise."""

    episode: str
    """Id of the episode."""
    leaf: int
    """Last turn of the branch."""
    witness: str
    """What was sent, and what the template writes there now."""


@dataclass(slots=True)
class TemplateReport:
    """What was found out about a run."""

    conversations: int = 0
    """Branches that were compared."""
    unknown: int = 0
    """Finished episodes whose conversations are not on record."""
    differences: list[TemplateDifference] = field(default_factory=list)
    """Those that differ."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = [{"episode": one.episode, "leaf": one.leaf, "witness": one.witness} for one in self.differences]
        return {"conversations": self.conversations, "unknown": self.unknown, "differences": found}

    def text(self) -> str:
        """Return it for people to read."""
        word = "DIFFERENT" if self.differences else "EXACT" if self.conversations else "NOTHING"
        held = counted(self.conversations, "conversation")
        lines = [f"{word}  {held} held against one rendering of the chat template"]
        lines += [f"    {one.episode}, branch {one.leaf}: {one.witness}" for one in self.differences[:20]]
        if self.unknown:
            lines.append(f"  {counted(self.unknown, 'episode has', 'episodes have')} no conversations on record")
        return "\n".join(lines)


def check_templates(
    directory: str | Path, *, tokenizer: Any, episodes: Collection[str] | None = None, **model_options: Any
) -> TemplateReport:
    """Hold every conversation of a run against one rendering.

    Args:
        directory: The run's.
        tokenizer: As it was given to `rollout`.
        episodes: Ids of the only episodes to look at; None: all.
        **model_options: As they were given to `rollout`.
    """
    model = Setup(lambda *_: None, None, tokenizer, NoEngine(), Limits(), dict(model_options)).model()
    report = TemplateReport()
    for record in Ledger(directory).episodes():
        if episodes is None or record.id in episodes:
            _check(record, model, report)
    return report


def _check(record: EpisodeRecord, model: SGLangModel, report: TemplateReport) -> None:
    end = record.end
    if end is None:
        return
    found = read_conversations(end.data)
    if not found:
        report.unknown += 1
        return
    tree, planner = record.tree(), model.planner
    encoder = planner.bridge.encoder
    for one in found:
        path = tree.path(tree[one["leaf"]])
        counts = list(takewhile(lambda count: count is not None, one["counts"]))
        if len(counts) < 2:
            continue
        turns, count = path[: len(counts)], counts[-1]
        preamble = Preamble(one["system"], tuple(one["tools"]), "")
        asked = Conversation(preamble, template_tools(preamble.tools), one["messages"][:count], one["call_ids"], count)
        told = told_by(turns, encoder, model.tool_parser)
        differs = planner.appender.difference(told[:-1], told[-1].written, asked.rendered(), asked, recoded=True)
        report.conversations += 1
        if differs is not None:
            report.differences.append(TemplateDifference(record.id, one["leaf"], differs.witness))
