"""Audits find a wrong `proved`, withdraw it and count it during the run."""

from __future__ import annotations

import gc
import itertools
import logging
from typing import Any, cast

import pytest
from strands import Agent
from strands.agent.conversation_manager import NullConversationManager

from attack.awkward import chatml
from strands_sglang import EpisodeTokens, SGLangModel
from strands_sglang.chat._guarded_template import GuardedTemplate
from strands_sglang.chat.soundness import RuntimeSoundness, StandIn
from strands_sglang.chat.soundness.inspection import Inspections
from strands_sglang.errors import ConfigurationError
from strands_sglang.provider.audit import FIRST_EPISODES, Auditor
from strands_sglang.tokens import Join
from support.families import tokenizer
from support.scripted_engine import ScriptedEngine

SOURCE = chatml(user="{% if m.content == 'b?' and not loop.last %}B{% else %}{{ m.content }}{% endif %}")
"""Rewrites one question once something follows it; only this exact text triggers it."""


def model_on(source: str, replies: list[str], **options: Any) -> SGLangModel:
    tok = tokenizer("qwen2.5")
    return SGLangModel(tokenizer=tok, client=ScriptedEngine(tok, replies), chat_template=source, **options)


def blind(model: SGLangModel) -> RuntimeSoundness:
    """Make a model use stand-ins although its template inspects texts, as if inspection had found nothing."""
    soundness = RuntimeSoundness("blind")
    soundness._inspections = Inspections({}, {}, (), unbounded=False)
    soundness.stand_in = lambda *_: StandIn.WITH_PREAMBLE  # type: ignore[method-assign]
    model.planner.appender.soundness = soundness
    return soundness


def differences(episodes: list[EpisodeTokens]) -> int:
    return sum(episode.audit_differences for episode in episodes)


def audited(episodes: list[EpisodeTokens]) -> int:
    """Episodes of which a conversation was compared: the first turn alone has nothing to be compared with."""
    return sum(episode.audits > 1 for episode in episodes)


async def talk(model: SGLangModel, *questions: str, episodes: list[EpisodeTokens] | None = None) -> list[Join]:
    with model.episode() as episode:
        if episodes is not None:
            episodes.append(episode)
        agent = Agent(model=model, callback_handler=None, conversation_manager=NullConversationManager())
        for question in questions:
            await agent.invoke_async(question)
        if episode.last_audit is not None:
            episode.last_audit.result(30)
    return [turn.join for turn in episode.tree]


async def test_a_wrong_result_is_withdrawn_by_the_audit(caplog: pytest.LogCaptureFixture) -> None:
    model, episodes = model_on(SOURCE, ["One.", "Two.", "Three."] * 2), list[EpisodeTokens]()
    soundness = blind(model)
    with caplog.at_level(logging.WARNING):
        assert await talk(model, "a?", "b?", "c?", episodes=episodes) == [Join.ROOT, Join.PROVED, Join.PROVED]
    assert differences(episodes) == 1 and len(soundness.withdrawn) == 1
    assert any("no longer counts as proved" in message and "⟦" in message for message in caplog.messages)
    assert await talk(model, "a?", "b?", "c?") == [Join.ROOT, Join.KEPT, Join.KEPT]


async def test_a_template_that_inspects_texts_is_compared_before() -> None:
    model, episodes = model_on(SOURCE, ["One.", "Two.", "Three."]), list[EpisodeTokens]()
    assert await talk(model, "a?", "b?", "c?", episodes=episodes) == [Join.ROOT, Join.PROVED, Join.KEPT]
    assert differences(episodes) == 0


async def test_the_audit_does_not_rely_on_the_rendering_of_the_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that escaping changes is the same in every escaped rendering."""
    render, episodes = GuardedTemplate.render, list[EpisodeTokens]()

    def wrong(self: GuardedTemplate, *given: Any) -> Any:
        text, escapes = render(self, *given)
        return text.replace("tags", "U000f0000"), escapes

    monkeypatch.setattr(GuardedTemplate, "render", wrong)
    model = model_on(chatml(), ["One.", "Two."])
    model.planner.appender.soundness = RuntimeSoundness("fresh")
    assert await talk(model, "tags?", "b?", episodes=episodes) == [Join.ROOT, Join.PROVED]
    assert differences(episodes) == 1


async def test_audit_of_an_exact_template_finds_no_difference() -> None:
    model, episodes = model_on(chatml(), ["One.", "Two.", "Three."]), list[EpisodeTokens]()
    model.planner.appender.soundness = RuntimeSoundness("fresh")
    await talk(model, "a?", "b?", "c?", episodes=episodes)
    assert audited(episodes) == 1 and differences(episodes) == 0


async def test_first_episodes_and_a_share_of_the_others_are_audited() -> None:
    model = model_on(chatml(), ["One.", "Two."] * (FIRST_EPISODES + 400), audit_share=0.1)
    model.planner.appender.soundness, episodes = RuntimeSoundness("fresh"), list[EpisodeTokens]()
    for _ in range(FIRST_EPISODES):
        await talk(model, "a?", "b?", episodes=episodes)
    assert audited(episodes) == FIRST_EPISODES
    for _ in range(100):
        await talk(model, "a?", "b?", episodes=episodes)
    assert FIRST_EPISODES < audited(episodes) < FIRST_EPISODES + 40


async def test_audit_share_zero_audits_nothing() -> None:
    model = model_on(chatml(), ["One.", "Two."], audit_share=0)
    model.planner.appender.soundness, episodes = RuntimeSoundness("fresh"), list[EpisodeTokens]()
    await talk(model, "a?", "b?", episodes=episodes)
    assert len(episodes) == 1 and episodes[0].audits == 0


@pytest.mark.parametrize("share", [-0.1, 1.5, True, "all", None])
def test_audit_share_must_be_between_zero_and_one(share: Any) -> None:
    with pytest.raises(ConfigurationError, match="audit_share"):
        model_on(chatml(), [], audit_share=share)


async def test_a_conversation_is_audited_again_only_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    monkeypatch.setattr(Auditor, "_audit", lambda self, episode, entry, ids: ends.append(entry.end))
    model = model_on(chatml(), ["One."] * 64)
    model.planner.appender.soundness = RuntimeSoundness("fresh")
    await talk(model, *["a?"] * 64)
    assert 5 < len(ends) < 16
    assert all(after >= 1.5 * before for before, after in itertools.pairwise(ends))


async def test_audit_of_a_garbage_collected_model_withdraws_nothing() -> None:
    """Trainers create a model for each sample: its tokenizer may be gone before its last audit runs."""
    from transformers import PreTrainedTokenizerFast

    source, make = tokenizer("qwen2.5"), cast(Any, PreTrainedTokenizerFast)
    tok = make(tokenizer_object=source.backend_tokenizer, chat_template=chatml())
    model = SGLangModel(tokenizer=tok, client=ScriptedEngine(source, ["One.", "Two."]), audit_share=0)
    model.planner.appender.soundness = soundness = RuntimeSoundness("fresh")
    with model.episode() as episode:
        agent = Agent(model=model, callback_handler=None, conversation_manager=NullConversationManager())
        await agent.invoke_async("a?")
        await agent.invoke_async("b?")
    auditor, entry = Auditor(model.planner.appender), episode.index.get(1)
    assert entry is not None
    del model, agent, tok
    gc.collect()
    auditor._audit(episode, entry, {})
    assert episode.audit_differences == 0 and not soundness.withdrawn
