"""What may be sent to the workers that a router names: `WorkerHosts`, `checked_address`.

A router lists the addresses of its workers, and some requests are sent to the workers themselves (`control.py`,
`call.py`). A router that is hostile, or set up for another network, lists hosts that the user never meant.

Invariant: prompts and the headers of a client (its API key among them) are sent only to the host of `base_url` and to
the hosts in `worker_hosts`. Nothing is sent to other hosts if `worker_hosts` is given, or unencrypted if `base_url` is
https.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from yarl import URL

from strands_sglang.errors import ConfigurationError, MalformedResponseError, RequestRejectedError

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_NO_HEADERS: Mapping[str, str] = {}


class WorkerHosts:
    """The hosts that a client sends requests to, and the headers for each."""

    def __init__(self, base: URL, listed: Collection[str] | None, headers: Mapping[str, str]) -> None:
        """Store the rule; `listed`: as in `SGLangClient(worker_hosts=...)`."""
        if isinstance(listed, str):
            raise ConfigurationError(
                f"worker_hosts must be a list of hosts, got {listed!r:.200}; write [{listed!r:.200}]"
            )
        if wrong := [one for one in listed or () if not isinstance(one, str) or not _is_host(one)]:
            raise ConfigurationError(
                f"worker_hosts must be hosts like '10.0.0.2' or '*.cluster.local', got {wrong[0]!r:.200}; leave out "
                "http:// and the port"
            )
        self._base, self._only_listed = base, listed is not None
        self._listed = [_bare(host.lower()) for host in listed or ()]
        self.headers = headers
        """Headers of every request to the host of `base_url`."""

    def headers_for(self, url: URL) -> Mapping[str, str]:
        """Return the client's headers for a request; RequestRejectedError if it must not be sent."""
        if self.owns(url):
            return self.headers
        encrypted = self._encrypted(url)
        if encrypted and not self._only_listed:
            return _NO_HEADERS
        problem = "its host is not listed" if encrypted else "it is not encrypted, and base_url is https"
        raise RequestRejectedError(
            f"nothing is sent to the worker {url.origin()} of the router {self._base}: {problem} | if it is yours, "
            f"pass {self.option([url])}"
        )

    def owns(self, url: URL) -> bool:
        """Return whether a host is the user's: that of `base_url`, or a listed one. Only these receive prompts."""
        host, base = str(url.host), str(self._base.host)
        if any(fnmatchcase(host, pattern) for pattern in self._listed):
            return True
        return self._encrypted(url) and (host == base or {host, base} <= _LOOPBACK)

    def _encrypted(self, url: URL) -> bool:
        return url.scheme == "https" or self._base.scheme != "https"

    def advice(self, urls: Iterable[URL]) -> str:
        """Return the option with which workers receive the client's headers; "" if they do, or there are none."""
        others = []
        for url in urls:
            try:
                if self.headers and not self.headers_for(url):
                    others.append(url)
            except RequestRejectedError:
                others.append(url)
        return self.option(others) if others else ""

    def option(self, others: Iterable[URL]) -> str:
        """Return the option with which the hosts of these workers are listed, too."""
        return f"SGLangClient(worker_hosts={sorted({*self._listed, *(str(url.host) for url in others)})})"


def _bare(host: str) -> str:
    """Return an IPv6 address without its brackets, and anything else, such as `gpu[12]`, as it is."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") and ":" in host else host


def _is_host(text: str) -> bool:
    host = _bare(text)
    return bool(host) and not set(host) & set("/@ ") and host.count(":") != 1


def checked_address(text: object) -> str:
    """Return the address of a worker as routers list it, without a data-parallel rank (`http://host:1@0`).

    MalformedResponseError: no request can be sent to it.
    """
    if isinstance(text, str):
        head, at, rank = text.rpartition("@")
        address = head if at and rank.isdigit() else text
        try:
            url = URL(address)
        except ValueError:
            url = URL()
        if url.scheme and url.host and not (url.user or url.password or url.query_string or url.fragment):
            return address
    raise MalformedResponseError(
        f"the router must list workers by addresses like http://10.0.0.2:30000, got {text!r:.100}: check what was "
        "registered with it"
    )
