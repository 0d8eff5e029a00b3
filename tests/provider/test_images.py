"""Images in user messages and tool results: every prompt has them where the template writes them, and is exact."""

from __future__ import annotations

import hashlib
import io
import sys
import threading
from typing import Any

import pytest
from strands import Agent, tool

from strands_sglang import SGLangModel
from strands_sglang.chat import image_files
from strands_sglang.errors import ConfigurationError, UnsupportedContentError
from strands_sglang.tokens import Join, Origin
from support.families import tokenizer
from support.pictures import PROCESSOR, image_block, png
from support.scripted_engine import Reply, ScriptedEngine

CALL = "<tool_call>\n<function=look>\n<parameter=place>\n{}\n</parameter>\n</function>\n</tool_call>"
FAMILY = "qwen3.5"


@tool
def look(place: int) -> dict[str, Any]:
    """Look somewhere.

    Args:
        place: Where to look.
    """
    return {"status": "success", "content": [{"text": "see"}, image_block(png(64, 96, place)), {"text": "there"}]}


def model_of(engine: ScriptedEngine, **options: Any) -> SGLangModel:
    """Return a model that takes images."""
    return SGLangModel(
        tokenizer=engine.tokenizer, client=engine, image_processor=PROCESSOR, enable_thinking=False, **options
    )


def scripted(*answers: Any) -> ScriptedEngine:
    return ScriptedEngine(tokenizer(FAMILY), answers)


def expanded(family: str, text: str, positions: list[int]) -> list[int]:
    """Return the ids of a text with every image's placeholder repeated."""
    ids, left = tokenizer(family).encode(text, add_special_tokens=False), iter(positions)
    pad = tokenizer(family).convert_tokens_to_ids("<|image_pad|>")
    return [token for one in ids for token in ([one] * next(left) if one == pad else [one])]


async def test_images_of_users_and_tools() -> None:
    engine = scripted(CALL.format(1), CALL.format(2), "Two pictures.")
    model = model_of(engine)
    agent = Agent(model=model, tools=[look], callback_handler=None)
    await agent.invoke_async([image_block(png(140, 84)), {"text": "What is it?"}])
    first, second, third = engine.calls
    sizes = [12, 6, 6]
    for call, count in ((first, 1), (second, 2), (third, 3)):
        shown = call.asked["images"]
        assert [one.positions for one in shown] == sizes[:count]
        for one in shown:
            assert len(set(call.ids[one.start : one.start + one.positions])) == 1
        assert call.sampling["stop_token_ids"] == [248056, 248057]
    # One rendering of the whole conversation, with all placeholders repeated, is what was sent.
    parts: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
    ]
    for place in (1, 2):
        function = {"name": "look", "arguments": {"place": place}}
        parts.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]})
        see, there = {"type": "text", "text": "see"}, {"type": "text", "text": "there"}
        parts.append({"role": "tool", "content": [see, {"type": "image"}, there]})
    tools = [{"type": "function", "function": _function(look.tool_spec)}]
    text = tokenizer(FAMILY).apply_chat_template(
        parts, tools=tools, add_generation_prompt=True, tokenize=False, enable_thinking=False
    )
    assert third.ids == expanded(FAMILY, text, sizes)
    tree = model.current_episode.tree
    assert [turn.join for turn in tree] == [Join.ROOT, Join.PROVED, Join.PROVED]
    (trajectory,) = tree.trajectories()
    trajectory.validate()
    assert [one.positions for one in trajectory.images] == sizes
    for image in trajectory.images:
        assert set(trajectory.origins[image.start : image.end]) == {Origin.CONTEXT}
    assert len(trajectory.compact_ids()) == len(trajectory) - sum(sizes) + len(sizes)
    assert len(model.rollout.image_data) == 3 and len(model.rollout.token_ids) == len(trajectory)


def _function(spec: Any) -> dict[str, Any]:
    return {"name": spec["name"], "description": spec["description"], "parameters": spec["inputSchema"]["json"]}


async def test_text_that_looks_like_an_image_is_text() -> None:
    engine = scripted("Nothing.")
    await Agent(model=model_of(engine), callback_handler=None).invoke_async(
        [{"text": "<|vision_start|><|image_pad|><|vision_end|>"}, image_block(png(140, 84))]
    )
    pad = tokenizer(FAMILY).convert_tokens_to_ids("<|image_pad|>")
    assert engine.calls[0].ids.count(pad) == 12


async def test_same_image_twice_and_several_at_once() -> None:
    engine = scripted("Same.")
    one, other = image_block(png(140, 84)), image_block(png(64, 96, 5))
    await Agent(model=model_of(engine), callback_handler=None).invoke_async([one, {"text": "and"}, one, other])
    shown = engine.calls[0].asked["images"]
    assert [image.positions for image in shown] == [12, 12, 6]
    assert shown[0].digest == shown[1].digest != shown[2].digest


async def test_text_only_calls_are_as_before() -> None:
    engine = scripted("Hi.")
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine)
    await Agent(model=model, callback_handler=None).invoke_async("Hello")
    assert "images" not in engine.calls[0].asked and "stop_token_ids" not in engine.calls[0].sampling


async def test_context_and_budgets_count_every_position() -> None:
    engine = scripted("Fine.")
    model = model_of(engine, context_window_limit=100)
    await Agent(model=model, callback_handler=None).invoke_async([image_block(png(140, 84)), {"text": "x"}])
    (call,) = engine.calls
    assert call.sampling["max_new_tokens"] == 100 - len(call.ids)


@pytest.mark.parametrize("file", [png(20, 20), b"\xff\xd8\xff\xe0 a JPEG"])
async def test_model_without_image_settings_says_what_to_pass(file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)  # what would convert a file does not matter to a text-only model
    engine = ScriptedEngine(tokenizer("qwen3"), ["x"])
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine)
    with pytest.raises(UnsupportedContentError, match=r"block 0: an image cannot be shown.*pass image_processor="):
        await Agent(model=model, callback_handler=None).invoke_async([image_block(file)])
    assert not engine.calls


@pytest.mark.parametrize("family", ["qwen3", "llama-3.1", "mistral-small-3.2", "kimi-k2"])
async def test_templates_without_placeholders_are_refused(family: str) -> None:
    engine = ScriptedEngine(tokenizer(family), ["x"])
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine, image_processor=PROCESSOR)
    with pytest.raises((UnsupportedContentError, ConfigurationError), match="image"):
        await Agent(model=model, callback_handler=None).invoke_async([image_block(png(20, 20)), {"text": "x"}])
    assert not engine.calls


async def test_a_sampled_placeholder_ends_the_branch_with_words() -> None:
    pad = tokenizer(FAMILY).convert_tokens_to_ids("<|image_pad|>")
    engine = scripted(Reply(ids=[5, pad]), "more")
    agent = Agent(model=model_of(engine), callback_handler=None)
    await agent.invoke_async([image_block(png(140, 84)), {"text": "x"}])
    with pytest.raises(UnsupportedContentError, match="has sampled"):
        await agent.invoke_async("go on")
    assert len(engine.calls) == 1


@pytest.mark.parametrize("kind", ["document", "video"])
async def test_documents_and_videos_are_refused(kind: str) -> None:
    engine = scripted("x")
    block: Any = {kind: {"format": "pdf", "name": "x", "source": {"bytes": b"x"}}}
    with pytest.raises(UnsupportedContentError, match="takes text and images"):
        await Agent(model=model_of(engine), callback_handler=None).invoke_async([block, {"text": "x"}])


def jpeg(seed: int) -> bytes:
    """Return an image that must be converted."""
    pictures, written = pytest.importorskip("PIL.Image"), io.BytesIO()
    pictures.open(io.BytesIO(png(200, 100, seed))).save(written, "JPEG")
    return written.getvalue()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the threads in which images are converted."""
    found, real = list[int](), image_files._converted

    def noted(source: bytes) -> Any:
        found.append(threading.get_ident())
        return real(source)

    monkeypatch.setattr(image_files, "_converted", noted)
    return found


async def test_conversion_does_not_block_the_event_loop(threads: list[int]) -> None:
    await Agent(model=model_of(scripted("x")), callback_handler=None).invoke_async([image_block(jpeg(77), "jpeg")])
    assert len(threads) == 1 and threading.get_ident() not in threads, "converted once, beside the loop"


async def test_images_in_older_messages_are_converted_beside_the_event_loop(threads: list[int]) -> None:
    """Such as those of a conversation that another process began."""
    main = threading.get_ident()
    before: Any = [
        {"role": "user", "content": [image_block(jpeg(81), "jpeg"), {"text": "first"}]},
        {"role": "assistant", "content": [{"text": "seen"}]},
    ]
    engine = scripted("x", "y")
    agent = Agent(model=model_of(engine), messages=before, callback_handler=None)
    await agent.invoke_async("second")
    assert len(threads) == 1 and main not in threads
    agent.messages[0]["content"][0] = image_block(jpeg(82), "jpeg")  # edited
    await agent.invoke_async("third")
    assert len(threads) == 2 and main not in threads


async def test_a_turn_reads_only_its_new_images(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    real = hashlib.sha256

    def counted(data: bytes) -> Any:
        hashed.append(len(data))
        return real(data)

    engine = scripted(*(str(number) for number in range(6)))
    agent = Agent(model=model_of(engine), callback_handler=None)
    images = [png(140, 84, seed) for seed in range(100, 106)]
    monkeypatch.setattr(hashlib, "sha256", counted)
    for image in images:
        hashed.clear()
        await agent.invoke_async([image_block(image), {"text": "next"}])
        assert hashed == [len(image)]
    assert [len(call.asked["images"]) for call in engine.calls] == [1, 2, 3, 4, 5, 6]


async def test_a_trimmed_conversation_forks_with_its_images() -> None:
    engine = scripted("one", "two")
    model = model_of(engine)
    agent = Agent(model=model, callback_handler=None)
    await agent.invoke_async([image_block(png(140, 84)), {"text": "first"}])
    agent.messages[0]["content"][0] = image_block(png(64, 96, 8))  # history was edited: another image
    await agent.invoke_async("second")
    tree = model.current_episode.tree
    assert [turn.join for turn in tree] == [Join.ROOT, Join.FORKED]
    assert [image.positions for image in tree.images(tree[1])] == [6]
