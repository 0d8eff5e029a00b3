"""What an arm makes of a sampled episode: other tokens, their mask, and the engine's logprobs by position.

Invariant: ids, mask and logprobs of a sample have the same length, and the mask is 1 only on what the assistant wrote.
Needs neither PyTorch nor TRL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from arms import Arm, Tokens

from strands_sglang import Episode
from strands_sglang.tokens.turn import Origin
from strands_sglang.trainers.rows import Row


@dataclass(frozen=True)
class Sample:
    """What a trainer gets for one episode."""

    prompt_ids: list[int]
    """Tokens before the first trained one."""
    completion_ids: list[int]
    """Tokens from the first trained one to the last."""
    mask: list[int]
    """1 on the tokens of `completion_ids` that are trained."""
    logprobs: list[float]
    """The engine's logprobs, where the arm puts them; 0.0 on other tokens."""
    kept: list[list[int]] | None = None
    """Kept set of each token of `completion_ids`, empty for other tokens; None: not known, or not used by the arm."""
    teacher: list[float] | None = None
    """The teacher's logprobs of `completion_ids`, 0.0 on other tokens; None: there is no teacher."""
    turns: int = 0
    """Number of the assistant's turns."""
    changed: int = 0
    """Number of turns whose trained tokens are not the sampled ones."""


@dataclass(frozen=True)
class Sampled:
    """What the engine sampled in one episode."""

    prompt_ids: list[int]
    """Tokens before the first sampled one."""
    response_ids: list[int]
    """Tokens from the first sampled one to the last."""
    logprobs: list[float]
    """The engine's logprobs of `response_ids`; 0.0 on tokens that were not sampled."""
    spans: list[tuple[int, int]]
    """Where the sampled tokens of each turn begin and end in `response_ids`."""

    @classmethod
    def of_row(cls, row: Row) -> Sampled:
        """Return the sampled tokens of a row."""
        first = len(row.prompt_ids)
        part = slice(first, first + len(row.response_ids))
        sampled, turns = row.trajectory.origins[part] == Origin.SAMPLED, row.trajectory.turns[part]
        spans = []
        for turn in np.unique(turns[sampled]):
            places = np.flatnonzero(sampled & (turns == turn))
            spans.append((int(places[0]), int(places[-1]) + 1))
        return cls(row.prompt_ids.tolist(), row.response_ids.tolist(), row.logprobs.tolist(), spans)

    @classmethod
    def of_mask(cls, prompt_ids: list[int], response_ids: list[int], mask: list[int], logprobs: list[float]) -> Sampled:
        """Return the sampled tokens of a sample without turns: each run of trained tokens is a turn."""
        edges = np.flatnonzero(np.diff([0, *mask, 0])).tolist()
        return cls(prompt_ids, response_ids, logprobs, list(zip(edges[::2], edges[1::2], strict=True)))

    @property
    def turns(self) -> list[tuple[list[int], list[float]]]:
        """Ids and logprobs of each turn."""
        return [(self.response_ids[start:end], self.logprobs[start:end]) for start, end in self.spans]


def encode_again(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Return the tokens of the text of some tokens."""
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def by_position(logprobs: Sequence[float], length: int) -> list[float]:
    """Return logprobs for `length` tokens: cut off at the end, or filled with 0.0, as code without alignment does."""
    return [*logprobs[:length], *[0.0] * (length - len(logprobs))]


def exact(row: Row, *, truncated: bool = False, kept: bool = False) -> Sample:
    """Return the sampled tokens.

    Args:
        row: The sampled tokens of an episode.
        truncated: Whether sampling was truncated, so that the engine's logprobs are those over the kept sets.
        kept: Whether the sample has the kept sets, for the loss.

    Raises:
        ValueError: Sampling was truncated, and the engine has returned no kept sets.
    """
    sets = row.kept if truncated else None
    if truncated and sets is None:
        raise ValueError("the engine has returned no kept sets, so an arm with top-p cannot be measured")
    return Sample(
        row.prompt_ids.tolist(),
        row.response_ids.tolist(),
        row.loss_mask.tolist(),
        row.logprobs.tolist() if sets is None else list(sets.logprobs),
        [list(sets.at(number)) for number in range(len(sets))] if sets is not None and kept else None,
        None if row.teacher is None else row.teacher.logprobs.tolist(),
        turns=len(Sampled.of_row(row).spans),
    )


def canonical_mask(given: Sampled, mask: Sequence[int], tokenizer: Any) -> list[int]:
    """Return a mask that leaves out the turns that encoding again would change."""
    found = list(mask)
    for (start, end), (sampled, _) in zip(given.spans, given.turns, strict=True):
        if encode_again(tokenizer, sampled) != sampled:
            found[start:end] = [0] * (end - start)
    return found


def decoded(given: Sampled, tokenizer: Any) -> Sample:
    """Return the sampled text of each turn encoded again, and everything else as it was."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    changed, at = 0, 0
    for (start, end), (sampled, values) in zip(given.spans, given.turns, strict=True):
        between = given.response_ids[at:start]
        again = encode_again(tokenizer, sampled)
        ids += [*between, *again]
        mask += [*[0] * len(between), *[1] * len(again)]
        logprobs += [*[0.0] * len(between), *by_position(values, len(again))]
        changed += again != sampled
        at = end
    return Sample(given.prompt_ids, ids, mask, logprobs, turns=len(given.spans), changed=changed)


def chat_messages(messages: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return a Strands conversation as the messages that an OpenAI-style loop keeps.

    Args:
        messages: The conversation.
        texts: Sampled text of each turn of the assistant. A turn whose calls could not be parsed keeps its text, as a
            chat server returns it.
    """
    made: list[dict[str, Any]] = []
    turns = iter(texts)
    for message in messages:
        blocks = message["content"]
        if message["role"] == "assistant":
            text = next(turns, "")
            calls = [block["toolUse"] for block in blocks if "toolUse" in block]
            if any(call["name"] == "malformed_tool_call" for call in calls):
                made.append({"role": "assistant", "content": text})
                continue
            # Arguments travel as JSON text in an OpenAI message, and are parsed for the template.
            parsed = [{"name": call["name"], "arguments": json.loads(json.dumps(call["input"]))} for call in calls]
            content = "\n".join(block["text"] for block in blocks if "text" in block)
            made.append({"role": "assistant", "content": content})
            thoughts = [block["reasoningContent"]["reasoningText"]["text"] for block in blocks if _reasons(block)]
            if thoughts:
                made[-1]["reasoning_content"] = "\n".join(thoughts)
            if parsed:
                made[-1]["tool_calls"] = [{"type": "function", "function": function} for function in parsed]
            continue
        for block in blocks:
            if "toolResult" in block:
                texts_of = [part["text"] for part in block["toolResult"]["content"] if "text" in part]
                made.append({"role": "tool", "content": "\n".join(texts_of)})
            elif "text" in block:
                made.append({"role": "user", "content": block["text"]})
    return made


def _reasons(block: Mapping[str, Any]) -> bool:
    return "reasoningText" in block.get("reasoningContent", {})


def render(
    tokenizer: Any, chat: Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None = None
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a conversation, and where each of the assistant's messages begins and ends in it.

    A message ends after its end-of-turn token. The generation prompt before it is not part of it.
    """

    def text_of(count: int, prompt: bool = False) -> str:
        text: str = tokenizer.apply_chat_template(
            list(chat[:count]), tokenize=False, add_generation_prompt=prompt, **(options or {})
        )
        return text

    turns = [number for number, message in enumerate(chat) if message["role"] == "assistant"]
    text = text_of(len(chat))
    opening = text_of(turns[0], prompt=True)[len(text_of(turns[0])) :]
    marker, written = tokenizer.eos_token, json.dumps([*chat])
    if opening.rstrip("\n") not in written and marker not in written:
        begins = [found.end() for found in re.finditer(re.escape(opening), text)]
        if len(begins) == len(turns):
            return text, [(begin, text.index(marker, begin) + len(marker)) for begin in begins]
    # Slower, and always right: a message contains the template's own markers.
    return text, [(len(text_of(turn, prompt=True)), len(text_of(turn + 1).rstrip("\n"))) for turn in turns]


def rendered(
    given: Sampled,
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    system: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Sample:
    """Return the conversation rendered again as a whole; what the template writes for the assistant is trained.

    Args:
        given: The sampled tokens, for the engine's logprobs and the text of turns that could not be parsed.
        tokenizer: The tokenizer, with a chat template in the style of ChatML.
        messages: The Strands messages of the episode.
        system: The system prompt; None: there is none.
        options: Further arguments of the chat template, such as `tools`; None: none.
    """
    stop = tokenizer.eos_token
    texts = [
        tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).removesuffix(stop)
        for ids, _ in given.turns
    ]
    chat = [{"role": "system", "content": system}] if system is not None else []
    chat += chat_messages(messages, texts)
    last = max(number for number, message in enumerate(chat) if message["role"] == "assistant")
    text, written = render(tokenizer, chat[: last + 1], options)
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = list(coded.input_ids)
    begins = np.array([place[0] for place in coded.offset_mapping])
    turn_at = np.full(len(ids), -1)
    for turn, (start, end) in enumerate(written):
        turn_at[(begins >= start) & (begins < end)] = turn
    mask = (turn_at >= 0).astype(int).tolist()
    logprobs = [0.0] * len(ids)
    changed = 0
    for turn, (sampled, values) in enumerate(given.turns[: len(written)]):
        places = np.flatnonzero(turn_at == turn).tolist()
        for place, value in zip(places, by_position(values, len(places)), strict=True):
            logprobs[place] = value
        changed += [ids[place] for place in places] != sampled
    first, end = mask.index(1), len(mask) - mask[::-1].index(1)
    return Sample(
        ids[:first], ids[first:end], mask[first:end], logprobs[first:end], turns=len(given.spans), changed=changed
    )


def apply(arm: Arm, row: Row, episode: Episode, tokenizer: Any) -> Sample:
    """Return what the trainer gets for an episode.

    Args:
        arm: The arm.
        row: The sampled tokens of the episode.
        episode: The episode, for its messages.
        tokenizer: The model's tokenizer.
    """
    if arm.tokens is Tokens.DECODED:
        return decoded(Sampled.of_row(row), tokenizer)
    if arm.tokens is Tokens.RENDERED:
        return rendered(Sampled.of_row(row), tokenizer, episode.messages)
    if arm.tokens is Tokens.CANONICAL:
        sample = exact(row)
        return replace(sample, mask=canonical_mask(Sampled.of_row(row), sample.mask, tokenizer))
    return exact(row, truncated=arm.top_p < 1, kept=arm.kept)


@dataclass(frozen=True)
class Drift:
    """What would happen to the turns of an episode, whatever the arm."""

    turns: int
    """Number of the assistant's turns."""
    decoded: int
    """Number of turns that decoding and encoding would change."""
    rendered: int
    """Number of turns that rendering the messages would change."""
    cut: int
    """Number of turns that did not end by themselves."""


def drift_of(row: Row, episode: Episode, tokenizer: Any) -> Drift:
    """Return what would happen to the turns of an episode, whatever the arm."""
    sampled = Sampled.of_row(row)
    first, second = decoded(sampled, tokenizer), rendered(sampled, tokenizer, episode.messages)
    unfinished = sum(ids[-1] != tokenizer.eos_token_id for ids, _ in sampled.turns)
    return Drift(first.turns, first.changed, second.changed, unfinished)


def cut(sample: Sample, longest: int) -> Sample:
    """Return a sample with at most `longest` tokens after the prompt."""
    return replace(
        sample,
        completion_ids=sample.completion_ids[:longest],
        mask=sample.mask[:longest],
        logprobs=sample.logprobs[:longest],
        kept=None if sample.kept is None else sample.kept[:longest],
        teacher=None if sample.teacher is None else sample.teacher[:longest],
    )
