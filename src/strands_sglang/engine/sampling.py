"""The names of SGLang's sampling parameters, and what was probably meant by another.

The engine answers an unknown name with a plain 500 or ignores it, depending on its version: a run would fail, or sample
in another way than it says.

Invariant: a name that is not known is refused before anything is sent; none is dropped or changed.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from strands_sglang.errors import ConfigurationError

KNOWN = frozenset(
    {
        "beam_width",
        "custom_params",
        "ebnf",
        "frequency_penalty",
        "ignore_eos",
        "json_schema",
        "logit_bias",
        "max_new_tokens",
        "min_new_tokens",
        "min_p",
        "n",
        "no_stop_trim",
        "presence_penalty",
        "regex",
        "repetition_penalty",
        "sampling_seed",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_regex",
        "stop_token_ids",
        "stream_interval",
        "structural_tag",
        "temperature",
        "top_k",
        "top_p",
    }
)
"""What the `SamplingParams` of SGLang 0.5.21 takes from a caller."""

# What other engines call the same.
_ELSEWHERE = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "stop_sequences": "stop",
}


def check_sampling_names(names: Iterable[str], more: Collection[str] = ()) -> None:
    """Refuse sampling parameters that SGLang does not know.

    Args:
        names: What is to be sent.
        more: Names that this server knows besides.

    Raises:
        ConfigurationError: One is unknown; the message says which was probably meant.
    """
    for name in names:
        if name in KNOWN or name in more:
            continue
        close = [_ELSEWHERE[name]] if name in _ELSEWHERE else difflib.get_close_matches(name, sorted(KNOWN), n=1)
        meant = f"; did you mean {close[0]!r}?" if close else "."
        raise ConfigurationError(
            f"SGLang has no sampling parameter {name!r}{meant} Known: {', '.join(sorted(KNOWN))}. For one that only "
            f"your server knows: SGLangClient(sampling_names=[{name!r}]); for logit processors: custom_params"
        )
