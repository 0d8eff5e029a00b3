"""The published package's import path of `SGLangModel`; the implementation is in `model.py`."""

from strands_sglang.model import SGLangModel

__all__ = ["SGLangModel"]
