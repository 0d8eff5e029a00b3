"""Make a small vision-language checkpoint that looks at pictures: `tiny-qwen2.5-vl`, `tiny-qwen3-vl`.

Qwen's real vocabulary, image processors and model classes with a few layers, trained for two minutes on one task: a
user asks for the colour at a place, the model calls the tool `look`, which returns a picture, and says its colour. A
user may also show the picture at once. `models.py` calls it with the engine's own Python.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from PIL import Image

COLOURS = {
    "red": (220, 30, 30),
    "green": (20, 180, 40),
    "blue": (40, 60, 220),
    "yellow": (240, 220, 30),
    "white": (250, 250, 250),
    "black": (10, 10, 10),
}
PLACES = 10
STEPS, BATCH, RATE = 240, 8, 3e-3
TOOLS = [{"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}]
SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
]
"""Special tokens, in the order of their ids."""
ADDED = ["<tool_call>", "</tool_call>"]
"""Further tokens, which are not special: a turn does not end with them."""
CHAT_TEMPLATE = """\
{%- macro show(content) -%}
{%- if content is string -%}{{ content }}{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}<|im_start|>system
Tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}<|im_start|>assistant
{{ show(message.content) }}
{%- for call in message.tool_calls or [] -%}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor -%}<|im_end|>
{% elif message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}<|im_start|>user
{% endif -%}<tool_response>
{{ show(message.content) }}
</tool_response>
{%- if loop.last or loop.nextitem.role != 'tool' -%}<|im_end|>
{% endif -%}
{%- else -%}<|im_start|>{{ message.role }}
{{ show(message.content) }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
_TEXT = {
    "vocab_size": 151936,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}
_TOWER = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
# At most 256 positions an image, so that images stay small on a CPU.
_PIXELS = {"size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 256}, "temporal_patch_size": 2, "merge_size": 2}


def make(kind: str, tokenizer: tf.PreTrainedTokenizerFast, folder: Path) -> None:
    """Make a checkpoint.

    Args:
        kind: "tiny-qwen2.5-vl" or "tiny-qwen3-vl".
        tokenizer: Qwen's tokenizer, with the tokens of `SPECIAL`; those of `ADDED` are added.
        folder: Where it goes.
    """
    tokenizer.add_tokens(ADDED)
    tokenizer.chat_template = CHAT_TEMPLATE
    torch.manual_seed(0)
    model, processor = _untrained(kind, tokenizer)
    train(model, processor)
    model.to(torch.float32).save_pretrained(folder)
    processor.save_pretrained(folder)


def picture(colour: str, rng: random.Random) -> Image.Image:
    """Return a picture of one colour, of any size and slightly uneven."""
    width, height = rng.randrange(56, 128), rng.randrange(56, 128)
    red, green, blue = (min(255, max(0, part + rng.randrange(-10, 11))) for part in COLOURS[colour])
    return Image.new("RGB", (width, height), (red, green, blue))


def conversation(rng: random.Random) -> tuple[list[dict[str, Any]], list[Image.Image]]:
    """Return the messages of one or two questions, and their pictures."""
    messages: list[dict[str, Any]] = []
    images = []
    for _ in range(rng.choice((1, 1, 2))):
        colour, place = rng.choice(list(COLOURS)), rng.randrange(PLACES)
        images.append(picture(colour, rng))
        if rng.random() < 0.5:
            shown = [{"type": "image"}, {"type": "text", "text": "Which colour is it?"}]
            messages.append({"role": "user", "content": shown})
        else:
            call = {"type": "function", "function": {"name": "look", "arguments": {"place": place}}}
            messages.append({"role": "user", "content": f"Which colour is at {place}?"})
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "content": [{"type": "image"}]})
        messages.append({"role": "assistant", "content": f"It is {colour}."})
    return messages, images


def train(model: torch.nn.Module, processor: Any) -> None:
    """Train a model to call the tool and to name the colour."""
    rng, tokenizer = random.Random(0), processor.tokenizer
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for step in range(STEPS):
        batch = [conversation(rng) for _ in range(BATCH)]
        texts = [tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False) for messages, _ in batch]
        images = [image for _, shown in batch for image in shown]
        inputs = processor(text=texts, images=images, padding=True, padding_side="right", return_tensors="pt")
        ids = inputs["input_ids"]
        written = [(row, at) for row in range(BATCH) for at in _replies(tokenizer, ids[row].tolist())]
        rows, places = torch.tensor(written).T
        hidden = model.model(**inputs).last_hidden_state[rows, places - 1]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), ids[rows, places])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == STEPS - 1:
            print(json.dumps({"step": step, "loss": round(loss.item(), 4)}), flush=True)


def _replies(tokenizer: tf.PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    """Return the places of the tokens that the assistant writes, with the tokens that end its turns."""
    start, end = tokenizer.encode("<|im_start|>assistant\n"), tokenizer.convert_tokens_to_ids("<|im_end|>")
    places, at = [], 0
    while at <= len(ids) - len(start):
        if ids[at : at + len(start)] == start:
            at += len(start)
            while ids[at] != end:
                places.append(at)
                at += 1
            places.append(at)
        at += 1
    return places


def _untrained(kind: str, tokenizer: tf.PreTrainedTokenizerFast) -> tuple[torch.nn.Module, Any]:
    token = tokenizer.convert_tokens_to_ids
    vision = {
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
    }
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    rope = {"rope_type": "default", "rope_theta": 1e6}
    if kind == "tiny-qwen2.5-vl":
        text = {**_TEXT, **ends, "rope_parameters": {**rope, "mrope_section": [2, 3, 3]}, "tie_word_embeddings": False}
        tower = {**_TOWER, "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1], "hidden_act": "silu"}
        config = tf.Qwen2_5_VLConfig(text_config=text, vision_config=tower, **vision, **ends, tie_word_embeddings=False)
        images = tf.Qwen2VLImageProcessor(patch_size=14, **_PIXELS)
        videos = tf.Qwen2VLVideoProcessor(patch_size=14, temporal_patch_size=2, merge_size=2)
        model, processor = tf.Qwen2_5_VLForConditionalGeneration(config), tf.Qwen2_5_VLProcessor
    else:
        sections = {"mrope_section": [4, 6, 6], "mrope_interleaved": True}  # sums to head_dim / 2
        text = {**_TEXT, **ends, "head_dim": 32, "rope_parameters": {**rope, **sections}}
        tower = {**_TOWER, "patch_size": 16, "num_position_embeddings": 256, "deepstack_visual_indexes": [0]}
        config = tf.Qwen3VLConfig(text_config=text, vision_config=tower, **vision, tie_word_embeddings=False)
        half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        images = tf.Qwen2VLImageProcessor(patch_size=16, **_PIXELS, **half)
        videos = tf.Qwen3VLVideoProcessor(patch_size=16, temporal_patch_size=2, merge_size=2)
        model, processor = tf.Qwen3VLForConditionalGeneration(config), tf.Qwen3VLProcessor
    return model, processor(
        image_processor=images, tokenizer=tokenizer, video_processor=videos, chat_template=CHAT_TEMPLATE
    )
