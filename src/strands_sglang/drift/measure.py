"""`measure`: counts the turns and tokens of a run or a message log that would differ without recorded tokens.

Each turn is considered alone: what an earlier one would have done to the prompt is not counted again.

Invariant: nothing is sampled and no file is changed. Memory does not grow with the source: conversations are read one
at a time, and only counts and a few examples are kept.
"""

from __future__ import annotations

import multiprocessing
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from strands_sglang._checks import check_int
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.control_tokens import ControlTokens
from strands_sglang.chat.conversation_shape import ConversationShape, opening_shape
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.parser_detection import resolve_tool_parser
from strands_sglang.chat.soundness import sound_bridge
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.drift.compare import (
    Cause,
    Difference,
    differences,
    explain,
    reasoning_tokens,
    turn_regions,
)
from strands_sglang.drift.conversations import Conversation, TurnTokens, read_source
from strands_sglang.drift.report import DEPTHS, DriftReport, Example, Method, MethodDrift
from strands_sglang.errors import StrandsSGLangError, TemplateRefusedError
from strands_sglang.tokens.alignment import align
from strands_sglang.tool_parsers import ToolParser
from strands_sglang.tool_parsers.base import PlainTextParser

_BEFORE, _AFTER = 12, 6  # tokens shown on both sides of an example
_MOST_SHOWN = 24  # tokens shown of an example


def measure(
    source: str | Path,
    tokenizer: Any,
    *,
    episodes: Collection[str] | None = None,
    processes: int = 1,
    examples: int = 3,
    tool_parser: ToolParser | str | None = "auto",
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> DriftReport:
    """Measure how recorded turns would differ if text was re-tokenised, or messages were re-rendered.

    Args:
        source: Directory of a run, or a file with one conversation or trajectory per line (see `conversations`).
        tokenizer: The model's tokenizer, or the name or path to load it from.
        episodes: Ids of the episodes to measure, or numbers of lines as text; None: all.
        processes: Number of processes to use. With more than one, the calling program must be importable without side
            effects (`if __name__ == "__main__":`), as for any use of `multiprocessing`.
        examples: Maximum number of examples for each method and cause.
        tool_parser: Parser of the model's calls; "auto" or None: the one that reads the calls of the template.
        chat_template: Template to use instead of the tokenizer's own; None: the tokenizer's.
        chat_template_kwargs: Arguments of the chat template, such as `{"enable_thinking": False}`; None: none.

    Raises:
        LedgerError: There is no such run or file.
        ConfigurationError: The tokenizer has no chat template, or another argument is invalid.

    Example:
        >>> print(measure("runs/first", "Qwen/Qwen3-8B", processes=8).text())
    """
    check_int("processes", processes, optional=False)
    check_int("examples", examples, minimum=0, optional=False)
    options: dict[str, Any] = {
        "episodes": episodes,
        "examples": examples,
        "tool_parser": tool_parser,
        "chat_template": chat_template,
        "chat_template_kwargs": chat_template_kwargs,
    }
    if processes == 1:
        return _measure_part(source, tokenizer, (0, 1), options)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        parts = [
            pool.submit(_measure_part, source, tokenizer, (number, processes), options) for number in range(processes)
        ]
        report = parts[0].result()
        for part in parts[1:]:
            report.add(part.result(), examples)
    return report


def _measure_part(source: str | Path, tokenizer: Any, part: tuple[int, int], options: Mapping[str, Any]) -> DriftReport:
    loaded = load_tokenizer(tokenizer)
    bridge, _ = sound_bridge(
        loaded, chat_template=options["chat_template"], arguments=options["chat_template_kwargs"] or None
    )
    parser = resolve_tool_parser(options["tool_parser"], bridge).parser or PlainTextParser()
    meter = DriftMeter(loaded, bridge, parser, examples=options["examples"])
    meter.report.source = str(source)
    meter.report.tokenizer = str(getattr(loaded, "name_or_path", "") or type(loaded).__name__)
    problems = meter.report.problems
    for conversation in read_source(source, bridge, parser, problems, episodes=options["episodes"], part=part):
        try:
            meter.add(conversation)
        except (StrandsSGLangError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            # Such as ids that the tokenizer does not have: the counts of the other conversations are still valid.
            problems.append(f"{conversation.id}: {type(error).__name__}: {error!s:.200}")
    del problems[20:]
    return meter.report


class DriftMeter:
    """Adds up the drift of conversations."""

    def __init__(self, tokenizer: Any, bridge: Bridge, parser: ToolParser, *, examples: int = 3) -> None:
        """Create a meter; the bridge needs the tokenizer to be kept. `examples`: maximum for each method and cause."""
        self.report = DriftReport()
        self._tokenizer, self._bridge, self._parser = tokenizer, bridge, parser
        self._encoder = bridge.encoder
        self._examples = examples
        self._separators = frozenset(bridge.encoder.control.texts)

    def add(self, conversation: Conversation, methods: Collection[Method] = tuple(Method)) -> None:
        """Measure a conversation with every method that it has the data for."""
        report = self.report
        report.conversations += 1
        turns = [turn for turn in conversation.turns if turn.counted]
        report.turns += len(turns)
        report.tokens += sum(len(turn.sampled) for turn in turns if turn.sampled is not None)
        for turn in turns:
            if turn.sampled is not None and Method.DECODE in methods:
                self._decode(conversation, turn)
            if turn.sampled is not None and turn.reply is not None and Method.RENDER in methods:
                self._render(conversation, turn)
        if Method.HISTORY in methods:
            self._history(conversation)

    # --- the methods --------------------------------------------------------------------------------------------------

    def _decode(self, conversation: Conversation, turn: TurnTokens) -> None:
        sampled = turn.sampled
        assert sampled is not None
        again = self.encode(str(self._tokenizer.decode(sampled.tolist())))
        found = [] if again == list(sampled) else differences(self._encoder, sampled, again) or [_whole(sampled)]
        self._count(Method.DECODE, conversation, turn, sampled, found, again != list(sampled))

    def _render(self, conversation: Conversation, turn: TurnTokens) -> None:
        sampled = turn.sampled
        assert sampled is not None and turn.reply is not None
        try:
            before = self._rendered(conversation, turn.reply, generate=True)
            text = self._rendered(conversation, turn.reply + 1, generate=False)
        except TemplateRefusedError:
            self.report.methods[Method.RENDER].refused += 1
            return
        prompt, whole = self._tails(before, text)
        length = len(prompt)
        if whole[:length] == prompt:
            rest = whole[length:]
            drifted = rest[: len(sampled)] != list(sampled)
        else:
            # The template writes the turn's header differently once the turn follows: compare from where it does.
            rest, drifted = whole[_common_prefix(prompt, whole) :], True
        found: list[Difference] = []
        if drifted:
            marker = self._parser.reasoning_markers[1]
            reasoning = reasoning_tokens(self._encoder, sampled, marker)
            found = differences(self._encoder, sampled, rest, reasoning=reasoning)
            if not found:
                found = [Difference(0, 0, tuple(rest[:0]), Cause.TURN_BOUNDARY)]
        self._count(Method.RENDER, conversation, turn, sampled, found, drifted)

    def _history(self, conversation: Conversation) -> None:
        placed = [turn for turn in conversation.turns if turn.reply is not None]
        if not placed:
            return
        last = max(turn.reply for turn in placed if turn.reply is not None)
        method = self.report.methods[Method.HISTORY]
        try:
            text = self._rendered(conversation, last + 1, generate=False)
            branch, spans = self._branch(conversation, placed)
        except TemplateRefusedError:
            method.refused += sum(turn.counted for turn in placed)
            return
        new = self.encode(text)
        marker = self._parser.reasoning_markers[1]
        regions = turn_regions(branch, spans, new)
        changed = align(branch, new, self._separators) if regions is None else []
        for number, (turn, (start, end)) in enumerate(zip(placed, spans, strict=True)):
            if not turn.counted:
                continue
            sampled = branch[start:end]
            reasoning = reasoning_tokens(self._encoder, sampled, marker)
            if regions is not None:
                found = differences(self._encoder, sampled, regions[number], reasoning=reasoning)
            else:
                own = [
                    (max(a, start) - start, min(b, end) - start, c, d)
                    for a, b, c, d in changed
                    if (a < end and b > start) or (a == b and start <= a < end)
                ]
                found = explain(self._encoder, sampled, new, own, reasoning=reasoning)
            self._count(Method.HISTORY, conversation, turn, sampled, found, bool(found))

    def _branch(
        self, conversation: Conversation, placed: Sequence[TurnTokens]
    ) -> tuple[array[int], list[tuple[int, int]]]:
        """Return the tokens of a branch and where its turns are; as the template writes them if none are recorded."""
        if conversation.ids:
            return conversation.ids, [(turn.start, turn.start + len(turn.sampled or ())) for turn in placed]
        self.report.estimated |= any(turn.sampled is None for turn in placed)
        tools, messages = conversation.tools, conversation.messages
        branch, spans = array("i"), list[tuple[int, int]]()
        shape = opening_shape(messages[: placed[0].reply])
        known = 0
        for turn in placed:
            assert turn.reply is not None
            prompt = self.encode(self._rendered(conversation, turn.reply, generate=True))
            sampled = list(turn.sampled) if turn.sampled is not None else self._as_written(conversation, turn, prompt)
            new = messages[known : turn.reply]
            if not branch:
                branch = array("i", prompt)
            else:
                branch = branch + self._following(shape, branch, new, tools, prompt)
                shape = shape.after(new)
            spans.append((len(branch), len(branch) + len(sampled)))
            branch = branch + array("i", sampled)
            reply = messages[turn.reply]
            calls = tuple((call["function"]["name"], call["id"]) for call in reply.get("tool_calls") or ())
            shape = shape.with_reply(calls, bool(reply.get("reasoning_content")))
            known = turn.reply + 1
        return branch, spans

    def _following(
        self,
        shape: ConversationShape,
        branch: array[int],
        new: Sequence[TemplateMessage],
        tools: Any,
        prompt: Sequence[int],
    ) -> array[int]:
        """Return the tokens between a turn and the next one, as `SGLangModel` appends them, else from `prompt`."""
        ended_by = self._encoder.control.ended_by(branch)
        text = self._bridge.extend(shape, ended_by, list(new), tools)
        if text is None and shape.calls:
            text = self._bridge.extend(replace(shape, calls=()), ended_by, list(new), tools)
        if text is None:
            return array("i", prompt[_common_prefix(branch, prompt) :])
        tokens = self._bridge.encode(text)
        return tokens.closing + tokens.context

    def _as_written(self, conversation: Conversation, turn: TurnTokens, prompt: list[int]) -> list[int]:
        """Return a turn as the template writes it right after its prompt, up to the token that ends it."""
        assert turn.reply is not None
        whole = self.encode(self._rendered(conversation, turn.reply + 1, generate=False))
        rest = whole[_common_prefix(prompt, whole) :]
        return rest[: end_of_turn(rest, self._encoder.control, self._parser)]

    # --- rendering ----------------------------------------------------------------------------------------------------

    def rendered(
        self, messages: Sequence[TemplateMessage], tools: Any, *, generate: bool, time: datetime | None = None
    ) -> str:
        """Return what the template renders, as a program that keeps messages would have it, at a time (None: any)."""
        template = self._bridge.template.at(time)
        return template.official(template.fitted(messages), tools=tools, generate=generate)

    def _rendered(self, conversation: Conversation, count: int, *, generate: bool) -> str:
        """Return the rendering of the first messages of a conversation."""
        messages = conversation.messages[:count]
        return self.rendered(messages, conversation.tools, generate=generate, time=conversation.time)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, as a program that keeps text would have them."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _tails(self, prompt: str, whole: str) -> tuple[list[int], list[int]]:
        """Return the tokens of two texts from the last control token of their common part on.

        Control tokens divide a text before it is tokenized, so what follows does not depend on what precedes them.
        """
        start = 0
        if whole.startswith(prompt):
            found = list(self._encoder.control.find(prompt, max(0, len(prompt) - 4000)))
            start = found[-1].start if found else 0
        return self.encode(prompt[start:]), self.encode(whole[start:])

    # --- counting -----------------------------------------------------------------------------------------------------

    def _count(
        self,
        method: Method,
        conversation: Conversation,
        turn: TurnTokens,
        sampled: Sequence[int],
        found: Sequence[Difference],
        drifted: bool,
    ) -> None:
        counts: MethodDrift = self.report.methods[method]
        depth = min(turn.depth, DEPTHS - 1)
        counts.turns += 1
        counts.tokens += len(sampled)
        counts.depth_turns[depth] += 1
        if not drifted:
            return
        counts.drifted += 1
        counts.depth_drifted[depth] += 1
        for cause in {one.cause for one in found}:
            counts.causes[cause].turns += 1
        for one in found:
            size = one.end - one.start
            counts.tokens_changed += size
            counts.causes[one.cause].tokens += size
            counts.causes[one.cause].places += 1
            if self.report.wants(method, one.cause, self._examples):
                self.report.examples.append(self._example(method, conversation, turn, sampled, one))

    def _example(
        self, method: Method, conversation: Conversation, turn: TurnTokens, sampled: Sequence[int], one: Difference
    ) -> Example:
        decode = self._encoder.decode
        before = list(sampled[max(0, one.start - _BEFORE) : one.start])
        if not before and conversation.ids and turn.start:
            before = list(conversation.ids[max(0, turn.start - _BEFORE) : turn.start])
        return Example(
            method,
            one.cause,
            conversation.id,
            turn.id,
            decode(before) if before else "",
            self._tokens(sampled[one.start : one.end]),
            self._tokens(one.new),
            decode(list(sampled[one.end : one.end + _AFTER])) if one.end < len(sampled) else "",
        )

    def _tokens(self, ids: Iterable[int]) -> tuple[tuple[int, str], ...]:
        return tuple((int(token), self._encoder.decode([token])) for token in list(ids)[:_MOST_SHOWN])


def end_of_turn(ids: Sequence[int], control: ControlTokens, parser: ToolParser) -> int:
    """Return where a model ends a turn that a template wrote: after its last special token that is not part of a call.

    Some templates write a second one at the end of a conversation, which no model samples.
    """
    special = [at for at, token in enumerate(ids) if token in control.special]
    if not special:
        return len(ids)
    while len(special) > 1 and special[-2] == special[-1] - 1 and control.texts[ids[special[-2]]] not in parser.markers:
        special.pop()
    return special[-1] + 1


def _whole(sampled: Sequence[int]) -> Difference:
    """Return the difference of a turn whose tokens differ only after its end."""
    return Difference(len(sampled), len(sampled), (), Cause.OTHER)


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
