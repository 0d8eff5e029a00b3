"""The chat template: renders messages exactly as the tokenizer's own `apply_chat_template` does.

Templates differ in the form they expect (arguments as an object or JSON text, the reasoning key, call ids, `none` for a
turn without text). The form is found by rendering probes, never from the name of a model. A call id that the template
rejects is replaced by a valid one in the call and in its result.

Some templates write the current date, by calling `strftime_now`. transformers accepts no function as an argument, so
the template gets a macro of that name before its text, which looks up the formatted times in an argument.

Invariants: the rendered text is what the template writes for these messages at the time of the template, and data in it
contains no control token. The clock of the machine is never read.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from strands_sglang.chat._guarded_template import PROBE, TOOL, Arguments, GuardedTemplate, sample_conversations
from strands_sglang.chat.control_tokens import ControlTokens, Escapes
from strands_sglang.chat.messages import TemplateMessage, function_call
from strands_sglang.errors import ConfigurationError, TemplateRefusedError

_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
_COMMON_IDS = ("call_1", "functions.probe:0", "tooluse_3Fq-1xKz0TzqYw", "12345678")
_MAX_CACHED_IDS = 4096
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")

OF_THE_PROCESS = (RecursionError, MemoryError)
"""Errors that say nothing about a template: it would render the same in another place. What is found of a template is
kept, so it must not be found from them."""

PROBE_TIME = datetime(2025, 1, 15, 12)
"""The time of renderings that belong to no episode, so that what is found of a template does not depend on the day."""
_TIMES, _CLOCK = "strands_sglang_times", "strftime_now"
_UNKNOWN_FORMAT = "strands_sglang: unknown time format "
# The newline belongs to the last tag (`trim_blocks`), so the template's own text still starts at the start of a line.
_CLOCK_MACRO = (
    f"{{% macro {_CLOCK}(format) %}}{{{{ {_TIMES}[format] if format in {_TIMES} "
    f"else raise_exception('{_UNKNOWN_FORMAT}' ~ format) }}}}{{% endmacro %}}\n"
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered text, and what was escaped in its data."""

    text: str
    escapes: Escapes


class ChatTemplate:
    """One chat template with its arguments, on one tokenizer."""

    def __init__(
        self,
        tokenizer: Any,
        control: ControlTokens,
        source: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        own = getattr(tokenizer, "chat_template", None)
        # Fixed here: soundness is proved for this text, even if the tokenizer's template is changed later.
        self._source = own if source is None and isinstance(own, str) else source
        self.arguments = copy.deepcopy(dict(arguments or {}))  # a later change of them would not be noticed
        if source is None and not getattr(tokenizer, "chat_template", None):
            raise ConfigurationError(
                "the tokenizer has no chat template; pass one as chat_template=, as Jinja source text"
            )
        self._time = PROBE_TIME
        self._writes_time = _CLOCK in self.source
        self._time_formats: list[str] = []
        self._arguments_as_text = False
        self._empty_content: str | None = ""
        self._rejects_ids = False
        self._accepted_ids: dict[str, bool] = {}
        self._reasoning_key: str | None = None
        self._reasoning_excludes_text = False
        self._check_renders()
        self.writes_tools = self._finds_tools()
        """Whether the template writes the available tools; if False, the model never sees them."""
        self.writes_calls = self._find_call_format()
        """Whether the template writes tool calls; if False, it rejects or drops them."""
        self._reasoning_key, self._reasoning_excludes_text = self._find_reasoning_key()
        self._rejects_ids = self._finds_rejected_ids()
        own = {"chat_template": self._source, **self.arguments}
        special = getattr(tokenizer, "special_tokens_map", None) or {}
        samples = [(self.fitted(messages), tools) for messages, tools in sample_conversations()]
        self._guarded = GuardedTemplate(control, self._render, own, special, samples)

    def at(self, time: datetime | None) -> ChatTemplate:
        """Return this template at a time (local, without time zone), which matters only if it writes the time."""
        if time is None or not self._writes_time:
            return self
        bound = copy.copy(self)
        bound._time = time
        return bound

    @property
    def source(self) -> str:
        """Source text of the template (JSON of all templates if the tokenizer has several)."""
        if self._source is not None:
            return self._source
        source = self._tokenizer.chat_template
        return source if isinstance(source, str) else json.dumps(source, sort_keys=True)

    @property
    def hides_tools(self) -> bool:
        """Whether a comment of the template declares that it writes no tools on purpose, because the model knows them.

        The declaration belongs to the checkpoint: every program that uses it would otherwise need the same option.
        """
        return "on_hidden_tools: allow" in self.source

    @property
    def variables(self) -> dict[str, Any]:
        """Template variables besides messages and tools: the tokenizer's special tokens, and the arguments."""
        return {**getattr(self._tokenizer, "special_tokens_map", {}), **self.arguments}

    @property
    def writes_reasoning(self) -> bool:
        """Whether the template writes the reasoning of any assistant turn."""
        return self._reasoning_key is not None

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = True,
    ) -> Rendered:
        """Render messages; `generate` adds the prompt for the next assistant turn."""
        return Rendered(*self._guarded.render(self._render, self.fitted(messages), tools, generate))

    @property
    def is_official(self) -> bool:
        """Whether transformers itself renders this template, and not code of the tokenizer's own class."""
        from transformers import PreTrainedTokenizerBase

        own = getattr(self._tokenizer.__class__, "apply_chat_template", None)
        replaced = "apply_chat_template" in getattr(self._tokenizer, "__dict__", {})
        return own is PreTrainedTokenizerBase.apply_chat_template and not replaced and isinstance(self._source, str)

    def official(self, messages: Sequence[TemplateMessage], *, tools: Any = None, generate: bool = True) -> str:
        """Render messages that already have the form this template reads, without escaping data."""
        return self._render(messages, tools, generate, {"chat_template": self._source, **self.arguments})

    def _render(self, messages: Sequence[TemplateMessage], tools: Any, generate: bool, arguments: Arguments) -> str:
        given = arguments
        try:
            if self._writes_time:
                given = self._with_time(arguments, tools)
            if self._drops_none and any(message.get("content", "") is None for message in messages):
                text = self._render_with_none(messages, tools, generate, given)
            else:
                text = self._tokenizer.apply_chat_template(
                    list(messages), tools=tools, add_generation_prompt=generate, tokenize=False, **given
                )
        except (ReferenceError, *OF_THE_PROCESS):
            raise  # a ReferenceError: the weakly referenced tokenizer was collected
        except Exception as error:  # a template can raise anything
            _, unknown, time_format = str(error).partition(_UNKNOWN_FORMAT)
            if unknown and time_format not in given.get(_TIMES, (time_format,)):
                self._time_formats.append(time_format)
                return self._render(messages, tools, generate, arguments)
            raise TemplateRefusedError(
                f"the chat template rejects this conversation ({_roles(messages)}): {error}",
                template_message=str(error),
            ) from error
        return str(text)

    def _with_time(self, arguments: Arguments, tools: Any) -> Arguments:
        """Return the arguments with the time of this template; a user's own `strftime_now` is used instead if given."""
        clock = arguments.get(_CLOCK, self._time.strftime)
        source = arguments["chat_template"]
        if source is None:
            source = self._tokenizer.get_chat_template(None, tools)
        times = {time_format: clock(time_format) for time_format in self._time_formats}
        return {**arguments, "chat_template": _CLOCK_MACRO + source, _TIMES: times}

    @cached_property
    def _drops_none(self) -> bool:
        """Whether keys that are None are removed before rendering, as transformers does since 5.23.

        Templates such as DeepSeek-V3's write calls only if the content is `none`, not if there is no content.
        """
        if not self.is_official:
            return False
        text = self._tokenizer.apply_chat_template(
            [{"role": "assistant", "content": None}], tokenize=False, chat_template="{{ messages[0].content is none }}"
        )
        return bool(text == "False")

    def _render_with_none(
        self, messages: Sequence[TemplateMessage], tools: Any, generate: bool, arguments: Arguments
    ) -> str:
        """Render as `apply_chat_template` does, with the function that it calls, but with keys that are None."""
        from transformers.utils.chat_template_utils import render_jinja_template

        given = {**self._tokenizer.special_tokens_map, **arguments}
        source = self._tokenizer.get_chat_template(given.pop("chat_template", None), tools)
        rendered = render_jinja_template(
            conversations=[list(messages)],
            tools=tools,
            documents=None,
            chat_template=source,
            add_generation_prompt=generate,
            **given,
        )
        return str(rendered[0][0])

    def fitted(self, messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
        """Return messages in the form that this template reads."""
        return [self._fitted(message) for message in messages]

    def _fitted(self, message: TemplateMessage) -> TemplateMessage:
        if message["role"] == "tool" and self._rejects_ids and not self._accepts_id(message.get("tool_call_id")):
            return {**message, "tool_call_id": _short_id(message["tool_call_id"])}
        if message["role"] != "assistant":
            return message
        fitted = dict(message)
        reasoning = fitted.pop("reasoning_content", None)
        calls = fitted.get("tool_calls")
        if calls and not fitted.get("content"):
            fitted["content"] = self._empty_content
        if calls and self._arguments_as_text:
            calls = fitted["tool_calls"] = [_with_text_arguments(call) for call in calls]
        if calls and self._rejects_ids:
            fitted["tool_calls"] = [
                call if self._accepts_id(call.get("id")) else {**call, "id": _short_id(call["id"])} for call in calls
            ]
        if reasoning is not None and self._reasoning_key is not None:
            if calls and self._reasoning_excludes_text and fitted.get("content"):
                reasoning, fitted["content"] = f"{reasoning}\n{fitted['content']}", self._empty_content
            fitted[self._reasoning_key] = reasoning
        return fitted

    def _check_renders(self) -> None:
        try:
            self.official([{"role": "user", "content": "x"}])
        except TemplateRefusedError as error:
            raise ConfigurationError(
                f"the chat template cannot render even one user message: {error.template_message}"
            ) from error

    def _probed(self, messages: Sequence[TemplateMessage], *, tools: Any, generate: bool = True) -> str | None:
        """Return the official rendering; None if the template rejects the messages."""
        try:
            return self.official(messages, tools=tools, generate=generate)
        except TemplateRefusedError:
            return None

    def _finds_tools(self) -> bool:
        text = self._probed([{"role": "user", "content": "x"}], tools=[TOOL])
        return text is not None and TOOL["function"]["name"] in text

    def _writes(self, message: TemplateMessage) -> str | None:
        messages: list[TemplateMessage] = [{"role": "user", "content": "x"}, self._fitted(message)]
        # Some templates write calls only if tools are available.
        offers = (None, [TOOL]) if self.writes_tools else (None,)
        texts = (self._probed(messages, tools=tools, generate=False) for tools in offers)
        return next((text for text in texts if text is not None and PROBE in text), None)

    def _find_call_format(self) -> bool:
        call = function_call("probe", {"key": PROBE}, "probe0000")
        for as_text, self._empty_content in ((False, ""), (True, ""), (False, None), (True, None)):
            self._arguments_as_text = as_text
            text = self._writes({"role": "assistant", "content": "", "tool_calls": [call]})
            # An object without a JSON filter renders as Python's repr, which no model was trained on.
            if text is not None and "{'key'" not in text:
                return True
        self._arguments_as_text, self._empty_content = False, ""
        return False

    def _accepts_id(self, call_id: Any) -> bool:
        if not isinstance(call_id, str) or _SHORT_ID.fullmatch(call_id):
            return True
        accepted = self._accepted_ids.get(call_id)
        if accepted is None:
            if len(self._accepted_ids) >= _MAX_CACHED_IDS:
                self._accepted_ids = {}
            accepted = self._accepted_ids[call_id] = self._renders_id(call_id)
        return accepted

    def _renders_id(self, call_id: str) -> bool:
        call = function_call("probe", {"key": PROBE}, call_id)
        messages: list[TemplateMessage] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": self._empty_content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "name": "probe", "content": "x"},
        ]
        if self._arguments_as_text:
            messages[1]["tool_calls"] = [_with_text_arguments(call)]
        return self._probed(messages, tools=[TOOL] if self.writes_tools else None) is not None

    def _finds_rejected_ids(self) -> bool:
        return self.writes_calls and self._renders_id("probe0000") and not all(map(self._renders_id, _COMMON_IDS))

    def _find_reasoning_key(self) -> tuple[str | None, bool]:
        # The other keys are there, because transformers since 5.23 fills in those that are not.
        message: TemplateMessage = {"role": "assistant", "content": "", **dict.fromkeys(_REASONING_KEYS, "")}
        message["reasoning_content"] = PROBE
        if self.writes_calls:
            message["tool_calls"] = [function_call("probe", {}, "probe0000")]
        for key in _REASONING_KEYS:
            self._reasoning_key = key
            if self._writes(message) is not None:
                both = self._writes({**message, "content": "x"})
                return key, both is None
        return None, False


def _with_text_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if not isinstance(function["arguments"], str):
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": function}


def _short_id(call_id: str) -> str:
    """Every chat template accepts nine letters and digits."""
    return hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()[:9]


def _roles(messages: Sequence[TemplateMessage]) -> str:
    roles = [str(message.get("role")) for message in messages]
    return ", ".join(roles if len(roles) <= 8 else [*roles[:3], "...", *roles[-4:]])
