"""What slime's arguments say about where the engine is and how many requests it takes at once."""

from __future__ import annotations

from typing import Any

from strands_sglang.errors import ConfigurationError

_DEFAULT_CONNECTIONS = 1000


def settings_of(args: Any) -> dict[str, Any]:
    """Return the `SGLangClient` settings that slime's parsed arguments imply.

    Engines outside slime's own placement (`rollout_num_gpus` None or 0) are counted by their addresses; where
    there are none, a fixed number of connections is used: the router holds back what the engines cannot take.
    """
    host, port = getattr(args, "sglang_router_ip", None), getattr(args, "sglang_router_port", None)
    if not host or not port:
        raise ConfigurationError(
            "args.sglang_router_ip and args.sglang_router_port are not set: slime fills them in when its rollout "
            "manager starts; build the client after that, or pass --sglang-router-ip and --sglang-router-port"
        )
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    engines = _engines(args)
    concurrency = getattr(args, "sglang_server_concurrency", None)
    connections = concurrency * engines if concurrency and engines else _DEFAULT_CONNECTIONS
    return {"base_url": f"http://{host}:{port}", "max_connections": max(1, int(connections))}


def _engines(args: Any) -> int:
    if (told := getattr(args, "rollout_num_engines", None)) is not None:
        return int(told)
    gpus = getattr(args, "rollout_num_gpus", None) or 0
    if gpus:
        per_engine = getattr(args, "rollout_num_gpus_per_engine", None) or 1
        return max(1, int(gpus) // int(per_engine))
    return len(getattr(args, "rollout_external_engine_addrs", None) or ())
