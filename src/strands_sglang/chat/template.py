"""The chat template: messages in, text out, exactly as the tokenizer's own `apply_chat_template` writes it.

Templates differ in what they expect (arguments of calls as an object or as JSON text, the name of the reasoning key,
ids of calls that are nine letters long). That is found out by asking the template, never from the name of a model. An
id that it refuses, of another provider or as the model wrote it, stands in its place as another one, in the call and
in its result.

Invariant: what is rendered is what the template wrote for these messages; data in it holds no control token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strands_sglang.chat.content import TemplateMessage
from strands_sglang.chat.control import ControlTokens
from strands_sglang.chat.escapes import Escapes
from strands_sglang.chat.guarded import PROBE, TOOL, GuardedTemplate, sample_talks
from strands_sglang.errors import ConfigurationError, TemplateRefusedError

_SHORT = re.compile("[a-zA-Z0-9]{9}")
_USUAL_IDS = ("call_1", "functions.probe:0", "tooluse_3Fq-1xKz0TzqYw", "12345678")
_IDS = 4096  # whose fate is remembered
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered text, and what was taken out of its data."""

    text: str
    """What the template wrote; control-token text of the data stands as private-use characters."""
    escapes: Escapes
    """Puts it back."""


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
        self._control = control
        own = getattr(tokenizer, "chat_template", None)
        # The text as it is now: what is proved is proved of this one, whatever the tokenizer is given later.
        self._source = own if source is None and isinstance(own, str) else source
        self.arguments = dict(arguments or {})
        """Further arguments of the template, such as `enable_thinking`."""
        if source is None and not getattr(tokenizer, "chat_template", None):
            raise ConfigurationError(
                "the tokenizer has no chat template; give one with chat_template=, as text in Jinja's language"
            )
        self._arguments_as_text = False
        self._no_text: str | None = ""
        self._picky = False
        self._taken: dict[str, bool] = {}
        self._reasoning_key: str | None = None
        self._reasoning_apart_from_text = False
        self._check_it_renders()
        self.tools = self._writes_tools()
        """Whether the template writes the tools on offer; False: the model never sees them."""
        self.calls = self._find_call_format()
        """Whether the template writes tool calls; False: it refuses or drops them."""
        self._reasoning_key, self._reasoning_apart_from_text = self._find_reasoning_key()
        self._picky = self._is_picky()
        own = {"chat_template": self._source, **self.arguments}
        special = getattr(tokenizer, "special_tokens_map", None) or {}
        samples = [(self.fitted(talk), tools) for talk, tools in sample_talks()]
        self._guarded = GuardedTemplate(control, self._render, own, special, samples)

    @property
    def source(self) -> str:
        """The template's own text (all of them, when the tokenizer has several)."""
        if self._source is not None:
            return self._source
        source = self._tokenizer.chat_template
        return source if isinstance(source, str) else json.dumps(source, sort_keys=True)

    @property
    def variables(self) -> dict[str, Any]:
        """What the template is given besides messages and tools: the tokenizer's special tokens, and its arguments."""
        return {**getattr(self._tokenizer, "special_tokens_map", {}), **self.arguments}

    @property
    def writes_reasoning(self) -> bool:
        """Whether the template writes the reasoning of an assistant turn anywhere."""
        return self._reasoning_key is not None

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = True,
    ) -> Rendered:
        """Render messages.

        Args:
            messages: The conversation.
            tools: Tools in the OpenAI form; None when there are none.
            generate: Whether the prompt for the next assistant turn is written behind it.

        Returns:
            The rendered text.

        Raises:
            TemplateRefusedError: The template does not take these messages; the message has its own words.
        """
        return Rendered(*self._guarded.render(self.fitted(messages), tools, generate))

    def official(self, messages: Sequence[TemplateMessage], *, tools: Any = None, generate: bool = True) -> str:
        """Render messages that need no fitting and no guarding."""
        return self._render(messages, tools, generate, {"chat_template": self._source, **self.arguments})

    def _render(
        self, messages: Sequence[TemplateMessage], tools: Any, generate: bool, arguments: Mapping[str, Any]
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tools=tools, add_generation_prompt=generate, tokenize=False, **arguments
            )
        except ReferenceError:
            raise  # the tokenizer is gone, and with it whoever asked
        except Exception as error:  # a template may fail with anything its expressions can raise
            raise TemplateRefusedError(
                f"the chat template does not take this conversation ({_roles(messages)}): {error}",
                template_message=str(error),
            ) from error
        return str(text)

    def fitted(self, messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
        """Return messages in the form this template reads."""
        return [self._fitted(message) for message in messages]

    def _fitted(self, message: TemplateMessage) -> TemplateMessage:
        if message["role"] == "tool" and self._picky and not self._takes(message.get("tool_call_id")):
            return {**message, "tool_call_id": _short(message["tool_call_id"])}
        if message["role"] != "assistant":
            return message
        fitted = dict(message)
        reasoning = fitted.pop("reasoning_content", None)
        calls = fitted.get("tool_calls")
        if calls and not fitted.get("content"):
            fitted["content"] = self._no_text
        if calls and self._arguments_as_text:
            calls = fitted["tool_calls"] = [_with_text_arguments(call) for call in calls]
        if calls and self._picky:
            taken = [self._takes(call.get("id")) for call in calls]
            both = zip(calls, taken, strict=True)
            fitted["tool_calls"] = [call if taken else {**call, "id": _short(call["id"])} for call, taken in both]
        if reasoning is not None and self._reasoning_key is not None:
            if calls and self._reasoning_apart_from_text and fitted.get("content"):
                reasoning, fitted["content"] = f"{reasoning}\n{fitted['content']}", self._no_text
            fitted[self._reasoning_key] = reasoning
        return fitted

    def _check_it_renders(self) -> None:
        try:
            self.official([{"role": "user", "content": "x"}])
        except TemplateRefusedError as error:
            raise ConfigurationError(
                f"the chat template cannot render even one user message: {error.template_message}"
            ) from error

    def _writes_tools(self) -> bool:
        try:
            text = self.official([{"role": "user", "content": "x"}], tools=[TOOL])
        except TemplateRefusedError:
            return False
        return TOOL["function"]["name"] in text

    def _writes(self, message: TemplateMessage) -> str | None:
        """Return what the template writes for an assistant turn, None when it refuses or drops its probe text."""
        # Some templates write calls only where tools are on offer.
        for tools in (None, [TOOL]) if self.tools else (None,):
            try:
                text = self.official(
                    [{"role": "user", "content": "x"}, self._fitted(message)], tools=tools, generate=False
                )
            except TemplateRefusedError:
                continue
            if PROBE in text:
                return text
        return None

    def _find_call_format(self) -> bool:
        call = {"type": "function", "id": "probe0000", "function": {"name": "probe", "arguments": {"key": PROBE}}}
        for as_text, self._no_text in ((False, ""), (True, ""), (False, None), (True, None)):
            self._arguments_as_text = as_text
            text = self._writes({"role": "assistant", "content": "", "tool_calls": [call]})
            # An object written without a JSON filter shows as Python writes it: not what any model was trained on.
            if text is not None and "{'key'" not in text:
                return True
        self._arguments_as_text, self._no_text = False, ""
        return False

    def _takes(self, call_id: Any) -> bool:
        """Return whether the template takes an id of a call; asked once for each."""
        if not isinstance(call_id, str) or _SHORT.fullmatch(call_id):
            return True
        taken = self._taken.get(call_id)
        if taken is None:
            if len(self._taken) >= _IDS:
                self._taken = {}
            taken = self._taken[call_id] = self._asked(call_id)
        return taken

    def _asked(self, call_id: str) -> bool:
        call: dict[str, Any] = {"name": "probe", "arguments": {"key": PROBE}}
        call = {"type": "function", "id": call_id, "function": call}
        messages: list[TemplateMessage] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": self._no_text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "name": "probe", "content": "x"},
        ]
        if self._arguments_as_text:
            messages[1]["tool_calls"] = [_with_text_arguments(call)]
        try:
            self.official(messages, tools=[TOOL] if self.tools else None)
        except TemplateRefusedError:
            return False
        return True

    def _is_picky(self) -> bool:
        """Return whether the template refuses some ids of calls, and takes those we would put in their place."""
        return self.calls and self._asked("probe0000") and not all(map(self._asked, _USUAL_IDS))

    def _find_reasoning_key(self) -> tuple[str | None, bool]:
        call = {"type": "function", "id": "probe0000", "function": {"name": "probe", "arguments": {}}}
        calls = [call] if self.calls else None
        for key in _REASONING_KEYS:
            self._reasoning_key = key
            message: TemplateMessage = {"role": "assistant", "content": "", "reasoning_content": PROBE}
            if calls:
                message["tool_calls"] = calls
            if self._writes(message) is not None:
                both = self._writes({**message, "content": "x"})
                return key, both is None
        return None, False


def _with_text_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if not isinstance(function["arguments"], str):
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": function}


def _short(call_id: str) -> str:
    """Return an id of nine letters and digits, which every chat template takes: the same one for the same id."""
    return hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()[:9]


def _roles(messages: Sequence[TemplateMessage]) -> str:
    roles = [str(message.get("role")) for message in messages]
    return ", ".join(roles if len(roles) <= 8 else [*roles[:3], "...", *roles[-4:]])
