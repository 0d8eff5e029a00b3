"""Harmony turns: each message goes where its channel says, and only a well-formed call is a call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers import ParseFailure as Failure
from strands_sglang.tool_parsers.harmony import HarmonyToolParser
from support.families import tokenizer
from support.tool_parsers.checks import Conformance, Format, json_values, rows, same

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALLED, RETURN = "<|end|>", "<|call|>", "<|return|>"
ASSISTANT = f"{START}assistant"
ALL = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALLED, RETURN)


def on(channel: str, content: str, end: str = END) -> str:
    """Return a message, as it stands behind `<|start|>assistant`."""
    return f"{CHANNEL}{channel}{MESSAGE}{content}{end}"


def call_of(name: str, arguments: Any) -> str:
    return on(f"commentary to=functions.{name} {CONSTRAIN}json", json.dumps(arguments, ensure_ascii=False), CALLED)


def turn_of(*messages: str) -> str:
    return ASSISTANT.join(messages)


THOUGHT = on("analysis", "I think.")
CALL = call_of("calculator", {"expression": "12*7+3"})


FORM = Format(HarmonyToolParser(), escapes=True)
parse, failed = FORM.parse, FORM.failed


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", ["analysis to=functions.f", "analysis to=functions.f code", "commentary to=functions.f x"]
)
def test_message_to_tool_is_a_call_on_either_channel_with_any_content_type(header: str) -> None:
    turn = parse(turn_of(THOUGHT, on(header, '{"a": 1}', CALLED)))
    assert [(call.name, call.arguments) for call in turn.calls] == [("f", {"a": 1})] and not turn.failures
    assert turn.reasoning == "I think."


@pytest.mark.parametrize(
    "header",
    [
        *(" to=functions.f<|channel|>commentary json", " to=functions.f<|channel|>commentary"),
        " to=functions.f<|channel|>commentary <|constrain|>json",
        "<|channel|>commentary to=functions.f <|constrain|>json",
        *("<|channel|>commentary to=functions.f<|constrain|>json", "<|channel|>commentary to=functions.f json"),
        *("<|channel|>commentary to=functions.f", " to=functions.f<|channel|>commentary to=functions.f json"),
    ],
)
@pytest.mark.parametrize("before", ["", THOUGHT + ASSISTANT, ASSISTANT, "\n" + ASSISTANT, THOUGHT + "\n" + ASSISTANT])
def test_valid_headers(header: str, before: str) -> None:
    raw = f'{header}{MESSAGE}{{"a": 1}}{CALLED}'
    turn = parse(before + raw)
    (call,) = turn.calls
    assert (call.name, call.arguments, turn.failures, turn.text) == ("f", {"a": 1}, (), "")
    assert call.raw == (ASSISTANT if before else "") + raw


@pytest.mark.parametrize("name", ["f", "get_weather", "a.b", "a-b", "functions.f", "é"])
def test_name_is_verbatim(name: str) -> None:
    assert [call.name for call in parse(call_of(name, {})).calls] == [name]


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        ("{}", {}),
        (' {\n  "a": [1, -2.5e3, null, true, {"b": {}}]\n} \n', {"a": [1, -2500.0, None, True, {"b": {}}]}),
        ('{"a": "\\u00e9\\ud83d\\ude00 é"}', {"a": "é😀 é"}),
    ],
)
def test_arguments_are_json(content: str, arguments: dict[str, Any]) -> None:
    (call,) = parse(on("commentary to=functions.f", content, CALLED)).calls
    assert same(call.arguments, arguments)


@pytest.mark.parametrize(
    ("text", "reasoning", "remains", "rest_start"),
    [
        ("", None, "", 0),
        *rows((None, "hello", 0), "hello", f"hello{END}"),
        ("\n hello \n", None, "\n hello \n", 0),
        ("hello to=functions.f, said he", None, "hello to=functions.f, said he", 0),
        *rows((None, "Hi.", 0), on("final", "Hi.", ""), on("final", "Hi.", RETURN)),
        (on("final", "\nHi.\n"), None, "\nHi.\n", 0),
        (on(f"final {CONSTRAIN}json", "{}"), None, "{}", 0),
        (on("commentary", "First this."), None, "First this.", 0),
        *((THOUGHT, "I think.", "", len(THOUGHT)), (on("analysis", ""), "", "", 37)),
        (on("analysis", "\n a \n"), " a ", "", 42),
        (turn_of(THOUGHT, on("final", "Hi.", "")), "I think.", "Hi.", len(THOUGHT)),
        (turn_of(THOUGHT, THOUGHT, on("final", "Hi.")), "I think.\nI think.", "Hi.", 2 * len(THOUGHT) + len(ASSISTANT)),
        (turn_of(on("commentary", "a\n"), on("final", "b")), None, "a\nb", 0),
        (
            turn_of(THOUGHT, on("commentary", "a"), THOUGHT, on("final", "b")),
            *("I think.\nI think.", "a\nb", len(THOUGHT)),
        ),
        (turn_of(THOUGHT, on("commentary", "\nPlan.\n"), CALL), "I think.", "Plan.", len(THOUGHT)),
        (turn_of(CALL, on("final", "Done.")), None, "Done.", 0),
        # What is cut in a header has nothing for the reader yet.
        *rows(("I think.", "", len(THOUGHT)), f"{THOUGHT}{ASSISTANT}", f"{THOUGHT}{ASSISTANT}{CHANNEL}"),
        (f"{THOUGHT}{ASSISTANT}{CHANNEL}fin", "I think.", "", len(THOUGHT)),
        (f"{CHANNEL}final", None, "", 0),
        # Broken headers without a recipient: text as it stands.
        (f"{CHANNEL}final Hello there", None, f"{CHANNEL}final Hello there", 0),
        (f"{CHANNEL}final Hello there{END}", None, f"{CHANNEL}final Hello there", 0),
        (on("finale", "a"), None, f"{CHANNEL}finale{MESSAGE}a", 0),
        (on("", "a"), None, f"{CHANNEL}{MESSAGE}a", 0),
        (on(" final", "a"), None, f"{CHANNEL} final{MESSAGE}a", 0),
        (on("analysis my thoughts", "a"), None, f"{CHANNEL}analysis my thoughts{MESSAGE}a", 0),
        (on(f"analysis{CHANNEL}final", "a"), None, f"{CHANNEL}analysis{CHANNEL}final{MESSAGE}a", 0),
        (f"{MESSAGE}a{END}", None, f"{MESSAGE}a", 0),
        (f"Hm{on('final', 'a')}", None, f"Hm{CHANNEL}final{MESSAGE}a", 0),
        (f"{THOUGHT}{on('final', 'a')}", "I think.", f"{CHANNEL}final{MESSAGE}a", len(THOUGHT)),
        (f"{THOUGHT}a", "I think.", "a", len(THOUGHT)),
        (f" \n{THOUGHT}{ASSISTANT}{on('final', 'a')}", "I think.", "a", len(THOUGHT) + 2),
        (f" {ASSISTANT}{on('final', 'a')}", None, "a", 0),
        (f"{THOUGHT}{START}user{MESSAGE}Hi{END}", "I think.", f"{START}user{MESSAGE}Hi", len(THOUGHT)),
        (START, None, START, 0),
        # Markers that end nothing.
        (f"{on('final', 'a')}{END}{RETURN}\n{END}", None, "a", 0),
        # A message that begins before the last one has ended.
        (f"{on('final', 'a', '')}{ASSISTANT}{on('final', 'b')}", None, "a\nb", 0),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_messages_by_channel(text: str, reasoning: str | None, remains: str, rest_start: int) -> None:
    turn = parse(text)
    assert (turn.reasoning, turn.text, turn.rest_start) == (reasoning, remains, rest_start)
    assert turn.failures == () and turn.reasoning_closed


# --- the real template -----------------------------------------------------------------------------------------------

USER = {"role": "user", "content": "What is 12*7+3?"}


def test_template_output_of_answer_is_parsed() -> None:
    render = tokenizer("gpt-oss").apply_chat_template
    prompt = render([USER], add_generation_prompt=True, tokenize=False)
    whole = render([USER, {"role": "assistant", "thinking": "I think.", "content": "It is 87."}], tokenize=False)
    turn = parse(whole[len(prompt) :].removesuffix(RETURN))
    assert (turn.reasoning, turn.text, turn.calls, turn.failures) == ("I think.", "It is 87.", (), ())


def test_every_marker_is_one_token() -> None:
    vocabulary = tokenizer("gpt-oss").get_added_vocab()
    assert set(ALL) <= set(vocabulary) and HarmonyToolParser.endings == (CALLED,)


# --- reasoning -------------------------------------------------------------------------------------------------------


def test_draft_in_reasoning_is_not_a_call() -> None:
    """Only its end marker ends it: not the beginning of another message, and not the end of a call."""
    draft = f"maybe {ASSISTANT}{CALL}"
    turn = parse(turn_of(on("analysis", draft), call_of("real", {})))
    assert turn.reasoning == draft and [call.name for call in turn.calls] == ["real"] and turn.failures == ()


def test_draft_in_prompt_opened_reasoning_is_not_a_call() -> None:
    for again in ("", f"\n{CHANNEL}analysis{MESSAGE}"):
        turn = parse(f"{again}maybe {CALL}{END}{ASSISTANT}{call_of('real', {})}", reasoning_open=True)
        assert (turn.reasoning, [call.name for call in turn.calls]) == (f"maybe {CALL}", ["real"])


@pytest.mark.parametrize(
    ("text", "reasoning_open"),
    [(on("analysis", CALL, ""), False), (CALL, True), (on("analysis", f"\n{CALL}\n", ""), False), (CALL, True)],
)
def test_unclosed_reasoning_has_no_calls(text: str, reasoning_open: bool) -> None:
    turn = parse(text, reasoning_open=reasoning_open)
    assert (turn.reasoning, turn.text, turn.calls, turn.failures) == (CALL, "", (), ())
    assert (turn.reasoning_closed, turn.rest_start) == (False, len(text))


def test_later_unclosed_reasoning_has_no_calls() -> None:
    turn = HarmonyToolParser().parse(turn_of(on("commentary", "Plan."), on("analysis", f"hm {CALL}", "")))
    assert (turn.reasoning, turn.text, turn.reasoning_closed) == (f"hm {CALL}", "Plan.", False)
    assert turn.calls == () and turn.failures == ()


# --- what is not a call ----------------------------------------------------------------------------------------------

JSON, ARGUMENTS, NAME = Failure.INVALID_JSON, Failure.BAD_ARGUMENTS, Failure.MISSING_NAME
KEY, TRAILING, UNCLOSED = Failure.DUPLICATE_KEY, Failure.TRAILING_TEXT, Failure.UNCLOSED
MISPLACED = Failure.MISPLACED
TO_F = "commentary to=functions.f"


@pytest.mark.parametrize(
    ("raw", "failure", "name"),
    [
        *rows((JSON, "f"), on(TO_F, '{"a": 1', CALLED), on(TO_F, "[" * 100_000, CALLED)),
        *rows((JSON, "f"), on(TO_F, f"{MESSAGE}{{}}", CALLED), on("analysis to=functions.f", "I should", END)),
        (on(TO_F, f'{{"a": 1, "a": "{CALLED}{ASSISTANT}"}}', CALLED), KEY, "f"),
        *rows((ARGUMENTS, "f"), on(TO_F, "[]", CALLED), f"{CHANNEL}{TO_F}{CALLED}", f"{CHANNEL}{TO_F} json{END}"),
        (f" to=functions.f{CHANNEL}commentary{END}", ARGUMENTS, "f"),
        *rows((TRAILING, "f"), on(TO_F, "{} {}", CALLED), on(TO_F, "{}}", CALLED), on(TO_F, f"{{}}{CHANNEL}", CALLED)),
        (on(TO_F, "{} x", END), TRAILING, "f"),
        *rows((UNCLOSED, "f"), on(TO_F, "{}", END), on(TO_F, "{}", RETURN), on(TO_F, f"{{}}{ASSISTANT}", CALLED)),
        *rows((NAME, None), on("commentary to=f", "{}", CALLED), on("commentary to=functions", "{}", CALLED)),
        (on("commentary to=functions.", "{}", CALLED), NAME, None),
        (on("commentary to=functions.f?", "{}", CALLED), NAME, None),
        (on("commentary to=functions:f", "{}", CALLED), NAME, None),
        (on("commentary to=Functions.f", "{}", CALLED), NAME, None),
        (on("commentary to=browser.search", '{"query": "x"}', CALLED), NAME, None),
        *rows((NAME, None), on("analysis to=python", "print(1)", CALLED), on("commentary to=assistant", "{}", END)),
        (on("commentary to=", "{}", CALLED), NAME, None),
        (f" to=functions.f{on('commentary to=functions.g', '{}', CALLED)}", NAME, None),
        (f" to=functions.f{on('commentary json to=functions.g', '{}', CALLED)}", NAME, None),
        *rows((NAME, None), on("commentary", "{}", CALLED), on("commentary", '{"name": "f", "arguments": {}}', CALLED)),
        *rows((NAME, None), on("commentary functions.f", "{}", CALLED), on("final", "bye", CALLED)),
        (f"{MESSAGE}{{}}{CALLED}", NAME, None),
        *rows((MISPLACED, "f"), on("final to=functions.f", "{}", CALLED), on("comment to=functions.f", "{}", CALLED)),
        (f" to=functions.f{MESSAGE}{{}}{CALLED}", MISPLACED, "f"),
        (on(" commentary to=functions.f", "{}", CALLED), MISPLACED, "f"),
        (on("commentary  to=functions.f", "{}", CALLED), MISPLACED, "f"),
        (on("commentary\nto=functions.f", "{}", CALLED), MISPLACED, "f"),
        (on("commentary json to=functions.f", "{}", CALLED), MISPLACED, "f"),
        (on(f"commentary {CONSTRAIN}json to=functions.f", "{}", CALLED), MISPLACED, "f"),
        *rows((MISPLACED, "f"), on(f"{TO_F} {CONSTRAIN} json", "{}", CALLED), on(f"{TO_F} json json", "{}", CALLED)),
        *rows((MISPLACED, "f"), on(f"{TO_F} ", "{}", CALLED), on(f"{TO_F} json{CONSTRAIN}json", "{}", CALLED)),
        *rows((MISPLACED, "f"), on(f"{TO_F}  {CONSTRAIN}json", "{}", CALLED), on(f"{TO_F} {CONSTRAIN}", "{}", CALLED)),
        (on(f"analysis{CHANNEL}{TO_F}", "{}", CALLED), MISPLACED, "f"),
        (f"{CONSTRAIN}json{on(TO_F, '{}', CALLED)}", MISPLACED, "f"),
        (f"  to=functions.f{on('commentary', '{}', CALLED)}", MISPLACED, "f"),
        *rows((MISPLACED, "f"), f"Hm to=functions.f{on('commentary', '{}', CALLED)}", f"Hm{on(TO_F, '{}', CALLED)}"),
    ],
    ids=lambda value: ascii(value)[:70] if isinstance(value, str) else None,
)
def test_malformed_call_does_not_affect_next_call(raw: str, failure: Failure, name: str | None) -> None:
    alone = parse(f"{raw}{ASSISTANT}{CALL}")
    assert [(item.raw, item.start, item.failure, item.name) for item in alone.failures] == [(raw, 0, failure, name)]
    assert [call.name for call in alone.calls] == ["calculator"] and alone.text == ""
    before = THOUGHT + ASSISTANT + on("commentary", "a")
    turn = parse(f"{before}{ASSISTANT}{raw}{ASSISTANT}{CALL}{ASSISTANT}{raw}")
    assert [item.failure for item in turn.failures] == [failure, failure]
    assert [item.raw for item in turn.failures] == [f"{ASSISTANT}{raw}"] * 2
    assert [item.start for item in turn.failures] == [len(before), len(f"{before}{ASSISTANT}{raw}{ASSISTANT}{CALL}")]
    assert [call.name for call in turn.calls] == ["calculator"] and (turn.reasoning, turn.text) == ("I think.", "a")


@pytest.mark.parametrize(
    ("text", "failure", "raw"),
    [
        (f"{START}user{CALL}", MISPLACED, f"{START}user{CALL}"),
        (f"{START}{CALL}", MISPLACED, f"{START}{CALL}"),
        (f"{START} assistant{CALL}", MISPLACED, f"{START} assistant{CALL}"),
        *rows((NAME, None), f"{START}functions.f to=assistant{on('commentary', '87')}", f"hello{CALLED}", CALLED),
        (f"{THOUGHT}{CALL}", MISPLACED, CALL),
        *rows((MISPLACED, f"{ASSISTANT}{CALL}"), f"{on('final', 'Hi', '')}{ASSISTANT}{CALL}", f"Hi{ASSISTANT}{CALL}"),
        (f"{THOUGHT}{ASSISTANT}{CALLED}", NAME, f"{ASSISTANT}{CALLED}"),
    ],
)
def test_misplaced_calls_fail(text: str, failure: Failure, raw: str | None) -> None:
    item = failed(text)
    assert (item.failure, item.raw) == (failure, text if raw is None else raw)


WITH_EVERYTHING = call_of("get_it", {"s": 'a"\\ é 😀', "n": [-1.5e10, 0, True, False, None, {"x": {}}]})


@pytest.mark.parametrize("length", range(len(f"{CHANNEL}commentary to="), len(WITH_EVERYTHING)))
def test_truncated_call_is_unclosed(length: int) -> None:
    failure = failed(turn_of(THOUGHT, WITH_EVERYTHING[:length]))
    assert (failure.failure, failure.raw) == (UNCLOSED, f"{ASSISTANT}{WITH_EVERYTHING[:length]}")


@pytest.mark.parametrize("length", range(5, len(" to=functions.get_it")))
def test_call_truncated_before_channel_is_unclosed(length: int) -> None:
    text = " to=functions.get_it"[:length]
    assert (failed(text).failure, failed(text).raw, failed(text).name) == (UNCLOSED, text, None)


def test_depth_is_that_of_json() -> None:
    assert parse(on(TO_F, '{"a": ' + "[" * 99 + "]" * 99 + "}", CALLED)).failures == ()


# --- any text ---------------------------------------------------------------------------------------------------------

names = st.from_regex(r"[a-z_][a-z0-9_.-]{0,8}", fullmatch=True)
plain = st.text(alphabet=st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=10)
messages = (
    st.tuples(st.sampled_from(["analysis", "commentary", "final"]), plain)
    | st.tuples(names, st.dictionaries(st.text(), json_values, max_size=4))
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(messages, max_size=5), st.data())
def test_written_values_are_parsed(written: list[tuple[str, Any]], data: st.DataObject) -> None:
    made = []
    for channel, content in written:
        if isinstance(content, str):
            made.append(on(channel, content))
        else:
            lead, behind = data.draw(
                st.sampled_from([(f" to=functions.{channel}", ""), ("", f" to=functions.{channel}")])
            )
            kind = data.draw(st.sampled_from(["", " json", f" {CONSTRAIN}json"]))
            made.append(f"{lead}{on(f'commentary{behind}{kind}', json.dumps(content), CALLED)}")
    turn = parse(turn_of(*made))
    calls = [(name, content) for name, content in written if not isinstance(content, str)]
    assert turn.failures == () and turn.reasoning_closed
    assert [call.name for call in turn.calls] == [name for name, _ in calls]
    assert same([call.arguments for call in turn.calls], [arguments for _, arguments in calls])
    thoughts = [
        content.strip("\n") for channel, content in written if channel == "analysis" and isinstance(content, str)
    ]
    assert turn.reasoning == ("\n".join(thoughts) if thoughts else None)
    said = [content for channel, content in written if channel in ("final", "commentary") and isinstance(content, str)]
    if len(said) == 1 and not calls:
        assert turn.text == said[0]
    else:
        assert turn.text == "\n".join(content.strip("\n") for content in said if content.strip())


class TestHarmony(Conformance):
    forms = [FORM]
    details = [
        (
            on(TO_F, '{"a": nope}', CALLED),
            "The JSON is not valid: expecting value, at character 53 of the call, "
            "near 's.f<|message|>{\"a\": nope}<|call|>'.",
            "f",
        ),
        (on(TO_F, "[]", CALLED), "must be a JSON object, not a list", "f"),
        (on(TO_F, "{} x", CALLED), "of a tool call and <|call|> there must be nothing else, at character 50", "f"),
        (on(TO_F, "{}", END), "A tool call must end with <|call|>, not with <|end|>, at character 49", "f"),
        (on(TO_F, "{}", ""), "The tool call has no <|call|>.", "f"),
        (on(TO_F, '{"a', ""), "The turn ended in the middle of the JSON of a tool call, before <|call|>.", "f"),
        (f"{CHANNEL}{TO_F}", "The turn ended in the header of a tool call.", None),
        (f"{CHANNEL}{TO_F}{END}", "The tool call has no <|message|>, and so no arguments.", "f"),
        (on("commentary to=f", "{}", CALLED), "must name one tool in its header, as in to=functions.NAME.", None),
        (on("final to=functions.f", "{}", CALLED), "must go to the channel commentary, not to 'final'.", "f"),
        (on("commentary", "{}", CALLED), "A message that ends with <|call|> must name a tool", None),
        (f"Hi{ASSISTANT}{CALL}", "must not begin inside another message: <|end|> must come before it.", "calculator"),
        (f"{THOUGHT}{CALL}", "must be <|start|>assistant<|channel|>commentary to=functions.NAME.", "calculator"),
    ]
