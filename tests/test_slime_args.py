"""A client from slime's arguments, with engines of its own and without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang._slime_args import settings_from_slime_args
from strands_sglang.errors import ConfigurationError


def args(**fields: Any) -> SimpleNamespace:
    base = {"sglang_router_ip": "10.0.0.1", "sglang_router_port": 3000, "sglang_server_concurrency": 512}
    return SimpleNamespace(**{**base, **fields})


ADDRESSES = {"rollout_external_engine_addrs": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("fields", "connections"),
    [
        ({"rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 2}, 512 * 8),
        ({"rollout_num_engines": 3, "rollout_num_gpus": 16}, 512 * 3),
        ({"rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 8}, 512),  # more of an engine than there are
        *(({"rollout_num_gpus": external}, 1000) for external in (None, 0)),
        *(({"rollout_num_gpus": external, **ADDRESSES}, 1024) for external in (None, 0)),
    ],
)
def test_connections_for_all_engines(fields: dict[str, Any], connections: int) -> None:
    settings = settings_from_slime_args(args(**fields))
    assert settings == {"base_url": "http://10.0.0.1:3000", "max_connections": connections}


def test_ipv6() -> None:
    assert settings_from_slime_args(args(sglang_router_ip="::1"))["base_url"] == "http://[::1]:3000"


def test_router_that_is_not_started() -> None:
    with pytest.raises(ConfigurationError, match="after that"):
        settings_from_slime_args(args(sglang_router_ip=None))


def test_public_api() -> None:
    client = SGLangClient.from_slime_args(args(rollout_num_gpus=None), timeout=300.0)
    assert client.base_url == "http://10.0.0.1:3000"
