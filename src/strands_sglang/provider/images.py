"""The images of a turn's prompt: from blocks of messages to positions among the tokens.

Invariant: a prompt has exactly one placeholder for each image of its messages, where the chat template wrote it, and
no other token that claims an image; otherwise the turn is refused before anything is sent.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from strands_sglang._async import in_thread
from strands_sglang.chat.conversation import Conversation
from strands_sglang.chat.image_files import ImageFile, image_file, is_cheap, sources_in
from strands_sglang.chat.image_geometry import ImageGeometry, image_geometry
from strands_sglang.chat.tokenization import Encoder
from strands_sglang.errors import (
    ConfigurationError,
    CountMismatchError,
    TemplateRefusedError,
    UnsupportedContentError,
)
from strands_sglang.tokens import ImageSize, ImageSpan, PreparedTurn, expand


class ImageSupport:
    """What a model's image processor makes of images. Nothing is read before the first image."""

    def __init__(self, encoder: Encoder, source: Any) -> None:
        self._encoder = encoder
        self._source = source

    @cached_property
    def geometry(self) -> ImageGeometry:
        """The settings that determine how many positions an image takes."""
        geometry = image_geometry(self._source)
        if geometry.placeholder not in self._encoder.control.ids:
            raise ConfigurationError(
                f"the tokenizer has no token {geometry.placeholder}, which stands for an image: pass the tokenizer of "
                "a model that takes images"
            )
        return geometry

    async def read(self, conversation: Conversation, first: int) -> list[ImageFile | None]:
        """Read the images of a conversation from a message on, in threads if that takes long.

        None stands for an image that cannot be sent: rendering the message says which one, and why.
        """
        cheap, slow = list[bytes](), list[bytes]()
        for source in conversation.images(first):
            (cheap if is_cheap(source) else slow).append(source)
        if (cheap or slow) and "geometry" not in self.__dict__:  # first: a text-only model needs no converted images
            try:
                await in_thread(lambda support: support.geometry, self)  # may read or download files
            except ConfigurationError as error:
                raise _unusable(conversation, error) from error
        return [*map(_file, cheap), *await asyncio.gather(*(in_thread(_file, source) for source in slow))]

    @cached_property
    def reserved_ids(self) -> list[int]:
        """Ids of the tokens that claim an image or a video. A turn ends where one is sampled."""
        known = self._encoder.control.ids
        return [known[token] for token in self.geometry.reserved if token in known]

    def expand(self, context: array[int], files: Sequence[ImageFile]) -> tuple[array[int], list[ImageSpan]]:
        """Return the context of a turn with one placeholder for every position, and where the images are."""
        geometry = self.geometry
        sizes = []
        for file in files:
            positions, grid = geometry.size(file.width, file.height)
            sizes.append(ImageSize(positions, file.digest, grid))
        try:
            return expand(context, self._encoder.control.ids[geometry.placeholder], sizes)
        except CountMismatchError as error:
            raise UnsupportedContentError(
                f"the chat template does not write one {geometry.placeholder} for each image ({error}): it may take "
                "images only from users and not from tools. Return text from the tool, or use another chat template",
                kind="image",
            ) from error

    def refusal(self, error: TemplateRefusedError) -> UnsupportedContentError:
        """Return the error for a conversation with images that the chat template rejects."""
        return UnsupportedContentError(
            f"the chat template does not take images, or not from this role ({error.template_message}): pass the chat "
            "template of a model that takes images, or remove the images",
            kind="image",
        )

    def check(self, prepared: PreparedTurn) -> None:
        """Raise UnsupportedContentError if the model itself sampled a token that claims an image."""
        claimed = sum(prepared.ids.count(token) for token in self.reserved_ids)
        shown = sum(image.positions for image in prepared.images)
        if claimed != shown:
            raise UnsupportedContentError(
                f"the conversation has images, and the model has sampled {' or '.join(self.geometry.reserved)}, which "
                "the engine would take for another image: this branch cannot be continued",
                kind="image",
            )

    def stop_ids(self, sampling: Mapping[str, Any]) -> list[int]:
        """Return the stop tokens of a turn that has images: those asked for, and those that claim an image."""
        asked = sampling.get("stop_token_ids") or []
        return [*asked, *(token for token in self.reserved_ids if token not in asked)]


def _file(source: bytes) -> ImageFile | None:
    try:
        return image_file(source)
    except UnsupportedContentError:
        return None


def _unusable(conversation: Conversation, error: ConfigurationError) -> UnsupportedContentError:
    places = [
        (number, at)
        for number, message in enumerate(conversation.sent)
        for at, block in enumerate(message.get("content") or ())
        if any(sources_in([{"content": [block]}]))
    ]
    number, at = places[-1] if places else (None, None)
    where = "" if number is None else f"message {number}, content block {at}: "
    return UnsupportedContentError(
        f"{where}an image cannot be shown to this model: {error}", message_index=number, block_index=at, kind="image"
    )
