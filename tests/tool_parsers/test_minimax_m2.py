"""MiniMax-M2 calls: blocks of calls, values typed by the schema, and nothing else is a call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strands_sglang.tool_parsers import ParsedTurn
from strands_sglang.tool_parsers import ParseFailure as Failure
from strands_sglang.tool_parsers.minimax_m2 import MiniMaxM2ToolParser
from support.tool_parsers.checks import TYPED, Conformance, Format, rows

OPENING, CLOSING = "<minimax:tool_call>", "</minimax:tool_call>"
INVOKE = '<invoke name="f">\n<parameter name="s">12*7+3</parameter>\n</invoke>'
CALL = f"{OPENING}\n{INVOKE}\n{CLOSING}"


def invoke_of(name: str, arguments: dict[str, Any]) -> str:
    """Write a call as the template does."""
    written = f'<invoke name="{name}">\n'
    for key, value in arguments.items():
        value = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        written += f'<parameter name="{key}">{value}</parameter>\n'
    return f"{written}</invoke>"


def block(*invokes: str) -> str:
    return "\n".join([OPENING, *invokes, CLOSING])


def parameter(key: str, value: str) -> str:
    return f'<parameter name="{key}">{value}</parameter>'


FORM = Format(MiniMaxM2ToolParser(), schemas=TYPED)
parse, failed = FORM.parse, FORM.failed


def test_calls_of_one_block_share_its_markers() -> None:
    one, two, three = (invoke_of(name, {"s": name}) for name in "fgh")
    text = f"a{block(one, two, three)}b"
    turn = parse(text)
    assert [call.raw for call in turn.calls] == [f"{OPENING}\n{one}", two, f"{three}\n{CLOSING}"]
    assert [call.start for call in turn.calls] == [1, text.index(two), text.index(three)]
    assert [call.arguments["s"] for call in turn.calls] == ["f", "g", "h"] and turn.text == "a\nb"


@pytest.mark.parametrize(
    "text",
    [
        f'{OPENING}<invoke name="f"><parameter name="s">v</parameter></invoke>{CLOSING}',
        f'{OPENING} \t\r\n<invoke name="f">\n\n<parameter name="s">v</parameter> </invoke>\n \n{CLOSING}',
    ],
)
def test_whitespace_between_tags_is_ignored(text: str) -> None:
    (call,) = parse(text).calls
    assert (call.name, call.arguments, call.raw) == ("f", {"s": "v"}, text)


@pytest.mark.parametrize(
    ("raw", "failure"),
    [
        *rows(Failure.MISSING_NAME, '<invoke name=""></invoke>', '<invoke name=" "></invoke>'),
        *rows(Failure.MISSING_NAME, '<invoke name="f g"></invoke>', '<invoke name="f></invoke>'),
        *rows(Failure.MISSING_NAME, '<invoke name="f" id="1"></invoke>', '<invoke name="f\n"></invoke>'),
        ('<invoke name="f"><parameter name="s">v</invoke>', Failure.UNCLOSED),
        (f'<invoke name="f"><parameter name="s">v{parameter("n", "1")}</invoke>', Failure.UNCLOSED),
        ('<invoke name="f"><invoke name="g"></invoke>', Failure.UNCLOSED),
        ('<invoke name="f"><parameter name="s"><invoke name="g"></invoke>', Failure.UNCLOSED),
        *rows(Failure.BAD_ARGUMENTS, '<invoke name="f">hello</invoke>', '<invoke name="f">{"s": "v"}</invoke>'),
        ('<invoke name="f"></parameter></invoke>', Failure.BAD_ARGUMENTS),
        (f'<invoke name="f">{parameter("s", "v")},{parameter("n", "1")}</invoke>', Failure.BAD_ARGUMENTS),
        (f'<invoke name="f">{parameter("s", "a</parameter>b")}</invoke>', Failure.BAD_ARGUMENTS),
        (f'<invoke name="f">{parameter("", "v")}</invoke>', Failure.BAD_ARGUMENTS),
        (f'<invoke name="f">{parameter("s ", "v")}</invoke>', Failure.BAD_ARGUMENTS),
        ('<invoke name="f"><parameter name="s" type="x">v</parameter></invoke>', Failure.BAD_ARGUMENTS),
        ('<invoke name="f"><parameter name=s>v</parameter></invoke>', Failure.BAD_ARGUMENTS),
        ('<invoke name="f"><parameter=s>v</parameter></invoke>', Failure.BAD_ARGUMENTS),
        (f'<invoke name="f">{parameter("o", "[1]")}</invoke>', Failure.BAD_ARGUMENTS),
        ('<invoke name="f">' + parameter("o", '{"a": 1,}') + "</invoke>", Failure.INVALID_JSON),
        ('<invoke name="f">' + parameter("s", "\ud800") + "</invoke>", Failure.INVALID_JSON),
        ('<invoke name="f">' + parameter("o", '{"a": 1, "a": 1}') + "</invoke>", Failure.DUPLICATE_KEY),
        (f'<invoke name="f">{parameter("s", "v") * 2}</invoke>', Failure.DUPLICATE_KEY),
    ],
    ids=lambda value: value.encode("unicode_escape").decode() if isinstance(value, str) else None,
)
def test_malformed_call_does_not_affect_rest_of_block(raw: str, failure: Failure) -> None:
    text = f"a{OPENING}{raw}{CLOSING}b{block(INVOKE, raw, INVOKE)}c{CALL}"
    turn = parse(text)
    assert [item.failure for item in turn.failures] == [failure, failure]
    assert [item.raw for item in turn.failures] == [f"{OPENING}{raw}{CLOSING}", raw]
    assert [item.start for item in turn.failures] == [1, text.index(raw, len(raw) + 40)]
    assert [call.raw for call in turn.calls] == [f"{OPENING}\n{INVOKE}", f"{INVOKE}\n{CLOSING}", CALL]
    assert turn.text == "a\nb\nc"


def test_unclosed_last_call_of_block_fails_alone() -> None:
    """The block's own marker ends it, and that is certain."""
    for cut in ('<invoke name="f">', '<invoke name="f"><parameter name="s">v', '<invoke name="f'):
        turn = parse(f"{OPENING}{INVOKE}{cut}{CLOSING}")
        assert [call.raw for call in turn.calls] == [OPENING + INVOKE]
        assert [item.raw for item in turn.failures] == [cut + CLOSING]


@pytest.mark.parametrize(
    ("inside", "failure"),
    [
        *rows(Failure.MISSING_NAME, "", " \n", "hello", f"hello {INVOKE}", '{"name": "f", "arguments": {}}'),
        *rows(Failure.MISSING_NAME, "<invoke name=f></invoke>", parameter("s", "v")),
        *rows(Failure.TRAILING_TEXT, f"{INVOKE}x", f"{INVOKE} and {INVOKE}", f"{INVOKE}</invoke>"),
        (f"{INVOKE}</parameter></invoke>{INVOKE}", Failure.TRAILING_TEXT),
        *rows(Failure.UNCLOSED, f"{INVOKE}{OPENING}{INVOKE}", f"{INVOKE}{OPENING}", OPENING),
        (f'<invoke name="f"><parameter name="s">{INVOKE} x</parameter></invoke>', Failure.UNCLOSED),
        (f'<invoke name="f"><parameter name="s">{INVOKE}{INVOKE}</parameter></invoke>', Failure.UNCLOSED),
        (f'{INVOKE}<invoke name="f">{parameter("s", "</invoke>")}</invoke>', Failure.UNCLOSED),
        (f'{INVOKE}<invoke name="f">{parameter("s", OPENING)}</invoke>', Failure.UNCLOSED),
    ],
)
def test_malformed_block_has_no_calls(inside: str, failure: Failure) -> None:
    raw = f"{OPENING}{inside}{CLOSING}"
    FORM.check_malformed(raw, failure, CALL)


@pytest.mark.parametrize(
    ("before", "raw", "after"),
    [
        *(("", INVOKE, ""), ("I will.\n", INVOKE, "\nSo."), ("\n", f"{INVOKE}\n{CLOSING}", CLOSING)),
        ("", '<invoke name="f"></invoke>', " </invoke>"),
        ("", '<invoke name="f"><parameter name="s">v', ""),
        ("", f'<invoke name="f"><parameter name="s">{CALL}', "</parameter>"),
    ],
)
def test_call_outside_of_block_is_misplaced(before: str, raw: str, after: str) -> None:
    failure = failed(before + raw + after)
    assert (failure.failure, failure.raw, failure.start) == (Failure.MISPLACED, raw, len(before))
    assert failure.name == "f" and f"between {OPENING} and its closing marker" in failure.detail


@pytest.mark.parametrize(
    "text",
    [
        *('Write `<invoke name="NAME">` and so on.', f"x {INVOKE}", '<invoke name="f"> calls it.\n</invoke>'),
        *('<invoke name="">\n</invoke>', "</invoke>\n" + parameter("s", "v")),
    ],
)
def test_text_about_the_format_is_text(text: str) -> None:
    assert parse(text) == ParsedTurn(reasoning=None, text=text)


class TestMiniMaxM2(Conformance):
    forms = [FORM]
    remaining = [
        *rows("", "", CALL),
        *rows("before\nafter", f"before\n\n{CALL}\n{CALL}\nafter", f"before{block(INVOKE, INVOKE, INVOKE)}after"),
        (f"a {CLOSING}{CALL}", f"a {CLOSING}"),
        (f"a </parameter></invoke>{CALL}", "a </parameter></invoke>"),
        *((f"a\n{OPENING}{{}}{CLOSING}", "a"), (f"a {INVOKE}", f"a {INVOKE}"), (f"a\n{INVOKE}\nb", "a\nb")),
    ]
    details = [
        (f"{OPENING}{inside}{CLOSING}", *rest)
        for inside, *rest in [
            ("", 'there is no call, <invoke name="…, at character 19', None),
            ("x", f'After {OPENING} there must be <invoke name="…, at character 19 of the call', None),
            (f"{INVOKE}x", f"Between </invoke> and {CLOSING} there must be only further calls, at character", "f"),
            (f"{INVOKE}{INVOKE}x", "there must be only further calls", None),
            (f"{INVOKE}{OPENING}", f"Another {OPENING} begins before {CLOSING}", "f"),
            ('<invoke name="f>', '<invoke name=" must be followed by a name and ">, at', None),
            ('<invoke name="f"><parameter name="s">v</invoke>', "before the </parameter> of parameter 's'", "f"),
            ('<invoke name="f">hi</invoke>', 'only parameters, each <parameter name="…</parameter>, at', "f"),
            (f'<invoke name="f">{parameter("s", "v") * 2}</invoke>', "The parameter 's' is given twice", "f"),
        ]
    ]
