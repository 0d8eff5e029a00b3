"""The audit: a wrong `proved` is found, withdrawn and counted while the run goes on."""

from __future__ import annotations

import gc
import itertools
import logging
from typing import Any, cast

import pytest
from strands import Agent
from strands.agent.conversation_manager import NullConversationManager

from attack.awkward import chatml
from families import tokenizer
from scripted_engine import ScriptedEngine
from strands_sglang import Join, SGLangModel
from strands_sglang.chat.findings import Findings, Trust
from strands_sglang.chat.inspected import Inspections
from strands_sglang.errors import ConfigurationError
from strands_sglang.provider.audit import FIRST, Auditor

SOURCE = chatml(user="{% if m.content == 'b?' and not loop.last %}B{% else %}{{ m.content }}{% endif %}")
"""Rewrites one question once something follows it: nothing but that very word shows it."""


def model_on(source: str, replies: list[str], **options: Any) -> SGLangModel:
    tok = tokenizer("qwen2.5")
    return SGLangModel(tokenizer=tok, client=ScriptedEngine(tok, replies), chat_template=source, **options)


def blind(model: SGLangModel) -> Findings:
    """Make a model trust its template whatever it looks at, as if nothing had been noticed."""
    findings = Findings("blind")
    findings._inspections = Inspections({}, {}, (), unbounded=False)
    findings.trust = lambda *_: Trust.BEHIND_PREAMBLE  # type: ignore[method-assign]
    model.planner.appender.findings = findings
    return findings


async def talk(model: SGLangModel, *questions: str) -> list[Join]:
    with model.episode() as episode:
        agent = Agent(model=model, callback_handler=None, conversation_manager=NullConversationManager())
        for question in questions:
            await agent.invoke_async(question)
        if episode.under_audit is not None:
            episode.under_audit.result(30)
    return [turn.join for turn in episode.tree]


async def test_a_wrong_verdict_is_withdrawn_at_once(caplog: pytest.LogCaptureFixture) -> None:
    model = model_on(SOURCE, ["One.", "Two.", "Three."] * 2)
    findings = blind(model)
    with caplog.at_level(logging.WARNING):
        assert await talk(model, "a?", "b?", "c?") == [Join.ROOT, Join.PROVED, Join.PROVED]
    assert findings.counts.differences == 1 and findings.counts.withdrawn == 1
    assert any("no longer proved" in message and "⟦" in message for message in caplog.messages)
    assert await talk(model, "a?", "b?", "c?") == [Join.ROOT, Join.KEPT, Join.KEPT]


async def test_what_looks_closely_is_noticed_before() -> None:
    model = model_on(SOURCE, ["One.", "Two.", "Three."])
    assert await talk(model, "a?", "b?", "c?") == [Join.ROOT, Join.PROVED, Join.KEPT]
    assert model.planner.appender.findings.counts.differences == 0


async def test_a_good_template_is_audited_and_nothing_is_found() -> None:
    model = model_on(chatml(), ["One.", "Two.", "Three."])
    model.planner.appender.findings = findings = Findings("fresh")
    await talk(model, "a?", "b?", "c?")
    assert findings.counts.audited >= 1 and findings.counts.differences == 0


async def test_the_first_episodes_and_a_share_of_the_others() -> None:
    model = model_on(chatml(), ["One.", "Two."] * (FIRST + 400), audit_share=0.1)
    model.planner.appender.findings = findings = Findings("fresh")
    for _ in range(FIRST):
        await talk(model, "a?", "b?")
    assert findings.counts.audited == FIRST
    for _ in range(100):
        await talk(model, "a?", "b?")
    assert FIRST < findings.counts.audited < FIRST + 40


async def test_none_where_none_is_asked_for() -> None:
    model = model_on(chatml(), ["One.", "Two."], audit_share=0)
    model.planner.appender.findings = findings = Findings("fresh")
    await talk(model, "a?", "b?")
    assert findings.counts.audited == 0


@pytest.mark.parametrize("share", [-0.1, 1.5, True, "all", None])
def test_a_share_is_a_share(share: Any) -> None:
    with pytest.raises(ConfigurationError, match="audit_share"):
        model_on(chatml(), [], audit_share=share)


async def test_a_conversation_is_audited_again_only_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(Auditor, "_audit", lambda self, episode, entry, ids: looked.append(entry.end))
    model = model_on(chatml(), ["One."] * 64)
    model.planner.appender.findings = Findings("fresh")
    await talk(model, *["a?"] * 64)
    assert 5 < len(looked) < 16
    assert all(after >= 1.5 * before for before, after in itertools.pairwise(looked))


async def test_a_model_that_is_given_up_meanwhile_withdraws_nothing() -> None:
    """A model for each sample, as trainers make them: its tokenizer may be gone before its last audit is made."""
    from transformers import PreTrainedTokenizerFast

    source, make = tokenizer("qwen2.5"), cast(Any, PreTrainedTokenizerFast)
    tok = make(tokenizer_object=source.backend_tokenizer, chat_template=chatml())
    model = SGLangModel(tokenizer=tok, client=ScriptedEngine(source, ["One.", "Two."]), audit_share=0)
    model.planner.appender.findings = findings = Findings("fresh")
    with model.episode() as episode:
        agent = Agent(model=model, callback_handler=None, conversation_manager=NullConversationManager())
        await agent.invoke_async("a?")
        await agent.invoke_async("b?")
    auditor, entry = Auditor(model.planner.appender), episode.lineage.entry(1)
    assert entry is not None
    del model, agent, tok
    gc.collect()
    auditor._audit(episode, entry, {})
    assert findings.counts.differences == 0 and not findings.withdrawn
