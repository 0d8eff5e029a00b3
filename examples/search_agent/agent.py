"""A search agent: it answers questions from a folder of notes, with a search tool and a reading tool.

    strands-sglang rollout examples/search_agent/tasks.jsonl --agent examples.search_agent.agent:build ...

The index is BM25 over paragraphs, in the standard library, so the example needs no service. It is built once per
process and shared by all episodes; tools that only read need no locks and no `rerun_tools`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cache
from pathlib import Path

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

CORPUS = Path(__file__).parent / "corpus"
SYSTEM_PROMPT = (
    "You answer questions about a collection of notes. Search first, read what looks useful, then answer in one "
    "sentence and name the note in square brackets, for example [prefix-cache]. If the notes do not say, say so."
)


def words(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return re.findall(r"[a-z0-9]+", text.lower())


class Index:
    """BM25 over the paragraphs of a folder of Markdown files."""

    def __init__(self, folder: Path) -> None:
        self.paragraphs: list[tuple[str, str]] = []
        """Name of the note, and the paragraph."""
        for file in sorted(folder.glob("*.md")):
            parts = [part.strip() for part in file.read_text().split("\n\n")]
            self.paragraphs += [(file.stem, " ".join(part.split())) for part in parts if not part.startswith("#")]
        self._counts = [Counter(words(f"{name} {text}")) for name, text in self.paragraphs]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._mean = sum(self._lengths) / len(self._lengths)
        self._containing = Counter(word for counts in self._counts for word in counts)

    def search(self, query: str, limit: int = 3) -> list[tuple[str, str]]:
        """Return the best paragraphs, best first; empty if no word matches."""
        scores = [self._score(set(words(query)), number) for number in range(len(self.paragraphs))]
        best = sorted(range(len(scores)), key=lambda number: -scores[number])[:limit]
        return [self.paragraphs[number] for number in best if scores[number] > 0]

    def _score(self, query: set[str], number: int, k: float = 1.5, b: float = 0.75) -> float:
        total, counts = len(self.paragraphs), self._counts[number]
        score = 0.0
        for word in query & counts.keys():
            rarity = math.log(1 + (total - self._containing[word] + 0.5) / (self._containing[word] + 0.5))
            weight = counts[word] + k * (1 - b + b * self._lengths[number] / self._mean)
            score += rarity * counts[word] * (k + 1) / weight
        return score


@cache
def index() -> Index:
    """Return the index: one for all episodes of this process."""
    return Index(CORPUS)


@tool
async def search(query: str) -> str:
    """Search the notes.

    Args:
        query: A few keywords.
    """
    found = index().search(query)
    return "\n".join(f"[{name}] {text[:240]}" for name, text in found) or "Nothing found. Try other words."


@tool
async def read(note: str) -> str:
    """Read a whole note.

    Args:
        note: Its name, as search gives it in brackets.
    """
    texts = [text for name, text in index().paragraphs if name == note]
    if not texts:
        raise ValueError(
            f"note must be one of {', '.join(sorted({name for name, _ in index().paragraphs}))}, got {note}"
        )
    return "\n".join(texts)


def build(task, model):
    """Return the agent of one episode."""
    manager = NullConversationManager()
    return Agent(
        model=model,
        tools=[search, read],
        system_prompt=SYSTEM_PROMPT,
        callback_handler=None,
        conversation_manager=manager,
    )


def reward(episode):
    """Return 1.0 for a right answer that names its note; 0.7 without the note; log how it searched."""
    right = all(word in episode.text.lower() for word in words(str(episode.task.answer)))
    cited = f"[{episode.task.data['note']}]" in episode.text
    return {
        "reward": (0.7 + 0.3 * cited) * right,
        "right": float(right),
        "cited": float(cited),
        "tool_calls": float(episode.metrics.tool_calls),
    }
