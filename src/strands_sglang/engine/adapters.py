"""LoRA adapters of a server: their names in weight versions, and which names may be sampled with.

An answer of SGLang does not say which adapter sampled it, and its weight version is that of the base weights. So the
adapter that a request named becomes part of the version of its tokens: `"default+lora:policy-v7"`.

A name must always mean the same weights: the server loads an adapter again, from wherever its path now leads, when a
request names one that was unloaded. Therefore names are never used twice, and are checked before they are sampled with.

Invariant: no request is sent for an adapter that this process unloaded, or that a worker did not list when it was last
asked, or listed with another path than before. A client that was sent to another process asks every second, not before
every call: a fleet has many workers. A server that does not answer is no reason to refuse: the request finds out.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from strands_sglang.errors import ConfigurationError, EngineError, RequestRejectedError
from strands_sglang.tokens.arrays import VersionSpan

logger = logging.getLogger(__name__)

MARK = "+lora:"
"""Between the version of the base weights and the name of the adapter."""
FRESH_SECONDS = 30.0
"""How long a list of a worker's adapters counts, in the process that loads and unloads them."""
FRESH_SECONDS_ELSEWHERE = 1.0
"""The same in a process that does not know what that process unloads."""

AdapterLists = Mapping[str, Mapping[str, str]]
"""The adapters of each worker that answered, by its URL: names, each with its path."""


def version_with(version: str | None, adapter: str) -> str:
    """Return the version of tokens that an adapter sampled, given that of the base weights."""
    return f"{version or ''}{MARK}{adapter}"


def spans_with(spans: Iterable[VersionSpan], adapter: str) -> tuple[VersionSpan, ...]:
    """Return version spans with the adapter that sampled them."""
    return tuple(VersionSpan(version_with(version, adapter), start, end) for version, start, end in spans)


def check_name(name: object) -> None:
    """Raise ConfigurationError for what cannot be the name of an adapter."""
    if not isinstance(name, str) or not name or not name.isprintable() or MARK in name:
        raise ConfigurationError(
            f"an adapter must be the name it was loaded under, printable and without {MARK!r}, got {name!r:.200}"
        )


def content_of(path: str) -> str | None:
    """Return a digest of an adapter's files; None if its folder is not visible here."""
    digest, files = hashlib.blake2b(digest_size=16), sorted(Path(path).glob("adapter_*"))
    try:
        for one in files:
            digest.update(f"{one.name}\0{one.stat().st_size}\0".encode())
            with one.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    except OSError as error:
        logger.debug("path=<%s>, error=<%s> | could not read an adapter", path, error)
        return None
    return digest.hexdigest() if files else None


class AdapterNames:
    """What this process knows about the adapters at one address; see `adapter_names`."""

    def __init__(self) -> None:
        self._retired: set[str] = set()
        self._paths: dict[str, str] = {}
        self._contents: dict[str, str] = {}
        self._listed_at: dict[str, float] = {}
        self._listing: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[AdapterLists]] = (
            weakref.WeakKeyDictionary()
        )

    def check_new(self, name: str, path: str, content: str | None) -> None:
        """Raise ConfigurationError if a name was loaded before from another path or with other content, or unloaded."""
        check_name(name)
        was = "" if self._paths.get(name) in (None, path) else f"loaded from {self._paths[name]}"
        if content is not None and self._contents.get(name, content) != content:
            was = f"loaded from {path} before its files were changed"
        if name in self._retired:
            was = "unloaded"
        if was:
            raise ConfigurationError(
                f"an adapter must be loaded under a name of its own, and {name!r} was {was}: tokens of both would have "
                "the same version on record. Use a name with the training step, such as policy-v7"
            )

    def loaded(self, name: str, path: str, content: str | None) -> None:
        """Register that a worker has an adapter from this path."""
        self._paths[name] = path
        if content is not None:
            self._contents[name] = content

    def retire(self, name: str) -> None:
        """Never sample with a name again."""
        self._retired.add(name)

    def check_kept(self, name: str) -> None:
        """Raise RequestRejectedError if this process unloaded an adapter."""
        if name in self._retired:
            raise RequestRejectedError(
                f"adapter {name!r} was unloaded by this process: the server would load it again without a word, and "
                "its weights may be others now. Load the adapter under a new name"
            )

    async def check(
        self, name: str, adapters: Callable[[], Awaitable[AdapterLists]], *, fresh_seconds: float = FRESH_SECONDS
    ) -> None:
        """Raise an error unless requests may name an adapter.

        Args:
            name: The adapter.
            adapters: Asks every worker for its adapters.
            fresh_seconds: How long an answer counts.

        Raises:
            ConfigurationError: The name is impossible.
            RequestRejectedError: It was unloaded, a worker does not have it, or has another one under this name.
        """
        if name not in self._retired and time.monotonic() - self._listed_at.get(name, float("-inf")) < fresh_seconds:
            return
        check_name(name)
        self.check_kept(name)
        try:
            lists = await self._ask(adapters, name)
        except EngineError as error:
            logger.debug("adapter=<%s>, error=<%s> | could not list the adapters", name, error)
            return
        for worker, listed in lists.items():
            if name not in listed:
                others = ", ".join(sorted(listed)) or "none"
                raise RequestRejectedError(
                    f"adapter {name!r} must be loaded on every worker, and {worker} has {others}: load it with "
                    "client.control.load_adapter(name, path). An adapter that was unloaded counts as gone"
                )
            if self._paths.setdefault(name, listed[name]) != listed[name]:
                raise RequestRejectedError(
                    f"adapter {name!r} must stay the same, but {worker} has it from {listed[name]}, and it was "
                    f"{self._paths[name]} before: load every adapter under a name of its own"
                )
        if lists:
            self._listed_at[name] = time.monotonic()

    async def _ask(self, adapters: Callable[[], Awaitable[AdapterLists]], name: str) -> AdapterLists:
        """Ask once for all calls that wait for the answer on this event loop."""
        loop = asyncio.get_running_loop()
        running = self._listing.get(loop)
        if running is not None and not running.done():
            lists = await asyncio.shield(running)
            if all(name in listed for listed in lists.values()):
                return lists  # else it may have been loaded after this question was sent
            running = self._listing.get(loop)
        if running is None or running.done():
            running = self._listing[loop] = asyncio.ensure_future(adapters())
        return await asyncio.shield(running)


_names: dict[str, AdapterNames] = {}


def adapter_names(base_url: object) -> AdapterNames:
    """Return what this process knows about the adapters at an address; one object for all clients of it."""
    return _names.setdefault(str(base_url).rstrip("/"), AdapterNames())
