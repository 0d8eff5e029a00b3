"""Chat templates that look at what a stand-in conversation may not have: counts, lengths, words, neighbours, tools.

Each is ChatML with one habit of its own. None is far from what published templates do.
"""

from __future__ import annotations

_HEAD = """\
{%- if tools %}{{ '<|im_start|>system' }}
{%- if messages[0].role == 'system' %}{{ '\\n' + messages[0].content }}{% endif %}
{{- '\\n# Tools' }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}"""
_CALLS = """\
{%- for call in m.tool_calls or [] %}{% if m.content or not loop.first %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
{{- '\\n</tool_call>' }}
{%- endfor %}"""
_LATER = "messages[loop.index0 + 1:]"


def chatml(
    *,
    first: str = "",
    user: str = "{{ m.content }}",
    user_role: str = "user",
    result: str = "{{ m.content }}",
    text: str = "{{ m.content }}",
    thought: str = "m.reasoning_content",
    empty_thought: str = "false",
    calls: str = _CALLS,
    end: str = "{{ '<|im_end|>\\n' }}",
    role: str = "assistant",
    prompt: str = "",
    before_prompt: str = "",
) -> str:
    """Return ChatML with parts of it replaced."""
    return (
        _HEAD
        + first
        + "{%- for m in messages %}{%- if m.role == 'user' %}{{ '<|im_start|>"
        + user_role
        + "\\n' }}"
        + user
        + "{{ '<|im_end|>\\n' }}{%- elif m.role == 'assistant' %}{{ '<|im_start|>"
        + role
        + "\\n' }}{%- if "
        + thought
        + " %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- elif "
        + empty_thought
        + " %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
        + text
        + calls
        + end
        + "{%- elif m.role == 'tool' %}{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}"
        + "{{ '<|im_start|>user' }}{%- endif %}{{ '\\n<tool_response>\\n' }}"
        + result
        + "{{ '\\n</tool_response>' }}{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}"
        + "{{ '<|im_end|>\\n' }}{%- endif %}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}"
        + before_prompt
        + "{{ '<|im_start|>"
        + role
        + "\\n' }}"
        + prompt
        + "{%- endif %}"
    )


_NO_THOUGHT = "{{ '<think>\\n\\n</think>\\n\\n' }}"
_FLAG = "{%- set off = CONDITION %}"
_LAST_USER_PLACE = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
)
_SOMEWHERE = (
    "{%- set ns = namespace(off=false) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- if '/no_think' in m.content %}{%- set ns.off = true %}{%- elif '/think' in m.content %}"
    "{%- set ns.off = false %}{%- endif %}{%- endif %}{%- endfor %}"
)


def _flagged(condition: str) -> str:
    """Return a template that writes empty reasoning everywhere where a condition holds."""
    return chatml(
        first=_FLAG.replace("CONDITION", condition),
        thought="m.reasoning_content and not off",
        empty_thought="off",
        prompt="{% if off %}" + _NO_THOUGHT + "{% endif %}",
    )


_LAST_CALLS = (
    "{%- set last = namespace(calls=[]) %}{%- for o in messages[:loop.index0] if o.tool_calls %}"
    "{%- set last.calls = o.tool_calls %}{%- endfor %}"
)
_REPEATED = "{%- for c in last.calls %}{%- set a = c.function.arguments %}READ{%- endfor %}{{ m.content }}"


AWKWARD: dict[str, str] = {
    "plain": chatml(),
    "a clock in every user turn": chatml(user="[{{ strftime_now('%H:%M:%S.%f') }}] {{ m.content }}"),
    "reasoning since the last user message": chatml(
        first=_LAST_USER_PLACE, thought="m.reasoning_content and loop.index0 > ns.last"
    ),
    "user messages are numbered": chatml(user="{{ loop.index }}: {{ m.content }}"),
    "results are numbered": chatml(result="{{ loop.index }}: {{ m.content }}"),
    "long results are cut once an answer follows": chatml(
        result="{% if m.content | length > 350 and "
        + _LATER
        + " | selectattr('role', 'equalto', 'assistant') | list %}[cut]{% else %}{{ m.content }}{% endif %}"
    ),
    "long results are cut once a later round has results": chatml(
        result="{% if m.content | length > 350 and messages[-1].role != 'assistant' and "
        + _LATER
        + " | selectattr('role', 'equalto', 'assistant') | list %}[cut]{% else %}{{ m.content }}{% endif %}"
    ),
    "a word in any user message turns reasoning off": chatml(
        first=_SOMEWHERE, prompt="{% if ns.off %}" + _NO_THOUGHT + "{% endif %}"
    ),
    "a word in the last user message turns reasoning off": chatml(
        prompt="{% if '/no_think' in (messages | selectattr('role', 'equalto', 'user') | list)[-1].content %}"
        + _NO_THOUGHT
        + "{% endif %}"
    ),
    "a reminder where there are several tools": chatml(
        before_prompt="{% if tools and tools | length > 1 %}"
        "{{ '<|im_start|>system\\nPick one.<|im_end|>\\n' }}{% endif %}"
    ),
    "another header where there are several tools": chatml(
        role="assistant' + (' picks' if tools and tools | length > 1 else '') + '"
    ),
    "reasoning is dropped once results follow": chatml(
        thought="m.reasoning_content and not (" + _LATER + " | selectattr('role', 'equalto', 'tool') | list)"
    ),
    "everything is trimmed": chatml(
        user="{{ m.content | trim }}", result="{{ m.content | trim }}", text="{{ m.content | trim }}"
    ),
    "reasoning is looked for in the text": chatml(
        thought="false", text="{{ m.content.split('</think>')[-1] if '</think>' in m.content else m.content }}"
    ),
    "the system prompt moves to the last user message": chatml(
        user="{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}{{ '\\n\\n' }}{% endif %}"
        "{{ m.content }}"
    ),
    "calls end otherwise": chatml(
        end="{% if m.tool_calls %}{{ '<|fim_pad|>\\n' }}{% else %}{{ '<|im_end|>\\n' }}{% endif %}"
    ),
    "brief from the fifth user message on": chatml(
        before_prompt="{% if messages | selectattr('role', 'equalto', 'user') | list | length >= 5 %}"
        "{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}{% endif %}"
    ),
    "the last turn does not end": chatml(end="{% if not loop.last %}{{ '<|im_end|>\\n' }}{% endif %}"),
    "a token before every user turn": chatml(user="<|endoftext|>{{ m.content }}"),
    "results carry the end of an id": chatml(result="{{ m.name }} {{ m.tool_call_id[-4:] }}: {{ m.content }}"),
    "reasoning of the last three turns": chatml(
        first="{%- set ns = namespace(n=0) %}"
        "{%- set total = messages | selectattr('role', 'equalto', 'assistant') | list | length %}",
        thought="m.reasoning_content and total - (messages[:loop.index0] | selectattr('role', 'equalto', 'assistant')"
        " | list | length) <= 3",
    ),
    "empty reasoning once any turn reasons": chatml(
        first="{%- set any = messages | selectattr('reasoning_content', 'defined') | list | length > 0 %}",
        empty_thought="any",
    ),
    "a word in the system prompt changes the prompt": chatml(
        prompt="{% if messages[0].role == 'system' and '/no_think' in messages[0].content %}"
        + _NO_THOUGHT
        + "{% endif %}"
    ),
    "a word in the system prompt changes all turns": _flagged(
        "messages[0].role == 'system' and '/no_think' in messages[0].content"
    ),
    "a word in the first user message changes all turns": _flagged(
        "'/no_think' in (messages | selectattr('role', 'equalto', 'user') | list)[0].content"
    ),
    "a long first user message changes all turns": _flagged(
        "(messages | selectattr('role', 'equalto', 'user') | list)[0].content | length > 300"
    ),
    "reasoning is kept where tools are on offer": chatml(
        first=_LAST_USER_PLACE, thought="m.reasoning_content and (tools or loop.index0 > ns.last)"
    ),
    "blank user messages say continue": chatml(user="{{ m.content if m.content | trim else '(continue)' }}"),
    "a question asked twice is written once": chatml(
        user="{% if not loop.last and messages[-1].role == 'user' and m.content == messages[-1].content %}(below)"
        "{% else %}{{ m.content }}{% endif %}"
    ),
    "turns left, of twelve": chatml(
        prompt="{{ 12 - (messages | selectattr('role', 'equalto', 'assistant') | list | length) }} left. "
    ),
    "text beside calls is dropped in history": chatml(
        text="{% if not m.tool_calls or loop.last %}{{ m.content }}{% endif %}"
    ),
    "every fourth result repeats the tools": chatml(
        first="{%- set ns = namespace(n=0) %}",
        result="{{ m.content }}{% set ns.n = ns.n + 1 %}{% if ns.n % 4 == 0 and tools %} [{{ tools | length }} tools]"
        "{% endif %}",
    ),
    "reasoning within the last twelve messages": chatml(
        thought="m.reasoning_content and messages | length - loop.index0 <= 12"
    ),
    "a long system prompt is repeated": chatml(
        before_prompt="{% if messages[0].role == 'system' and messages[0].content | length > 200 %}"
        "{{ '<|im_start|>system\\n' + messages[0].content[:40] + '<|im_end|>\\n' }}{% endif %}"
    ),
    "results that look like errors are marked": chatml(
        result="{% if m.content.startswith('error') %}FAILED {% endif %}{{ m.content }}"
    ),
    "an error is mentioned from then on": chatml(
        before_prompt="{% if messages | selectattr('content', 'equalto', 'error') | list %}"
        "{{ '<|im_start|>system\\nMind the error.<|im_end|>\\n' }}{% endif %}"
    ),
    "a result of another length than the last is marked": chatml(
        result="{{ m.content }}{% if m.content | length == messages[-1].content | length and not loop.last %} (same)"
        "{% endif %}"
    ),
    "results of a tool that is looked up by its name are marked": chatml(
        result="{% for t in tools or [] %}{% if t.function.name == m.name and 'Schl' in t.function.description %}!"
        "{% endif %}{% endfor %}{{ m.content }}"
    ),
    "results of one tool are marked": chatml(result="{{ '! ' if m.name == 'look_up' }}{{ m.content }}"),
    "results of a tool in a table are marked": chatml(result="{{ {'look_up': '! '}.get(m.name, '') }}{{ m.content }}"),
    "a tool that was used is mentioned from then on": chatml(
        before_prompt="{% for n in messages | selectattr('tool_calls', 'defined') | map(attribute='tool_calls') | sum("
        "start=[]) if n.function.name == 'look_up' %}{{ '<|im_start|>system\\nMind it.<|im_end|>\\n' }}{% endfor %}"
    ),
    "an argument of the last call is repeated": chatml(
        result=_LAST_CALLS + _REPEATED.replace("READ", "{{ a.expression }}")
    ),
    "an argument of the call with the id of a result is repeated": chatml(
        result=_LAST_CALLS
        + _REPEATED.replace("READ", "{% if c.id == m.tool_call_id %}{{ a.get('expression') }}{% endif %}")
    ),
    "results are marked by the name of an argument": chatml(
        result=_LAST_CALLS + _REPEATED.replace("READ", "{% for k in a if k == 'options' %}!{% endfor %}")
    ),
    "results are marked by the number of arguments": chatml(
        result=_LAST_CALLS + _REPEATED.replace("READ", "{% if a | length > 1 %}!{% endif %}")
    ),
    "results are marked by the value of an argument": chatml(
        result=_LAST_CALLS + _REPEATED.replace("READ", "{% for v in a.values() if 'Fin2' in v %}!{% endfor %}")
    ),
    "all arguments are repeated": chatml(result=_LAST_CALLS + _REPEATED.replace("READ", "{{ a | tojson }} ")),
    "the messages so far are counted": chatml(
        before_prompt="{{ '<|im_start|>system\\n' ~ (messages | length) ~ '<|im_end|>\\n' }}"
    ),
}
"""By what is awkward about it."""
