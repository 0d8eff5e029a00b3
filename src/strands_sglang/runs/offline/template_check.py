"""Compares every recorded conversation with one rendering of the chat template: `check_templates`.

Invariant: nothing is sampled, and the ledger is not changed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from strands_sglang._terminal import counted
from strands_sglang.chat.conversation import Conversation
from strands_sglang.ledger.files import with_images
from strands_sglang.ledger.messages import read_conversations
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.model import SGLangModel
from strands_sglang.provider.episode import decode_branch
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.offline.replay import NoEngine
from strands_sglang.runs.workers.spec import RunSpec


@dataclass(frozen=True, slots=True)
class TemplateDifference:
    """A conversation for which the template renders another text."""

    episode: str
    branch: int
    """Id of the branch's last turn."""
    first_difference: str
    """The text that was sent, and the text that the template renders there now."""


@dataclass(slots=True)
class TemplateReport:
    """The result of `check_templates`."""

    conversations: int = 0
    unknown: int = 0
    """Number of finished episodes without recorded conversations."""
    differences: list[TemplateDifference] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)

    def text(self) -> str:
        """Return the report as readable text; it lists at most 20 differences."""
        verdict = "DIFFERENT" if self.differences else "EXACT" if self.conversations else "NOTHING"
        compared = counted(self.conversations, "conversation")
        lines = [f"{verdict}  {compared} compared with one rendering of the chat template"]
        lines += [f"    {one.episode}, branch {one.branch}: {one.first_difference}" for one in self.differences[:20]]
        if self.unknown:
            lines.append(f"  {counted(self.unknown, 'episode has', 'episodes have')} no recorded conversations")
        return "\n".join(lines)


def check_templates(
    directory: str | Path, *, tokenizer: Any, episodes: Collection[str] | None = None, **model_options: Any
) -> TemplateReport:
    """Compare every recorded conversation with one rendering of the template, with the arguments given to `rollout`."""
    model = RunSpec(lambda *_: None, None, tokenizer, NoEngine(), Limits(), dict(model_options)).model()
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
        messages = [
            {**message, "content": with_images(message.get("content"), record.files)} for message in one["messages"]
        ]
        path = tree.path(tree[one["branch"]])
        counts = list(takewhile(lambda count: count is not None, one["counts"]))
        if len(counts) < 2:
            continue
        turns, count = path[: len(counts)], counts[-1]
        conversation = Conversation.of(messages[:count], system=one["system"], tool_specs=one["tools"])
        conversation = conversation.at(record.template_time)
        rendered = conversation.rendered(one["call_ids"])
        replies = decode_branch(turns, encoder, model.tool_parser)
        differs = planner.appender.difference(
            replies[:-1], replies[-1].prompt, rendered, conversation.preamble, recoded=True
        )
        report.conversations += 1
        if differs is not None:
            report.differences.append(TemplateDifference(record.id, one["branch"], differs.excerpt))
