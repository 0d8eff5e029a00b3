"""The settings of `SGLangModel`: what may be given, and what it means.

Invariant: an unknown or impossible setting is an error that says what would work. None is dropped silently.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypedDict, get_type_hints

from jinja2 import Environment, TemplateSyntaxError, meta
from strands.models.model import BaseModelConfig

from strands_sglang.engine import AbortPolicy
from strands_sglang.errors import ConfigurationError
from strands_sglang.provider.policy import ArgumentCheck, FailedCallPolicy, RewritePolicy
from strands_sglang.tool_parsers import ToolParser

logger = logging.getLogger(__name__)

# What every template is given anyway; giving one as an option would be a mistake.
_GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token"}


class SGLangConfig(BaseModelConfig, total=False):
    """Settings that can be changed later with `update_config`."""

    model_id: str
    """A name for logs and traces; the engine serves one model and is not told."""
    sampling_params: dict[str, Any]
    """SGLang sampling parameters of every turn, such as `max_new_tokens`, `temperature`, `stop_token_ids`."""
    params: dict[str, Any]
    """Another name for `sampling_params`, as other Strands providers call it."""
    max_episode_tokens: int | None
    """Tokens that one episode may sample in all; None: no limit."""
    max_response_tokens: int | None
    """Tokens of one branch behind its first prompt, tool results in between included; None: no limit."""
    on_template_rewrite: RewritePolicy | str
    """What to do when the template would rewrite history, as many do with reasoning at a user turn."""
    on_trim: RewritePolicy | str
    """What to do when the oldest messages were dropped (a sliding window)."""
    on_reminder: RewritePolicy | str
    """What to do when text that the framework showed for one call only (a reminder, the state of the environment) is
    gone from the conversation."""
    on_failed_call: FailedCallPolicy | str
    """What to do with a malformed tool call: tell the model, or stop the agent there."""
    arguments_checked_by: ArgumentCheck | str
    """Who judges the arguments of a well-formed call: the tool itself, or its JSON schema before it is run."""
    alarm_after: int | None
    """Turns that look like tool calls in another format, none of them parsed, after which a warning names the parser
    that would have; None: never."""
    on_abort: AbortPolicy
    """What to do with a turn the engine cut: go on with it, or end with `TurnAbortedError`."""
    streaming: bool
    """Whether text is handed on as it is sampled, for serving. The tokens recorded are the same."""
    routed_experts: bool
    """Whether the experts of every token are asked for and kept (mixture-of-experts models)."""
    return_routed_experts: bool
    """Another name for `routed_experts`, as SGLang calls it."""
    return_logprob: bool
    """Logprobs are asked for and kept whatever it says: a turn without them could not be trained."""
    audit_share: float
    """Share of the episodes, 0 to 1, whose conversations are compared with one whole rendering, in a thread; the first
    ones of a process always are, unless it is 0."""
    deadline: float | None
    """Seconds one turn may take, waiting and retries included; None: the client's own."""
    extra: dict[str, Any] | None
    """Further fields of the engine's request, such as `lora_path`."""


class TemplateOptions(TypedDict, total=False):
    """Settings that are fixed when the model is made, because what is proved depends on them."""

    enable_thinking: bool
    """Passed to the template."""
    chat_template_kwargs: dict[str, Any]
    """Any further arguments of the template."""


class ModelOptions(SGLangConfig, TemplateOptions, total=False):
    """Everything that `SGLangModel` takes beside tokenizer and client."""

    tool_parser: ToolParser | str | None
    """Takes tool calls out of what is sampled; "auto": the one that reads what the chat template writes."""
    chat_template: str | None
    """A template to use instead of the tokenizer's own, as text."""


_KNOWN = set(get_type_hints(SGLangConfig))
_FIXED = set(get_type_hints(TemplateOptions))


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in one form.

    Raises:
        ConfigurationError: One is unknown or cannot work.
    """
    checked = dict(config)
    for name in checked:
        if name in _FIXED:
            raise ConfigurationError(f"{name} is fixed when the model is made: make another SGLangModel with it")
        if name not in _KNOWN:
            raise ConfigurationError(f"unknown option {name!r}{_did_you_mean(name, _KNOWN)}")
    for other, name in (("params", "sampling_params"), ("return_routed_experts", "routed_experts")):
        if other in checked:
            if name in checked and checked[name] != checked[other]:
                raise ConfigurationError(f"{other} and {name} are two names for one thing; give one of them")
            checked[name] = checked.pop(other)
    if "sampling_params" in checked:
        checked["sampling_params"] = _checked_sampling(checked["sampling_params"])
    for name, kind in (
        ("on_template_rewrite", RewritePolicy),
        ("on_trim", RewritePolicy),
        ("on_reminder", RewritePolicy),
        ("on_failed_call", FailedCallPolicy),
        ("arguments_checked_by", ArgumentCheck),
        ("on_abort", AbortPolicy),
    ):
        if name in checked:
            checked[name] = _chosen(name, checked[name], kind)
    for name, number, kinds in (
        ("max_episode_tokens", "whole number", (int,)),
        ("max_response_tokens", "whole number", (int,)),
        ("context_window_limit", "whole number", (int,)),
        ("alarm_after", "whole number", (int,)),
        ("deadline", "number", (int, float)),
    ):
        value = checked.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or value <= 0):
            raise ConfigurationError(f"{name} must be a {number} above 0 or None, not {value!r}")
    share = checked.get("audit_share", 0)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise ConfigurationError(f"audit_share must be a number from 0 to 1, not {share!r}")
    for name, what in (
        ("streaming", bool),
        ("routed_experts", bool),
        ("return_logprob", bool),
        ("extra", Mapping),
    ):
        if checked.get(name) is not None and not isinstance(checked[name], what):
            raise ConfigurationError(f"{name} must be a {what.__name__.lower()}, not {checked[name]!r}")
    return checked


def _checked_sampling(params: Any) -> dict[str, Any]:
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise ConfigurationError(f"sampling_params must be a dict of SGLang's sampling parameters, not {params!r}")
    checked = dict(params)
    for other, ours in (("max_tokens", "max_new_tokens"), ("max_completion_tokens", "max_new_tokens")):
        if other in checked:
            raise ConfigurationError(f"SGLang calls {other!r} {ours!r}: sampling_params={{{ours!r}: ...}}")
    budget = checked.get("max_new_tokens")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 1):
        raise ConfigurationError(f"max_new_tokens must be a whole number above 0, not {budget!r}")
    if checked.get("n", 1) != 1:
        raise ConfigurationError("sampling_params n must be 1: a turn of an agent is one sample; run more episodes")
    return checked


def _chosen(name: str, value: Any, kind: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ConfigurationError(
            f"{name} must be one of {', '.join(repr(item.value) for item in kind)}, not {value!r}"
        ) from None


def template_arguments(source: str, options: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments of the template out of the options.

    Args:
        source: The chat template.
        options: What was given; arguments of the template are removed from it.

    Returns:
        The template's arguments: `chat_template_kwargs`, `enable_thinking`, and any option that the template reads.

    Raises:
        ConfigurationError: An argument is given twice.
    """
    given = options.pop("chat_template_kwargs", None) or {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"chat_template_kwargs must be a dict of the template's arguments, not {given!r}")
    arguments = dict(given)
    read = _variables(source)
    for name in [name for name in options if name == "enable_thinking" or (name in read and name not in _KNOWN)]:
        if name in arguments and arguments[name] != options[name]:
            raise ConfigurationError(f"{name} is given twice, also in chat_template_kwargs")
        value = options.pop(name)
        if value is not None:
            arguments[name] = value
    for name in arguments:
        if name in _GIVEN:
            raise ConfigurationError(f"the template's {name} is not an option: it is what the conversation says")
        if read and name not in read:
            _warn_unread(source, name)
    return arguments


@lru_cache(maxsize=256)
def _warn_unread(source: str, name: str) -> None:
    """Warn once per process: many programs make a model for every episode."""
    logger.warning("argument=<%s> | the chat template does not read this argument", name)


@lru_cache(maxsize=64)
def _variables(source: str) -> set[str]:
    try:
        return meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source))
    except TemplateSyntaxError:
        # Templates may use tags of transformers' own environment ({% generation %}): then nothing is said about them.
        return set()


def _did_you_mean(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return (
        f"{hint} Known: {', '.join(sorted(known))}. Sampling parameters such as temperature go in sampling_params, "
        "arguments of the chat template in chat_template_kwargs."
    )
