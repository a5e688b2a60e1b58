"""Before any test module is imported: Triton under its interpreter where there is no GPU.

Triton decides when it is imported whether functions are interpreted, those of its own library
included, and other packages import it as well (transformers).
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

with pytest.MonkeyPatch.context() as environment:
    if not torch.cuda.is_available():
        environment.setenv("TRITON_INTERPRET", "1")
    if find_spec("triton") is not None:
        from reluformer.kernels import triton_tiles  # noqa: F401
