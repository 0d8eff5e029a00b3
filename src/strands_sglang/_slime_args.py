"""What slime's parsed arguments say about its engines: `settings_from_slime_args`.

Three published names read them (`SGLangClient.from_slime_args`, `get_client_from_slime_args`, slime's adapter), in
different layers, so this module is below all of them.
"""

from __future__ import annotations

from typing import Any

from strands_sglang.errors import ConfigurationError

_DEFAULT_CONNECTIONS = 1000


def settings_from_slime_args(args: Any) -> dict[str, Any]:
    """Return the `SGLangClient` settings for slime's parsed arguments.

    Engines outside slime's own placement (`rollout_num_gpus` None or 0) are counted by their addresses. If there are
    none, a fixed number of connections is used: the router queues what the engines cannot take.
    """
    host, port = getattr(args, "sglang_router_ip", None), getattr(args, "sglang_router_port", None)
    if not host or not port:
        raise ConfigurationError(
            f"args.sglang_router_ip and args.sglang_router_port must be set, got {host!r} and {port!r}: slime sets "
            "them when its rollout manager starts; create the client after that, or pass --sglang-router-ip and "
            "--sglang-router-port"
        )
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    engines = _engine_count(args)
    concurrency = getattr(args, "sglang_server_concurrency", None)
    connections = concurrency * engines if concurrency and engines else _DEFAULT_CONNECTIONS
    return {"base_url": f"http://{host}:{port}", "max_connections": max(1, int(connections))}


def _engine_count(args: Any) -> int:
    if (count := getattr(args, "rollout_num_engines", None)) is not None:
        return int(count)
    gpus = getattr(args, "rollout_num_gpus", None) or 0
    if gpus:
        per_engine = getattr(args, "rollout_num_gpus_per_engine", None) or 1
        return max(1, int(gpus) // int(per_engine))
    return len(getattr(args, "rollout_external_engine_addrs", None) or ())
