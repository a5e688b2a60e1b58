"""An attack by projected gradient descent: the other side of a certificate.

From a random start within epsilon of an image, each step moves every pixel by `rate` epsilon in the direction that
raises the largest other logit over that of the right class, and back into the box.
"""

from __future__ import annotations

from numbers import Real

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

    Raises:
        ArgumentError: epsilon is no number from 0 to 1, or the labels do not fit the images or the model.

    Example:
        >>> from reluformer.models.config import ImageConfig
        >>> model = ImageModel(ImageConfig(width=8, heads=1, layers=1, patch=14))
        >>> margins, found = attack(model, torch.rand(2, 1, 28, 28), torch.tensor([0, 1]), 0.1, steps=2)
        >>> margins.shape, found.shape
        (torch.Size([2]), torch.Size([2, 1, 28, 28]))
    """
    check_epsilon("attack", epsilon)
    pixels = model.pixels(images)
    check_labels("attack", pixels, labels, model.config.classes)
    model.eval()
    generator = torch.Generator().manual_seed(seed)
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


def check_epsilon(verb: str, epsilon: float) -> None:
    """Raise an error unless epsilon is a number from 0 to 1."""
    if not isinstance(epsilon, Real):
        raise ArgumentError(
            f"{verb}: epsilon is {epsilon!r} of type {type(epsilon).__name__}; give a number from 0 to 1, as 1 / 255"
        )
    if not 0 <= epsilon <= 1:  # also true for NaN
        raise ArgumentError(f"{verb}: epsilon is {epsilon}; it must lie between 0 and 1, as 1/255")


def check_labels(verb: str, images: Tensor, labels: Tensor, classes: int) -> None:
    """Raise an error unless each image has a label, and each label is a class.

    Args:
        verb: what was asked for; the message begins with it.
        images: (N, C, S, S).
        labels: should be integers (N,), each from 0 to classes - 1.
        classes: of the model.
    """
    if not isinstance(labels, Tensor) or labels.ndim != 1 or labels.dtype == torch.bool or _has_fractions(labels):
        shown = (
            f"{labels.dtype} of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        )
        raise ArgumentError(f"{verb}: labels must be a tensor of integers (N,), got {shown}; use labels.long()")
    if len(images) != len(labels):
        raise ArgumentError(f"{verb}: {len(images)} images and {len(labels)} labels; give each image one label")
    if not len(images):
        raise ArgumentError(f"{verb}: there is no image; give at least one")
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise ArgumentError(
            f"{verb}: label {int(labels[place])} of image {place} is no class of the model, which has {classes}; "
            f"labels go from 0 to {classes - 1}"
        )


def _has_fractions(labels: Tensor) -> bool:
    return labels.is_floating_point() or labels.is_complex()


def margins_of(model: ImageModel, pixels: Tensor, labels: Tensor) -> Tensor:
    """Returns the logit of the right class less the largest other one, (N,)."""
    logits = model(pixels).logits
    place = labels.to(logits.device, torch.int64)[:, None]
    right = logits.gather(1, place)
    others = logits.scatter(1, place, -torch.inf).amax(1, keepdim=True)
    margins: Tensor = (right - others).squeeze(1)
    return margins
