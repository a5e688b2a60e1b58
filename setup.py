"""The one part that is compiled: an optional library without which the reference serves.

Its interface is plain C, loaded with ctypes, so one build serves every Python and every torch.
Everything else is in pyproject.toml.
"""

import runpy
from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/reluformer/kernels/native")
sources = runpy.run_path(str(NATIVE / "sources.py"))

setup(
    ext_modules=[
        Extension(
            "reluformer.kernels.native._library",
            sources=sorted(path.as_posix() for path in NATIVE.glob("*.cpp")),
            depends=sorted(path.as_posix() for path in NATIVE.glob("*.h")),
            language="c++",
            define_macros=[("RELUFORMER_SOURCE_HASH", f'"{sources["source_hash"]()}"')],
            extra_compile_args=["-O3", "-std=c++17", "-ffp-contract=fast", "-fvisibility=hidden"],
            optional=True,
        )
    ]
)
