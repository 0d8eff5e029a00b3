"""Checks of real turns: `Auditor` compares conversations with one rendering, `ParserAlarm` warns of a wrong parser.

Auditor: no set of probes covers everything that a template may depend on, so the first conversations of a process, and
a share of all later ones, are rendered completely and compared with their branches, in a thread. A difference other
than the spelling of a sampled turn withdraws the result.

ParserAlarm: with the wrong parser nothing fails: every call is text, and the reward suggests that the policy does not
use its tools. So turns without a parsed call are parsed with the other known parsers.

Invariants: an audit changes only what is known about the template. The alarm only logs warnings; no call is ever taken
from another parser.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

from strands_sglang.chat.conversation import Conversation
from strands_sglang.chat.conversation_index import IndexedTurn
from strands_sglang.chat.differences import Difference
from strands_sglang.provider.appending import Appender, branch_text
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.tool_parsers import (
    ParsedTurn,
    ParseFailure,
    ToolParser,
    get_tool_parser,
    registered,
    tool_parser_names,
)
from strands_sglang.tool_parsers.base import Schemas

logger = logging.getLogger(__name__)

FIRST_EPISODES = 16
"""Episodes per process and template that are audited unless the share is 0."""
_GROWTH = 1.5
"""Factor by which a conversation must have grown before it is audited again."""


@lru_cache(maxsize=1)
def _audit_thread(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="strands-sglang-audit")


class Auditor:
    """Audits the episodes of one model."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender

    def audit(self, entry: IndexedTurn, call_ids: Mapping[str, str] | None = None) -> Difference | None:
        """Compare a turn's conversation with one rendering; a difference withdraws the result. None: no difference."""
        node: IndexedTurn | None = entry
        while node is not None and not node.exact:
            node = node.parent
        turns = None if node is None else branch_text(node)
        if node is None or turns is None or len(turns) < 2:
            return None
        rendered = Conversation(node.preamble, node.history[: node.prompt_count]).rendered(call_ids or {})
        found = self._appender.difference(turns[:-1], turns[-1].prompt, rendered, node.preamble)
        if found is not None:
            where = _appended_turn(node, found.turn)
            if where.step is not None and where.parent is not None:
                self._appender.soundness.withdraw(where.step, where.parent.shape, found.excerpt)
        return found

    def submit(self, episode: EpisodeTokens, entry: IndexedTurn, share: float) -> Future[None] | None:
        """Audit an episode in a thread, if it is selected and has grown enough since its last audit.

        `share` is 0 to 1; 0: none, not even the first episodes. None is returned if no audit was started.
        """
        if episode.audit is None:
            is_drawn = zlib.crc32(episode.id.encode()) / 2**32 < share
            episode.audit = share > 0 and (self._appender.soundness.count_episode(FIRST_EPISODES) or is_drawn)
        if not episode.audit or entry.end < _GROWTH * episode.audited_tokens:
            return None
        episode.audited_tokens = entry.end
        call_ids = dict(episode.index.call_ids)
        episode.last_audit = _audit_thread(os.getpid()).submit(self._audit, episode, entry, call_ids)
        return episode.last_audit

    def _audit(self, episode: EpisodeTokens, entry: IndexedTurn, call_ids: Mapping[str, str]) -> None:
        try:
            found = self.audit(entry, call_ids)
            episode.audits += 1
            episode.audit_differences += found is not None
        except ReferenceError:
            return  # the model and its tokenizer were garbage-collected meanwhile
        except Exception:
            logger.exception("turn=<%d> | audit of a conversation failed", entry.turn)


def _appended_turn(entry: IndexedTurn, turn: int) -> IndexedTurn:
    path = [entry]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    path.reverse()
    return path[min(max(1, turn), len(path) - 1)]


class ParserAlarm:
    """Checks the turns of one model for calls that its parser does not find."""

    def __init__(self, parser: ToolParser, *, tools_shown: bool = True) -> None:
        self._parser = parser
        self._turns_without_calls: int | None = None if tools_shown else 0
        self._matches: Counter[str] = Counter()
        self._warned = False

    def check(self, text: str, parsed: ParsedTurn, schemas: Schemas, after: int | None) -> str | None:
        """Check a turn; log a warning after `after` turns (None: never) with unparsed calls of tools in `schemas`.

        Returns the name of a parser that finds calls in the turn; None if there is none.
        """
        if parsed.calls or any(failed.failure is ParseFailure.SCHEMA for failed in parsed.failures):
            self._matches.clear()  # the parser reads this model's calls, so the rest is text
            self._turns_without_calls = None
            return None
        if after is None or not schemas:
            return None
        if self._turns_without_calls is not None:
            self._turns_without_calls += 1
            if self._turns_without_calls >= after:
                self._turns_without_calls = None
                _warn_unknown_tools(after)
        if self._warned:
            return None
        # As a plain str: here a marker also counts if it was sampled as letters and not as its token.
        rest = str(text[parsed.rest_start :])
        name = next((name for name in self._candidates(rest) if _finds_calls(name, rest, schemas)), None)
        if name is None:
            return None
        self._matches[name] += 1
        if self._matches[name] >= after:
            self._warned = True
            self._warn(name)
        return name

    def _candidates(self, text: str) -> list[str]:
        first = text.lstrip()[:1]
        found = []
        for name, markers in _call_markers(registered()):
            for marker in markers:
                if marker == first if len(marker) == 1 else marker in text:
                    found.append(name)
                    break
        return found

    def _warn(self, name: str) -> None:
        if name == self._parser.name:
            logger.warning(
                "turns=<%d>, parser=<%s> | turns look like tool calls, but their markers were not sampled as the "
                "tokenizer's tokens for them, so they are text; check that this is the tokenizer of the served model",
                self._matches[name],
                name,
            )
        else:
            logger.warning(
                "turns=<%d>, parser=<%s>, would_parse=<%s> | turns look like tool calls and none was parsed; "
                "if they are tool calls, create the model with tool_parser=%r",
                self._matches[name],
                self._parser.name,
                name,
                name,
            )


@lru_cache(maxsize=8)
def _call_markers(parsers: tuple[type[ToolParser], ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, tuple(get_tool_parser(name).call_markers)) for name in tool_parser_names())


@lru_cache(maxsize=1)
def _warn_unknown_tools(turns: int) -> None:
    logger.warning(
        "turns=<%d> | the model has called no tool, and its chat template does not write tools into the prompt; "
        "describe the tools in the system prompt, or use a tokenizer whose template writes them",
        turns,
    )


def _finds_calls(name: str, text: str, schemas: Schemas) -> bool:
    try:
        calls = get_tool_parser(name).parse(text, schemas=schemas).calls
    except Exception as error:  # a user-defined parser may raise
        logger.debug("parser=<%s>, error=<%r> | parser failed on a text", name, error)
        return False
    return any(call.name in schemas for call in calls)
