"""Settings: valid ones are normalised, invalid ones raise an error that says what would work."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.engine import AbortPolicy
from strands_sglang.errors import ConfigurationError
from strands_sglang.provider.config import RewritePolicy, Settings, SGLangConfig, checked_config, template_arguments
from strands_sglang.tool_parsers import HermesToolParser
from support.families import tokenizer
from support.provider.agents import scripted_model
from support.scripted_engine import ScriptedEngine

READS = "{{ messages }}{{ tools }}{% if enable_thinking %}x{% endif %}{{ reasoning_effort }}"


def test_params_is_an_alias_of_sampling_params() -> None:
    assert checked_config({"params": {"temperature": 0.5}}) == {"sampling_params": {"temperature": 0.5}}
    same = {"top_p": 0.9}
    assert checked_config({"params": same, "sampling_params": same}) == {"sampling_params": same}


def test_policy_names_become_enums() -> None:
    made = checked_config({"on_trim": "keep", "on_template_rewrite": "refuse", "on_abort": "return"})
    assert made["on_trim"] is RewritePolicy.KEEP
    assert made["on_template_rewrite"] is RewritePolicy.REFUSE
    assert made["on_abort"] is AbortPolicy.RETURN


def test_sampling_params_are_copied() -> None:
    given = {"temperature": 1.0}
    made = checked_config({"sampling_params": given})
    given["temperature"] = 0.0
    assert made["sampling_params"] == {"temperature": 1.0}
    assert checked_config({"sampling_params": None}) == {"sampling_params": {}}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"sampling_parms": {}}, "did you mean 'sampling_params'"),
        ({"temperature": 0.5}, "go in sampling_params"),
        ({"enable_thinking": True}, "fixed when the model is created"),
        ({"chat_template_kwargs": {}}, "fixed when the model is created"),
        ({"params": {"n": 1}, "sampling_params": {}}, "are aliases and must not differ"),
        ({"sampling_params": [1]}, "must be a dict"),
        ({"sampling_params": {"max_tokens": 5}}, "'max_tokens' is 'max_new_tokens' in SGLang"),
        ({"sampling_params": {"max_completion_tokens": 5}}, "'max_new_tokens'"),
        ({"sampling_params": {"max_new_tokens": 0}}, "must be an int >= 1"),
        ({"sampling_params": {"max_new_tokens": True}}, "must be an int >= 1"),
        ({"sampling_params": {"max_new_tokens": 1.5}}, "must be an int >= 1"),
        ({"sampling_params": {"n": 4}}, "n must be 1"),
        ({"on_trim": "drop"}, "'keep', 'fork', 'refuse'"),
        ({"on_abort": "raise"}, "'continue', 'return'"),
        ({"on_failed_call": "repair"}, "on_failed_call must be one of 't"),
        ({"arguments_checked_by": "repair"}, "arguments_checked_by must be one of 't"),
        ({"max_episode_tokens": 0}, "must be an int >= 1 or None"),
        ({"max_episode_tokens": 10.5}, "must be an int >= 1 or None"),
        ({"context_window_limit": "8k"}, "must be an int >= 1 or None"),
        ({"deadline": -1}, "must be a number > 0 or None"),
        ({"deadline": True}, "must be a number > 0 or None"),
    ],
)
def test_invalid_settings_raise_with_a_hint(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked_config(config)
    assert words in str(caught.value)


def test_none_means_no_limit() -> None:
    limits = {"max_episode_tokens": None, "context_window_limit": None, "deadline": None}
    assert checked_config(limits) == limits


def test_template_arguments_are_removed_from_the_options() -> None:
    options: dict[str, Any] = {
        "enable_thinking": False,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"other": 1},
        "model_id": "x",
    }
    assert template_arguments(READS, options) == {"enable_thinking": False, "reasoning_effort": "low", "other": 1}
    assert options == {"model_id": "x"}


def test_template_arguments_of_none_are_dropped() -> None:
    assert template_arguments(READS, {"enable_thinking": None, "chat_template_kwargs": None}) == {}


def test_an_argument_passed_twice_with_one_value_is_accepted() -> None:
    options: dict[str, Any] = {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": True}}
    assert template_arguments(READS, options) == {"enable_thinking": True}


def test_unread_template_arguments_are_warned_of_once_per_process(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert template_arguments(READS, {"chat_template_kwargs": {"unread_one": 1}}) == {"unread_one": 1}
    template_arguments(READS, {"chat_template_kwargs": {"unread_two": 1}})
    # A template whose variables are unknown: no warning.
    assert template_arguments("{% generation %}", {"enable_thinking": True}) == {"enable_thinking": True}
    assert [record.args for record in caplog.records] == [("unread_one",), ("unread_two",)]
    assert "argument=<unread_one>" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "passed twice"),
        ({"chat_template_kwargs": {"messages": []}}, "taken from the conversation"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "taken from the conversation"),
        ({"chat_template_kwargs": "enable_thinking"}, "must be a dict"),
    ],
)
def test_invalid_template_arguments_raise(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        template_arguments(READS, options)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"client": None}, "either client=SGLangClient"),
    ({"base_url": "http://localhost:1"}, "and not both"),
    ({"client": "http://localhost:30000"}, "pass an address as base_url"),
    ({"client": None, "base_url": "localhost:30000"}, "must look like http://"),
    ({"tokenizer": "/no/such/folder"}, "folder of a model or tokenizer, got '/no/such/folder', which does not exist"),
    ({"tokenizer": None}, "AutoTokenizer.from_pretrained"),
    ({"tool_parser": "hermse"}, r"unknown tool parser 'hermse'; did you mean 'hermes'\? Known: hermes, "),
    ({"tool_parser": HermesToolParser}, "must be 'auto', a name such as 'hermes', or a ToolParser, got <class"),
    ({"top_k": 5}, "go in sampling_params"),
]


@pytest.mark.parametrize(("wrong", "words"), BAD)
def test_invalid_model_arguments_raise(wrong: dict[str, Any], words: str) -> None:
    known = tokenizer("qwen2.5")
    with pytest.raises(ConfigurationError, match=words):
        SGLangModel(**{"tokenizer": known, "client": ScriptedEngine(known, []), **wrong})


def test_a_model_with_a_base_url_creates_its_client() -> None:
    model = SGLangModel(tokenizer=tokenizer("qwen2.5"), base_url="http://localhost:30000/prefix/")
    assert isinstance(model.client, SGLangClient)
    assert model.client.base_url == "http://localhost:30000/prefix"


def test_published_ways_to_create_a_model() -> None:
    model, engine = scripted_model(
        [],
        model_id="Qwen3-8B",
        enable_thinking=True,
        tool_parser=HermesToolParser(),
        sampling_params={"max_new_tokens": 2048, "temperature": 1.0},
    )
    assert model.client is engine
    assert model.get_config() == {
        "model_id": "Qwen3-8B",
        "sampling_params": {"max_new_tokens": 2048, "temperature": 1.0},
    }


def test_update_config_changes_all_settings_or_none() -> None:
    model, _ = scripted_model([], "qwen2.5", model_id="a")
    with pytest.raises(ConfigurationError):
        model.update_config(model_id="b", on_trim="never")
    assert model.get_config() == {"model_id": "a"}
    model.update_config(params={"temperature": 0.0}, max_episode_tokens=100)
    assert model.get_config() == {"model_id": "a", "sampling_params": {"temperature": 0.0}, "max_episode_tokens": 100}


def test_settings_are_resolved_with_every_default() -> None:
    given = checked_config({"params": {"temperature": 0.5}, "on_trim": "keep", "alarm_after": None})
    settings = Settings.of(given)
    assert (settings.temperature, settings.on_trim, settings.alarm_after) == (0.5, RewritePolicy.KEEP, None)
    assert settings == Settings({"temperature": 0.5}, on_trim=RewritePolicy.KEEP, alarm_after=None)
    unread = {"params", "return_routed_experts", "model_id", "return_logprob"}  # aliases, and what no turn reads
    assert {field.name for field in fields(Settings)} == set(get_type_hints(SGLangConfig)) - unread


def test_the_configuration_cannot_be_changed_in_place() -> None:
    model, _ = scripted_model([], "qwen2.5", model_id="a")
    with pytest.raises(TypeError):
        model.config["model_id"] = "b"  # type: ignore[index]
    model.get_config()["model_id"] = "b"
    assert model.config == {"model_id": "a"}
