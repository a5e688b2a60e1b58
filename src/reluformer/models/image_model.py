"""ImageModel: a vision Transformer, whose tokens are the patches of an image.

A patch is a square of pixels, normed and mapped to the width of the model. Each place has a learned position. The
blocks are those of the other models, and every token reads all tokens. Beside 1/n^alpha in the rule, Wortsman et al.
(2023) have norms of queries and keys, and try a gate.

Shapes: B batch, C channels, S side of an image, p side of a patch, T tokens, D width, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reluformer.errors import ArgumentError
from reluformer.kernels.products import Linear
from reluformer.layers import AffineNorm, AttentionOptions
from reluformer.memory import RowStats
from reluformer.models.blocks import Block, Output, TokenModel
from reluformer.models.config import ImageConfig


class ImageModel(TokenModel):
    """A classifier of images; see `ImageConfig`.

    Calling the model takes images (B, channels, image_size, image_size) and computes logits (B, classes).

    Args:
        config: The sizes and the rules of the model.

    Example:
        >>> from reluformer.models.config import ImageConfig
        >>> model = ImageModel(ImageConfig(width=16, heads=2, layers=1, slots=32, patch=7))
        >>> model(torch.rand(2, 1, 28, 28)).logits.shape
        torch.Size([2, 10])
    """

    schema = ImageConfig
    config: ImageConfig

    def __init__(self, config: ImageConfig) -> None:
        super().__init__(config)
        options = AttentionOptions(qk_norm=config.qk_norm, output_gate=config.output_gate)
        self.patch = Linear(config.channels * config.patch**2, config.width)
        self.position = nn.Parameter(torch.empty(config.tokens, config.width))
        self.class_token = nn.Parameter(torch.zeros(config.width)) if config.pooling == "class" else None
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(Block(config, config.attention, options=options) for _ in range(config.layers))
        norms: dict[str, nn.Module] = {"pre": nn.LayerNorm(config.width), "affine": AffineNorm(config.width)}
        self.encoder_norm = norms.get(config.norm, nn.Identity())
        self.output = Linear(config.width, config.classes, bias=False)
        nn.init.normal_(self.patch.weight, std=self.patch.in_features**-0.5)
        nn.init.zeros_(self.patch.bias)
        nn.init.normal_(self.position, std=0.5)
        nn.init.normal_(self.output.weight, std=config.width**-0.5)

    def forward(self, images: Tensor, stats: bool = False) -> Output:
        """Returns the logits of the classes.

        Args:
            images: (B, C, S, S), floating point from 0 to 1, or uint8 from 0 to 255.
            stats: Whether to return the row statistics of each attention.

        Returns:
            The logits (B, K), and the row statistics by name.

        Raises:
            ArgumentError: The images have another shape or type, or a pixel is not finite or outside of its range.
        """
        states, reads = self.states(images, stats)
        return Output(self.output(states), reads)

    def states(self, images: Tensor, stats: bool = False) -> tuple[Tensor, dict[str, RowStats]]:
        """Returns the pooled states (B, D) that the output reads, and row statistics; the arguments of `forward`."""
        x, reads = self.dropout(self.embed(self.pixels(images))), {}
        for i, block in enumerate(self.encoder):
            x, row_stats = self._run(block, x, stats=stats)
            reads.update({f"encoder.{i}.attention": row for row in row_stats})
        return self.pool(self.encoder_norm(x)), reads

    def pixels(self, images: Tensor) -> Tensor:
        """Returns images (B, C, S, S) in the type of the weights, from 0 to 1, after a check of shape, type and range.

        Raises:
            ArgumentError: The message says what is wrong.
        """
        side, channels = self.config.image_size, self.config.channels
        if not isinstance(images, Tensor) or not (images.is_floating_point() or images.dtype == torch.uint8):
            found = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise ArgumentError(f"images must be floating point from 0 to 1, or uint8 from 0 to 255, got {found}")
        if images.ndim != 4 or tuple(images.shape[1:]) != (channels, side, side):
            raise ArgumentError(
                f"images must have shape (batch, {channels}, {side}, {side}), got {tuple(images.shape)}; resize them, "
                "or build a model for their size with image_size and channels"
            )
        dtype = self.output.weight.dtype
        if images.dtype == torch.uint8:
            return images.to(dtype) / 255
        if images.numel() and not torch.compiler.is_compiling():
            lowest, highest = (float(end) for end in images.detach().aminmax())
            if not (lowest >= -1e-3 and highest <= 1 + 1e-3):  # also false for NaN
                raise ArgumentError(
                    f"images hold pixels from {lowest:g} to {highest:g}; they must lie between 0 and 1. Divide bytes "
                    "by 255; the model norms them itself"
                )
        return images.to(dtype)

    def embed(self, pixels: Tensor) -> Tensor:
        """Returns the tokens (B, T, D) of pixels (B, C, S, S) from 0 to 1."""
        config = self.config
        batch, p, across = pixels.size(0), config.patch, config.image_size // config.patch
        normed = (pixels - config.pixel_mean) / config.pixel_deviation
        cut = normed.reshape(batch, config.channels, across, p, across, p).permute(0, 2, 4, 1, 3, 5)
        tokens = self.patch(cut.reshape(batch, across**2, -1))
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(batch, 1, -1), tokens], dim=1)
        embedded: Tensor = tokens + self.position
        return embedded

    def pool(self, states: Tensor) -> Tensor:
        """Returns what the output reads, (B, D), of states (B, T, D)."""
        return states[:, 0] if self.config.pooling == "class" else states.mean(1)
