"""The parts of the build that are not data: the compiled library, the tag of the wheel, commit and links.

The library is optional; without it the reference implementation is used. Its interface is plain C, loaded with
ctypes, so one build serves every Python and every torch, and the wheel is tagged `py3-none-PLATFORM`.
Everything else is in pyproject.toml.
"""

import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

NATIVE = Path("src/reluformer/kernels/native")
sources = runpy.run_path(str(NATIVE / "__init__.py"))
metadata = runpy.run_path("release/metadata.py")
address, commit = metadata["repository"](), metadata["commit"]()


class BuildLibrary(build_ext):
    """Names the library for its system alone, and asks it for no function of a Python module."""

    def get_ext_filename(self, fullname):
        return str(Path(*fullname.split(".")[:-1], sources["library_name"]()))

    def get_export_symbols(self, ext):
        return []


class BuildPackage(build_py):
    """Writes the commit into the package, which has no git checkout around it once it is installed."""

    def run(self):
        super().run()
        if commit and not self.editable_mode:
            write_commit(Path(self.build_lib, "reluformer"))


class SourceDistribution(sdist):
    """Writes the commit into the sdist."""

    def run(self):
        tell_unknown_address()
        super().run()

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        if commit:
            write_commit(Path(base_dir, "src", "reluformer"))


class PlatformWheel(bdist_wheel):
    """Tags the wheel for every Python on one platform."""

    def run(self):
        tell_unknown_address()
        super().run()

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


def tell_unknown_address():
    if address is None:
        print(metadata["UNKNOWN"], file=sys.stderr)


def write_commit(package):
    file = package / Path(metadata["COMMIT_FILE"]).name
    file.unlink(missing_ok=True)  # it may be a hard link
    file.write_text(f"{commit}\n", encoding="utf-8")


setup(
    long_description=metadata["long_description"](address, commit),
    long_description_content_type="text/markdown",
    project_urls=metadata["project_urls"](address),
    cmdclass={
        "build_ext": BuildLibrary,
        "build_py": BuildPackage,
        "sdist": SourceDistribution,
        "bdist_wheel": PlatformWheel,
    },
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
    ],
)
