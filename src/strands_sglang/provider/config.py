"""The settings of `SGLangModel`, the policies that a user can choose, and the validation of both.

A user passes any part of `SGLangConfig`. `checked_config` validates it, and `Settings.of` resolves it once, with every
default, into the object that turns read.

Invariant: an unknown or impossible setting raises an error that says what would work. No setting is ignored silently,
and no default is stated anywhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import lru_cache
from typing import Any, TypedDict, get_type_hints

from jinja2 import Environment, TemplateSyntaxError, meta
from strands.models.model import BaseModelConfig

from strands_sglang._checks import check_int, check_number, chosen, did_you_mean
from strands_sglang.engine import AbortPolicy
from strands_sglang.engine.adapters import check_name
from strands_sglang.errors import ConfigurationError
from strands_sglang.tool_parsers import ToolParser


class RewritePolicy(str, Enum):
    """What to do when the history of a conversation no longer equals the tokens of its branch."""

    KEEP = "keep"
    """Append to the branch unchanged: one branch, all sampled tokens in it, and the prefix cache stays valid."""
    FORK = "fork"
    """Render the whole conversation as a new branch. Tokens sampled earlier are context there and not trained again."""
    REFUSE = "refuse"


class FailedCallPolicy(str, Enum):
    """What to do with a malformed tool call. It is not run in either case."""

    TELL = "tell"
    """Return the parse error to the model as the result of the call, so that it can write the call again."""
    END = "end"
    """The same, but the agent stops: well-formed calls of the turn are run, and the model is not called again."""


class HiddenToolsPolicy(str, Enum):
    """What to do if an agent has tools and the chat template does not write them into its first prompt."""

    REFUSE = "refuse"
    ALLOW = "allow"
    """The model is sampled all the same: the system prompt describes the tools, or it was trained for exactly these."""


class ArgumentCheck(str, Enum):
    """What validates the arguments of a well-formed call."""

    TOOL = "tool"
    SCHEMA = "schema"
    """The tool's JSON schema: a call that violates it is a failed call and is not run."""


logger = logging.getLogger(__name__)

DEFAULT_MAX_NEW_TOKENS = 4096
"""Default for `max_new_tokens`. The engine's own default, 128, truncates most turns."""
MOST_KEPT = 4096
_RESERVED = {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token"}


class SGLangConfig(BaseModelConfig, total=False):
    """Settings that can be changed later with `update_config`.

    Example:
        config: SGLangConfig = {"sampling_params": {"temperature": 0.7}, "max_episode_tokens": 16_384}
        model = SGLangModel(tokenizer=tokenizer, client=client, **config)
        model.update_config(streaming=True)
    """

    model_id: str
    """A name for logs and traces. It is not sent to the engine, which serves one model."""
    sampling_params: dict[str, Any]
    """SGLang sampling parameters of every turn, such as `max_new_tokens`, `temperature` and `stop_token_ids`."""
    params: dict[str, Any]
    """Alias of `sampling_params`, for compatibility with other Strands providers."""
    max_episode_tokens: int | None
    """Tokens that one episode may sample in total; None: no limit."""
    max_response_tokens: int | None
    """Tokens of one branch after its first prompt, including tool results; None: no limit."""
    on_template_rewrite: RewritePolicy | str
    """What to do when the template would rewrite history; many templates drop reasoning at a user message."""
    on_trim: RewritePolicy | str
    """What to do when the oldest messages were dropped (a sliding window)."""
    on_reminder: RewritePolicy | str
    """What to do when text that the framework added for one call only (a reminder, the state of the environment) is no
    longer in the conversation."""
    on_failed_call: FailedCallPolicy | str
    on_hidden_tools: HiddenToolsPolicy | str
    """Tools that the chat template does not write into the first prompt: an error ("refuse", the default) or intended
    ("allow")."""
    arguments_checked_by: ArgumentCheck | str
    alarm_after: int | None
    """Turns with unparsed tool calls in another format after which a warning names the parser that would parse them;
    None: never."""
    on_abort: AbortPolicy
    """What to do with a turn that the engine aborted: continue it, or raise `TurnAbortedError`."""
    streaming: bool
    """Whether text is streamed while it is sampled, for serving. The recorded tokens are the same."""
    kept_sets: bool | str
    """Whether kept sets (the tokens that were left to choose from) are requested and recorded. "auto" (the default): if
    `top_p`, `top_k` or `min_p` leave out tokens."""
    routed_experts: bool
    """Whether the experts of every token are requested and recorded (mixture-of-experts models)."""
    return_routed_experts: bool
    """Alias of `routed_experts`, SGLang's name for it."""
    return_logprob: bool
    """Accepted for compatibility, without effect: logprobs are always requested, since training needs them."""
    audit_share: float
    """Share of the episodes, 0 to 1, whose conversations are compared in a thread with one rendering of the whole
    conversation. The first episodes of a process are always compared, unless the share is 0."""
    deadline: float | None
    """Seconds that one turn may take, including waiting and retries; None: the client's own deadline."""
    adapter: str | None
    """LoRA adapter that samples, by the name it was loaded under on every worker; None: the base weights. A `Task` can
    name another one."""
    extra: dict[str, Any] | None
    """Further fields of the request to the engine; None: none."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a turn: those of `SGLangConfig`, where they are described, with every default."""

    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    max_episode_tokens: int | None = None
    max_response_tokens: int | None = None
    context_window_limit: int | None = None
    on_template_rewrite: RewritePolicy = RewritePolicy.KEEP
    on_trim: RewritePolicy = RewritePolicy.FORK
    on_reminder: RewritePolicy = RewritePolicy.KEEP
    on_failed_call: FailedCallPolicy = FailedCallPolicy.TELL
    on_hidden_tools: HiddenToolsPolicy = HiddenToolsPolicy.REFUSE
    arguments_checked_by: ArgumentCheck = ArgumentCheck.TOOL
    alarm_after: int | None = 10
    on_abort: AbortPolicy = AbortPolicy.CONTINUE
    streaming: bool = False
    kept_sets: bool | str = "auto"
    routed_experts: bool = False
    audit_share: float = 0.02
    deadline: float | None = None
    adapter: str | None = None
    extra: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Settings:
        """Return the settings of a validated configuration (`checked_config`)."""
        return cls(**{one.name: config[one.name] for one in fields(cls) if one.name in config})

    @property
    def temperature(self) -> float | None:
        """The temperature of sampling, 1.0 if none is set; None if it is not a number."""
        value = self.sampling_params.get("temperature", 1.0)
        return float(value) if isinstance(value, (int, float)) else None


class TemplateOptions(TypedDict, total=False):
    """Settings that are fixed when the model is created, because the soundness proof depends on them."""

    enable_thinking: bool
    chat_template_kwargs: dict[str, Any]


class ModelOptions(SGLangConfig, TemplateOptions, total=False):
    """All arguments of `SGLangModel` except tokenizer and client."""

    tool_parser: ToolParser | str | None
    """Parses tool calls; "auto" or None: the parser that reads the calls that the chat template writes."""
    chat_template: str | None
    """Text of a template to use instead of the tokenizer's own; None: the tokenizer's."""
    image_processor: Any
    """The model's image processor, its settings, or where to load them from; None: where the tokenizer comes from."""


_KNOWN = set(get_type_hints(SGLangConfig))
_FIXED = set(get_type_hints(TemplateOptions))


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return validated settings, with aliases resolved and policies as enums."""
    checked = dict(config)
    for name in checked:
        if name in _FIXED:
            raise ConfigurationError(f"{name} is fixed when the model is created: create another SGLangModel with it")
        if name not in _KNOWN:
            raise ConfigurationError(
                f"unknown option {name!r}{did_you_mean(name, _KNOWN)} Known: {', '.join(sorted(_KNOWN))}. Sampling "
                "parameters such as temperature go in sampling_params, arguments of the chat template in "
                "chat_template_kwargs."
            )
    for other, name in (("params", "sampling_params"), ("return_routed_experts", "routed_experts")):
        if other in checked:
            if name in checked and checked[name] != checked[other]:
                raise ConfigurationError(f"{other} and {name} are aliases and must not differ: pass only one of them")
            checked[name] = checked.pop(other)
    if "sampling_params" in checked:
        checked["sampling_params"] = _checked_sampling(checked["sampling_params"])
    for name, kind in (
        ("on_template_rewrite", RewritePolicy),
        ("on_trim", RewritePolicy),
        ("on_reminder", RewritePolicy),
        ("on_failed_call", FailedCallPolicy),
        ("on_hidden_tools", HiddenToolsPolicy),
        ("arguments_checked_by", ArgumentCheck),
        ("on_abort", AbortPolicy),
    ):
        if name in checked:
            checked[name] = chosen(name, checked[name], kind)
    if checked.get("adapter") is not None:
        check_name(checked["adapter"])
    if checked.get("kept_sets", "auto") not in (True, False, "auto"):
        raise ConfigurationError(f"kept_sets must be True, False or 'auto', got {checked['kept_sets']!r}")
    for name in ("max_episode_tokens", "max_response_tokens", "context_window_limit", "alarm_after"):
        check_int(name, checked.get(name))
    check_number("deadline", checked.get("deadline"))
    share = checked.get("audit_share", 0)
    check_number("audit_share", share, above=None, minimum=0, maximum=1, optional=False)
    for name, expected in (
        ("streaming", bool),
        ("routed_experts", bool),
        ("return_logprob", bool),
        ("extra", Mapping),
    ):
        if checked.get(name) is not None and not isinstance(checked[name], expected):
            raise ConfigurationError(f"{name} must be a {expected.__name__.lower()}, got {checked[name]!r}")
    return checked


def _checked_sampling(params: Any) -> dict[str, Any]:
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise ConfigurationError(f"sampling_params must be a dict of SGLang's sampling parameters, got {params!r}")
    checked = dict(params)
    for other, ours in (("max_tokens", "max_new_tokens"), ("max_completion_tokens", "max_new_tokens")):
        if other in checked:
            raise ConfigurationError(f"{other!r} is {ours!r} in SGLang: pass sampling_params={{{ours!r}: ...}}")
    check_int("max_new_tokens", checked.get("max_new_tokens"))
    if checked.get("n", 1) != 1:
        raise ConfigurationError("sampling_params n must be 1, since a turn is one sample: run more episodes instead")
    return checked


def template_arguments(source: str, options: dict[str, Any]) -> dict[str, Any]:
    """Remove the arguments of the chat template from the options and return them."""
    given = options.pop("chat_template_kwargs", None) or {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"chat_template_kwargs must be a dict of the template's arguments, got {given!r}")
    arguments = dict(given)
    read = _variables(source)
    for name in [name for name in options if name == "enable_thinking" or (name in read and name not in _KNOWN)]:
        if name in arguments and arguments[name] != options[name]:
            raise ConfigurationError(f"{name} is passed twice, also in chat_template_kwargs, with different values")
        value = options.pop(name)
        if value is not None:
            arguments[name] = value
    for name in arguments:
        if name in _RESERVED:
            raise ConfigurationError(f"template argument {name} cannot be set: it is taken from the conversation")
        if read and name not in read:
            _warn_unread(source, name)
    return arguments


@lru_cache(maxsize=256)
def _warn_unread(source: str, name: str) -> None:
    """Warn once per process: many programs create a model for every episode."""
    logger.warning("argument=<%s> | the chat template does not read this argument", name)


@lru_cache(maxsize=64)
def _variables(source: str) -> set[str]:
    try:
        return meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source))
    except TemplateSyntaxError:
        # The template may use tags of transformers' environment ({% generation %}): its variables are unknown then.
        return set()


def kept_top_k(sampling: Mapping[str, Any]) -> int:
    """Return the `top_k` of a request for kept sets: as given, at most what SGLang returns sets for."""
    top_k = sampling.get("top_k")
    return top_k if top_k is not None and 0 < top_k <= MOST_KEPT else MOST_KEPT
