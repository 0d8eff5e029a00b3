"""The published package's import path of `SGLangClient`; the implementation is in `engine/client.py`."""

from strands_sglang.engine.client import SGLangClient
from strands_sglang.utils import get_client, get_client_from_slime_args

__all__ = ["SGLangClient", "get_client", "get_client_from_slime_args"]
