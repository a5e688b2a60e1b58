"""Outputs, statistics and gradients against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from reluformer.conformance import cases
from reluformer.conformance.cases import ENTROPY_GRADIENT_TOLERANCE, TOLERANCE, Case, Read, error

reference = cases.implementation("reference")


def test_read_and_its_gradients(case: Case, read: Read) -> None:
    inputs, options = case.tensors()
    out, gradients = cases.run(read, inputs, options)
    expected, expected_gradients = cases.run(reference, cases.in_float64(inputs), options)
    assert out.dtype == case.dtype
    assert error(out, expected, case.dtype) <= TOLERANCE[case.dtype]
    for name, gradient in gradients.items():
        assert error(gradient, expected_gradients[name], case.dtype) <= TOLERANCE[case.dtype], name


@pytest.mark.reads(stats=True)
def test_statistics_and_their_gradients(case: Case, read: Read) -> None:
    inputs, options = case.tensors()
    stats, gradients = cases.run_stats(read, inputs, options)
    expected, expected_gradients = cases.run_stats(reference, cases.in_float64(inputs), options)
    assert torch.equal(stats.n_visible, expected.n_visible)
    for field in ("row_sum", "entropy", "zero_fraction"):
        assert (
            error(getattr(stats, field).detach(), getattr(expected, field).detach(), case.dtype)
            <= TOLERANCE[case.dtype]
        ), field
    for name, gradient in gradients.items():
        assert error(gradient, expected_gradients[name], case.dtype) <= ENTROPY_GRADIENT_TOLERANCE, name
