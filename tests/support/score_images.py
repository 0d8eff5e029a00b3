"""Score trajectories with images with transformers, in the engine's environment: ids, pixels, logprobs.

    ENGINE/bin/python tests/support/score_images.py MODEL rows.json

Prints one line of JSON: the tokens compared, the largest difference, and the same with the images in another order.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor


def logprobs_of(model: Any, processor: Any, row: dict[str, Any], files: list[str]) -> torch.Tensor:
    ids = torch.tensor([row["token_ids"]])
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if files:
        pictures = [Image.open(path).convert("RGB") for path in files]
        inputs.update(processor.image_processor(images=pictures, return_tensors="pt"))
        inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).long()
    with torch.no_grad():
        logits = model(**inputs).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1)


def main() -> None:
    torch.set_num_threads(1)
    folder, rows = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    processor: Any = AutoProcessor.from_pretrained(folder)  # type: ignore[no-untyped-call]
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.eval()
    tokens, largest, swapped = 0, 0.0, 0.0
    for row in rows:
        files = [row["files"][image[2]] for image in row["images"]]
        trained = torch.tensor(row["loss_mask"])[1:].bool()
        ours = torch.tensor(row["logprobs"], dtype=torch.float64)[1:][trained]
        theirs = logprobs_of(model, processor, row, files)[trained].double()
        largest = max(largest, float((ours - theirs).abs().max()))
        tokens += int(trained.sum())
        blank = [str(Path(path).with_name(f"blank-{number}.png")) for number, path in enumerate(files)]
        for path, other in zip(files, blank, strict=True):  # of the same size, so that positions stay
            Image.new("RGB", Image.open(path).size, (128, 0, 128)).save(other)
        others = logprobs_of(model, processor, row, blank)[trained].double()
        swapped = max(swapped, float((ours - others).abs().max()))
    print(json.dumps({"tokens": tokens, "largest": largest, "swapped": swapped}))


if __name__ == "__main__":
    main()
