"""The flags of a shell script that starts slime, and whether slime, Megatron-LM and SGLang know them."""

from __future__ import annotations

import argparse
import re
import subprocess

from support.trainers.slime_world import slime

MEGATRON = frozenset(
    """
    --accumulate-allreduce-grads-in-fp32 --adam-beta1 --adam-beta2 --attention-backend --attention-dropout
    --attention-softmax-in-fp32 --context-parallel-size --hidden-dropout --lr-decay-style --optimizer
    --pipeline-model-parallel-size --recompute-granularity --recompute-method --recompute-num-layers
    --sequence-parallel --tensor-model-parallel-size --weight-decay
    """.split()
)
"""Flags of Megatron-LM at 1dcf0daf, which slime's image has; it cannot be imported without a GPU's packages."""
SGLANG = frozenset({"--sglang-mem-fraction-static"})
"""Flags that slime makes of SGLang's, which has this one since long."""


def flags(script: str) -> set[str]:
    """Return what a script gives to slime; not what it gives to ray."""
    text = re.sub(r"(^|\s)#.*", "", script)
    arrays = re.findall(r"^\s*[A-Z]+=\((.*?)\)$", text, re.DOTALL | re.MULTILINE)
    return {flag for array in arrays for flag in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", array)}


def check_script(script: str, *arrays: str) -> None:
    """Check that a script is well formed and uses every array that it makes, slime's MODEL_ARGS, and these, once."""
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    used = re.findall(r'"\$\{(\w+)\[@\]\}"', script)
    made = re.findall(r"^([A-Z]+)=\(", script, re.MULTILINE)
    assert sorted(used) == sorted([*made, "MODEL_ARGS", *arrays])


def unknown_flags(given: set[str]) -> set[str]:
    """Return the flags that slime's own parser does not have, nor Megatron-LM, nor SGLang."""
    parser = argparse.ArgumentParser(add_help=False)
    slime("utils.arguments").get_slime_extra_args_provider()(parser)
    known = {name for action in parser._actions for name in action.option_strings}
    assert "--custom-generate-function-path" in known
    assert not MEGATRON & known - {"--optimizer"}, "slime has these itself now"
    return given - known - MEGATRON - SGLANG
