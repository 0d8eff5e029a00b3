"""The audit: whole conversations held against one rendering, off the path of the turns.

No set of probes covers what a template may look at. So the first conversations of a process, and a share of all later
ones, are rendered whole and compared with their branches, in a thread. A difference that is not the sampled turn's own
spelling withdraws the verdict at once: from then on such a step is not called proved.

Invariant: an audit changes nothing but what is known of the template.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

from strands_sglang.chat.compare import Difference
from strands_sglang.chat.content import template_tools
from strands_sglang.chat.lineage import Entry
from strands_sglang.provider.append import Appender, Conversation, told_of
from strands_sglang.provider.episode import Episode

logger = logging.getLogger(__name__)

AUDIT_SHARE = 0.02
"""Share of the episodes that are audited when nothing else is asked for."""
FIRST = 16
"""Episodes of a process, for each template, that are audited whatever the share."""
_GROWTH = 1.5
"""How much longer a conversation must be before it is audited again."""


@lru_cache(maxsize=1)
def _thread_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="strands-sglang-audit")


class Auditor:
    """Audits the episodes of one model."""

    def __init__(self, appender: Appender, share: float = AUDIT_SHARE) -> None:
        self.share = share
        """Share of episodes that are audited, 0 to 1; 0: none, not even the first ones."""
        self._appender = appender

    def audit(self, entry: Entry, call_ids: Mapping[str, str] | None = None) -> Difference | None:
        """Hold the conversation of a turn, up to its prompt, against one rendering.

        Args:
            entry: The turn.
            call_ids: Ids that the model itself wrote, by those in the messages.

        Returns:
            Where they differ, and what was proved is withdrawn; None when they do not.
        """
        node: Entry | None = entry
        while node is not None and not node.exact:
            node = node.parent
        told = None if node is None else told_of(node)
        if node is None or told is None or len(told) < 2:
            return None
        preamble = node.preamble
        messages = node.history[: node.prompt_count]
        conversation = Conversation(preamble, template_tools(preamble.tools), messages, call_ids or {}, len(messages))
        found = self._appender.difference(told[:-1], told[-1].written, conversation.rendered(), conversation)
        findings = self._appender.findings
        findings.audited()
        if found is not None:
            where = _appended(node, found.turn)
            if where.step is not None and where.parent is not None:
                findings.withdraw(where.step, where.parent.shape, found.witness)
        return found

    def look(self, episode: Episode, entry: Entry) -> Future[None] | None:
        """Audit an episode in a thread, if it is one of those to be audited and has grown enough.

        Args:
            episode: The episode.
            entry: Its last turn.

        Returns:
            What to wait for; None when nothing is done.
        """
        if episode.audit is None:
            episode.audit = self.share > 0 and (self._appender.findings.first(FIRST) or self._drawn(episode.id))
        if not episode.audit or entry.end < _GROWTH * episode.audited:
            return None
        episode.audited = entry.end
        ids = dict(episode.lineage.call_ids)
        episode.under_audit = _thread_of(os.getpid()).submit(self._audit, episode, entry, ids)
        return episode.under_audit

    def _audit(self, episode: Episode, entry: Entry, call_ids: Mapping[str, str]) -> None:
        try:
            found = self.audit(entry, call_ids)
            episode.audits += 1
            episode.audit_differences += found is not None
        except ReferenceError:
            return  # the model was given up meanwhile, and its tokenizer with it
        except Exception:
            logger.exception("turn=<%d> | the audit of a conversation failed", entry.turn)

    def _drawn(self, name: str) -> bool:
        return zlib.crc32(name.encode()) / 2**32 < self.share


def _appended(entry: Entry, turn: int) -> Entry:
    """Return the turn of a branch at an index, the first one that was appended at least."""
    path = [entry]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    path.reverse()
    return path[min(max(1, turn), len(path) - 1)]
