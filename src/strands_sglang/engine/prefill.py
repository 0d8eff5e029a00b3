"""Logprobs of given tokens, without sampling: `prefill`, the work of `SGLangClient.score`.

One request computes the logprobs of a whole trajectory: its ids are the prompt.

Invariants: every returned row is of the id that was asked for, which is compared with the engine's answer. Logprobs of
a prompt are at temperature 1, whatever temperature is sent.
"""

from __future__ import annotations

import base64
import math
import re
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang._async import in_thread
from strands_sglang.engine.control import EngineControl
from strands_sglang.engine.protocol import Prefill, PromptImage, TokenIds
from strands_sglang.engine.request import image_url
from strands_sglang.errors import (
    ConfigurationError,
    EngineError,
    MalformedResponseError,
    RequestRejectedError,
)
from strands_sglang.tokens.arrays import LARGEST_LOGPROB
from strands_sglang.tokens.images import compact

_MOST_VALUES = 1 << 21
"""Largest number of top logprobs in one answer (16 MB); longer trajectories take several requests."""
_IN_A_THREAD = 1 << 15
_RETRIES = 5
_NO_TOKEN = (1 << 30) - 1
"""An id that no vocabulary has."""
_IMPOSSIBLE = -1e30
"""In place of minus infinity, the logprob of an id with probability 0, which JSON cannot hold."""
_RANGE = re.compile(r"\[0, (\d+)\]")


async def prefill(
    control: EngineControl,
    ids: TokenIds,
    start: int,
    *,
    images: Sequence[PromptImage] = (),
    top: int = 0,
    adapter: str | None = None,
) -> Prefill:
    """Return the engine's logprobs of `ids[start:]`.

    `ScoringEngine.score` explains the arguments. `top` must not be larger than the vocabulary (`vocabulary_size`): the
    engine does not check it, and ends.
    """
    whole: list[int] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if not 1 <= start < len(whole) or top < 0:
        raise ConfigurationError(f"start must be from 1 to {len(whole) - 1} and top at least 0, got {start} and {top}")
    rows = max(_MOST_VALUES // top, 1) if top else len(whole)
    parts = []
    for first in range(start, len(whole), rows):
        parts.append(await _request(control, whole[: first + rows], first, images, top, adapter))
    if len(parts) == 1:
        return parts[0]
    return Prefill(
        np.concatenate([part.logprobs for part in parts]),
        np.concatenate([part.top_ids for part in parts]),
        np.concatenate([part.top_logprobs for part in parts]),
    )


async def vocabulary_size(control: EngineControl) -> int | None:
    """Return the number of ids of the engine's model, padding included; None if it cannot be learnt.

    No endpoint reports it. But the engine refuses a bias for an id outside the vocabulary, and names the range.
    """
    body = {
        "input_ids": [0],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "logit_bias": {str(_NO_TOKEN): 0.0}},
    }
    try:
        await control.answer_of_worker(body)
    except RequestRejectedError as error:
        found = _RANGE.search(str(error))
        return None if found is None else int(found[1]) + 1
    except EngineError:
        return None
    return None


async def _request(
    control: EngineControl, ids: list[int], start: int, images: Sequence[PromptImage], top: int, adapter: str | None
) -> Prefill:
    images = [image for image in images if image.start < len(ids)]
    body: dict[str, Any] = {
        "input_ids": compact(array("i", ids), images).tolist() if images else ids,
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": start - 1,
    }
    if images:
        body |= {"image_data": [image_url(image.png) for image in images], "return_prompt_token_ids": True}
    if adapter is not None:
        body["lora_path"] = adapter
    if top:
        # A router that drops the last two fields makes the answer longer, not wrong: lists in place of base64.
        body |= {
            "top_logprobs_num": top,
            "return_flat_raw_top_logprobs": True,
            "return_flat_raw_top_logprobs_b64": True,
        }
    answer = await control.answer_to(body, retries=_RETRIES)
    decode = partial(_decoded, ids=ids, start=start, images=images, top=top)
    return await in_thread(decode, answer) if (len(ids) - start) * (top + 1) > _IN_A_THREAD else decode(answer)


def _decoded(answer: Any, ids: list[int], start: int, images: Sequence[PromptImage], top: int) -> Prefill:
    if images and (not isinstance(answer, dict) or answer.get("prompt_token_ids") != ids):
        raise MalformedResponseError("the engine computed other ids than those of the request, or does not report them")
    try:
        meta = answer["meta_info"]
        entries = meta["input_token_logprobs"][1:]
        for image in images:  # the engine reports token 0 for its positions
            for at in range(max(image.start, start), image.start + image.positions):
                entries[at - start] = [0.0, ids[at]]
        tokens, logprobs = [entry[1] for entry in entries], _numbers([entry[0] for entry in entries])
        top_ids, top_logprobs = _top(meta, len(ids) - start, top)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise MalformedResponseError(f"the engine returned no logprobs of the prompt: {error!r:.300}") from error
    if tokens != ids[start:]:
        raise MalformedResponseError("the engine returned logprobs of other tokens than those in the request")
    return Prefill(logprobs, top_ids, top_logprobs)


def _top(meta: dict[str, Any], rows: int, top: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    if not top:
        return np.empty((rows, 0), np.int32), np.empty((rows, 0))
    if "input_top_logprobs_idx_flat_b64" in meta:
        ids = np.frombuffer(base64.b64decode(meta["input_top_logprobs_idx_flat_b64"]), "<i4")
        values = np.frombuffer(base64.b64decode(meta["input_top_logprobs_val_flat_b64"]), "<f4").astype(np.float64)
    else:
        nested = meta["input_top_logprobs"][1:]
        ids = np.array([entry[1] for row in nested for entry in row], np.int32)
        values = np.array([entry[0] for row in nested for entry in row], np.float64)
    if len(ids) != rows * top or len(values) != rows * top:
        raise ValueError(f"{rows} rows of {top} likeliest ids were requested, got {len(ids)} ids")
    if len(ids) and (ids.min() < 0 or np.isnan(values).any() or values.max() > LARGEST_LOGPROB):
        raise ValueError("a likeliest id or its logprob is not valid")
    values = np.maximum(values, _IMPOSSIBLE)
    return ids.astype(np.int32).reshape(rows, top), values.reshape(rows, top)


def _numbers(values: list[Any]) -> npt.NDArray[np.float64]:
    """Return logprobs as an array; JSON has `null` for NaN."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, float | int) or not -math.inf < value <= LARGEST_LOGPROB:
            raise ValueError(f"{value!r:.50} is not a logprob")
    return np.array(values, np.float64)
