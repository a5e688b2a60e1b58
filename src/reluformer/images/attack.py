"""An attack by projected gradient descent: the other side of a certificate.

From a random start within epsilon of an image, each step moves every pixel by `rate` epsilon in the direction that
raises the largest other logit over that of the right class, and back into the box.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reluformer.errors import ArgumentError
from reluformer.models.image_model import ImageModel


def attack(
    model: ImageModel,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    steps: int = 40,
    restarts: int = 1,
    rate: float = 0.1,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Search for images of another class within epsilon of the given ones.

    Args:
        model: the model.
        images: (N, C, S, S), uint8 or from 0 to 1.
        labels: (N,), the right classes.
        epsilon: the largest change of a pixel.
        steps: steps of each search.
        restarts: searches from other random starts.
        rate: the length of a step, in units of epsilon.
        seed: decides the starts.

    Returns:
        The least margin that was found for each image (N,), negative where the class changed, and the image with it.

    Example:
        >>> from reluformer.models.config import ImageConfig
        >>> model = ImageModel(ImageConfig(width=8, heads=1, layers=1, patch=14))
        >>> margins, found = attack(model, torch.rand(2, 1, 28, 28), torch.tensor([0, 1]), 0.1, steps=2)
        >>> margins.shape, found.shape
        (torch.Size([2]), torch.Size([2, 1, 28, 28]))
    """
    if not 0 <= epsilon <= 1:
        raise ArgumentError(f"attack: epsilon is {epsilon}; it must lie between 0 and 1, as 1/255")
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    pixels = model.pixels(images)
    low, high = (pixels - epsilon).clamp_min(0), (pixels + epsilon).clamp_max(1)
    best, found = margins_of(model, pixels, labels), pixels
    for _ in range(restarts):
        x = low + (high - low) * torch.rand(pixels.shape, generator=generator, dtype=pixels.dtype)
        for _ in range(steps + 1):
            x = x.detach().requires_grad_()
            margins = margins_of(model, x, labels)
            better = margins.detach() < best
            best = torch.where(better, margins.detach(), best)
            found = torch.where(better[:, None, None, None], x.detach(), found)
            (gradient,) = torch.autograd.grad(margins.sum(), x)
            x = torch.minimum(torch.maximum(x - rate * epsilon * gradient.sign(), low), high)
    return best.detach(), found.detach()


def margins_of(model: ImageModel, pixels: Tensor, labels: Tensor) -> Tensor:
    """Return the logit of the right class less the largest other one, (N,)."""
    logits = model(pixels).logits
    right = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
    margins: Tensor = (right - others).squeeze(1)
    return margins
