"""What is recorded of a rendering gives the text for other contents, or the recording is refused."""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strands_sglang.chat._jinja import chat_environment
from strands_sglang.chat._symbolic_text import (
    Joined,
    Recording,
    RecordingRefusedError,
    Slot,
    SymbolicText,
    Term,
    record,
)

FOLLOWED = [
    "{{ c }}",
    "<{{ c }}|{{ d }}>",
    "{{ c + d }}",
    "{{ 'a' + c + 'b' }}",
    "{{ c ~ d ~ 1 }}",
    "{{ (c ~ 'x ') | trim }}",
    "{{ (' ' + c) | trim }}",
    "{{ c | trim }}",
    "{{ c.strip('x') }}",
    "{{ c.lstrip('\\n') + c.rstrip() }}",
    "{{ c | upper }}{{ d.lower() }}",
    "{{ c | tojson }}",
    "{{ {'k': c, 'l': [d, 1, none]} | tojson }}",
    "{{ m | tojson(indent=2) }}",
    "{{ c | tojson(ensure_ascii=true) }}",
    "{{ c | string }}",
    "{{ c | default('x') }}{{ c | default('x', true) }}",
    "{{ c if c else 'none' }}",
    "{{ c or d }}",
    "{% if 'x' in c %}X{% else %}{{ c }}{% endif %}",
    "{% if c not in d %}X{{ d }}{% endif %}",
    "{% if c in 'xyz' %}X{% endif %}{{ c }}",
    "{% if c in ['x', 'y'] %}X{% endif %}",
    "{% if c in {'x': 1} %}X{% endif %}",
    "{% if c == d %}same{% endif %}",
    "{% if 'x' == c %}same{% endif %}{% if c != 'y' %}other{% endif %}",
    "{% if c is equalto 'x' %}same{% endif %}",
    "{% if c is string and c is defined and c is not none %}{{ c }}{% endif %}",
    "{% if c | length > 3 %}long{% endif %}",
    "{% if 2 < c | length %}long{% endif %}{% if c | length %}some{% endif %}",
    "{% if c.startswith('x') and not c.endswith(('y', 'z')) %}X{% endif %}{{ c }}",
    "{{ c.split('x')[-1] }}",
    "{{ c.split('x') | join('+') }}",
    "{{ c.split() | first }}",
    "{{ c.replace('x', 'yy') }}{{ c | replace('x', '') }}",
    "{{ c[1:] }}{{ c[:-1] }}",
    "{{ [c, d] | join('-') }}{{ [c, d] | last }}",
    "{% for item in [c, d] %}{{ item }},{% endfor %}",
    "{% for k, v in m.items() %}{{ k }}={{ v }}{% endfor %}",
    "{% for k, v in m | items %}{{ k }}={{ v }}{% endfor %}",
    "{{ [m, m] | map(attribute='content') | join }}",
    "{{ [m] | selectattr('content', 'equalto', 'x') | list | length }}",
    "{{ [c, d] | map('trim') | join(',') }}",
    "{% macro wrap(t) %}[{{ t }}]{% endmacro %}{{ wrap(c) | trim }}{{ wrap(t=d) }}",
    "{% macro same(t) %}{{ t }}{% endmacro %}{% if 'x' in same(c) %}X{% endif %}",
    "{% set block %}{{ c }} {% endset %}{{ block | trim }}{% if 'xx' in block %}X{% endif %}",
    "{% set ns = namespace(t='') %}{% for i in [c, d] %}{% set ns.t = ns.t + i %}{% endfor %}{{ ns.t.strip() }}",
    "{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}{{ c }}{% endcall %}",
    "{{ m.content }}{{ m['content'] }}{{ m.get('content') }}{{ m.get('other', d) }}",
    "{{ c.text }}{{ c['text'] is defined }}",
    "{% generation %}{{ c }}{% endgeneration %}",
]
"""Templates whose recordings must not be refused, whatever the contents."""
HOSTILE = [
    "{{ '%s' % c }}",
    "{{ '%s' % (c,) }}",
    "{{ '%s-%s' | format(c, d) }}",
    "{{ '{}'.format(c) }}",
    "{{ '{x}'.format_map({'x': c}) }}",
    "{{ c % () }}",
    "{{ ','.join([c, d]) }}",
    "{{ 'xyz'.startswith(c) }}",
    "{{ 'xyz'.find(c) }}",
    "{{ 'xyz'.replace(c, '') }}",
    "{{ 'xyz' | replace(c, '') }}",
    "{{ 'x-y'.split(c) }}",
    "{{ 'x'.__contains__(c) }}",
    "{{ 'x' < c }}{{ c < 'x' }}",
    "{{ [c, d] | sort | join }}",
    "{{ [c, d] | unique | list }}",
    "{{ [c, d] | max }}",
    "{{ {c: 1} }}",
    "{{ {'x': 1}[c] }}",
    "{{ {'x': 1}.get(c) }}",
    "{{ m[c] }}",
    "{{ c | int }}{{ c | float }}",
    "{{ c | list }}",
    "{{ c | first }}{{ c | last }}",
    "{{ c[0] }}",
    "{% for x in c %}{{ x }}{% endfor %}",
    "{{ c * 2 }}{{ 2 * c }}",
    "{{ c | safe }}",
    "{{ c | escape }}{{ c | forceescape }}",
    "{{ ('<' | safe) + c }}",
    "{% if ('x' | safe) == c %}y{% endif %}{{ c }}",
    "{% if ('x' | e) != c %}y{% endif %}{{ c }}",
    "{{ ('x' | safe) in [c] }}{{ ('x' | safe) is eq(c) }}",
    "{% autoescape true %}{% set b %}{{ c }}{% endset %}{% if 'x' in b %}y{% endif %}{% endautoescape %}{{ c }}",
    "{% if style == c %}y{% endif %}{{ c }}",
    "{{ c | indent }}",
    "{{ c | wordcount }}",
    "{{ c | truncate(3) }}",
    "{{ c | urlencode }}",
    "{{ c | title }}",
    "{{ c | center(9) }}",
    "{{ c | reverse }}",
    "{{ c | batch(2) | list }}",
    "{{ c | random }}",
    "{{ c | length + 1 }}",
    "{{ c | length }}",
    "{{ 'x' * (c | length) }}",
    "{{ range(c | length) | list }}",
    "{{ c | count == d | count }}",
    "{{ c is upper }}{{ c is lower }}",
    "{{ c is sameas d }}",
    "{{ c is in 'xyz' }}{{ 'x' is in c }}",
    "{{ c is divisibleby 2 }}",
    "{{ c.isdigit() }}{{ c.isalpha() }}",
    "{{ c.count('x') }}{{ c.find('x') }}{{ c.index('x') }}",
    "{{ c.partition('x')[0] }}{{ c.rpartition('x')[2] }}",
    "{{ c.encode() }}",
    "{{ c.zfill(9) }}{{ c.center(9) }}",
    "{{ c.splitlines()[0] }}",
    "{{ c.split('x', maxsplit=1)[0] }}",
    "{{ c.split(d)[0] }}",
    "{{ c.strip(d) }}",
    "{{ c.join(['a', 'b']) }}",
    "{{ c.translate({}) }}",
    "{{ [c] }}",
    "{{ [c] | string }}",
    "{{ m }}",
    "{{ [c, d] | join(c) }}",
    "{{ ([c] | map('length') | list)[0] }}",
    "{{ [c, d] | map('int') | list }}",
    "{{ [m] | map(attribute='content') | map('upper') | join }}",
    "{{ [c, d] | select('in', 'xyz') | list }}",
    "{{ [m] | groupby('content') }}",
    "{{ [m] | sort(attribute='content') }}",
    "{{ m | dictsort(by='value') }}",
    "{{ c < d < 'z' }}",
    "{{ 'a' in c in d }}",
    "{{ cycler(c, d).next() }}",
    "{{ joiner(c)() }}{{ joiner(c)() }}",
    "{{ dict(x=c).x }}",
    "{% filter upper %}{{ c }}{% endfilter %}",
    "{% set x | upper %}{{ c }}{% endset %}{{ x }}",
    "{% set x | length %}{{ c }}{% endset %}{{ x }}",
    "{{ lipsum(n=1) if c == 'x' else '' }}",
    "{{ strftime_now('%Y') }}{{ c }}",
    "{{ (c ~ d) | length > 3 }}",
    "{{ 'x' in (c ~ d) }}{{ 'x' in (c + d) }}{{ (c ~ d).split('x')[0] }}",
    "{{ ([c, d] | join).startswith('x') }}",
    "{{ (c | tojson)[1:-1] }}{{ 'x' in (c | tojson) }}",
    "{{ (m | tojson) | length > 20 }}",
    "{{ loop_of(c) }}",
    "{% for x in [c, d] recursive %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in [c, d] if x %}{{ loop.length }}{% endfor %}",
    "{{ c.recording }}{{ c._recording }}{{ c.term }}{{ c.plain }}",
    "{{ c.strip }}",
    "{{ self }}",
    "{{ c | attr('upper') }}",
    "{{ namespace(t=c) }}",
    "{% macro f(ns) %}{{ ns.t | upper }}{% endmacro %}{{ f(namespace(t=c)) }}",
]
"""Templates that read contents in ways that a string cannot record, or hardly."""

contents = st.one_of(
    st.sampled_from(["", "x", "y", " x ", "xx", "x-y", "\n", "12", "<x>", '"', "xyz", "é🙂", "\x1f", "z", "ayz"]),
    st.text(alphabet="xyz <\n\"'\\é", max_size=12),
)
_compiled = cache(chat_environment(ImmutableSandboxedEnvironment).from_string)
_no_shrinking = settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.generate])


class Style(str, Enum):
    """A text that compares itself with others in C."""

    X = "x"


def _variables(c: Any, d: Any) -> dict[str, Any]:
    return {"c": c, "d": d, "m": {"role": "user", "content": c}, "style": Style.X}


def _rendered(source: str, values: list[str]) -> str | None:
    try:
        return _compiled(source).render(**_variables(*values))
    except Exception:
        return None


def _recorded(source: str, values: list[str]) -> tuple[Term, Recording]:
    recording = Recording()
    texts = [SymbolicText(value, recording, Slot(number)) for number, value in enumerate(values)]
    pieces, written = record(source, recording, _variables(*texts))
    assert written == _rendered(source, values)
    return Joined(pieces), recording


def _value(term: Term, recording: Recording, values: list[str]) -> str | None:
    """Return the text for other contents; None if the recording does not apply to them."""
    try:
        if any(condition.value(values) != result for condition, result in recording.conditions):
            return None
        return str(term.value(values))
    except RecordingRefusedError:
        return None


@_no_shrinking
@given(first=st.tuples(contents, contents), others=st.lists(st.tuples(contents, contents), max_size=6))
def test_recording_gives_text_for_other_contents(first: tuple[str, str], others: list[tuple[str, str]]) -> None:
    for source in FOLLOWED:
        term, recording = _recorded(source, list(first))
        for values in map(list, [first, *others]):
            found = _value(term, recording, values)
            assert found is None or found == _rendered(source, values), (source, first, values)


@_no_shrinking
@given(first=st.tuples(contents, contents), others=st.lists(st.tuples(contents, contents), max_size=6))
def test_hostile_template_is_refused_or_followed(first: tuple[str, str], others: list[tuple[str, str]]) -> None:
    for source in HOSTILE:
        try:
            term, recording = _recorded(source, list(first))
        except RecordingRefusedError:
            continue
        for values in map(list, others):
            found = _value(term, recording, values)
            assert found is None or found == _rendered(source, values), (source, first, values)


def test_refusal_stays_if_exception_is_caught() -> None:
    recording = Recording()
    text = SymbolicText("x", recording, Slot(0))
    with pytest.raises(RecordingRefusedError):
        hash(text)
    assert recording.refused is not None
    with pytest.raises(RecordingRefusedError):
        record("{{ c }}", recording, {"c": text})


@pytest.mark.parametrize("name", [name for name in dir(str) if not name.startswith("__")])
def test_every_method_of_text_is_followed_or_refused(name: str) -> None:
    own = vars(SymbolicText)[name]
    assert own is not getattr(str, name)
