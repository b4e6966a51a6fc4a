"""Builds the C extensions; all else is in pyproject.toml.

1. An extension is its .pyx and the C files it calls: nothing is installed as a library.
2. A missing system header ends in one line that names the package, before the compiler runs.
"""

import subprocess
import sys
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WIRE = sorted(glob("csrc/wire/*.c"))
HEADERS = sorted(glob("csrc/*/*.h"))

# What an extension needs from the system: header, then the package as Debian and Fedora call it.
NEEDS = {"relay.wire._codec": [("openssl/evp.h", "libssl-dev or openssl-devel")]}


def extension(name: str, sources: list[str], libraries: list[str]) -> Extension:
    """An extension of one .pyx beside its module, compiled as C11 with csrc/ for includes."""
    return Extension(
        name,
        [name.replace(".", "/") + ".pyx", *sources],
        include_dirs=["csrc"],
        libraries=libraries,
        depends=HEADERS,
        extra_compile_args=["-std=gnu11", "-O2"],
    )


class BuildExt(build_ext):
    """build_ext that looks for the system's headers first."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link `ext`, or exit with one line."""
        for header, package in NEEDS.get(ext.name, []):
            probe = [*self.compiler.compiler, "-E", "-x", "c", "-"]
            source = f"#include <{header}>\n".encode()
            if subprocess.run(probe, input=source, capture_output=True).returncode != 0:
                sys.exit(f"error: {ext.name} needs the header {header}: install {package}")
        super().build_extension(ext)


setup(
    ext_modules=cythonize(
        [extension("relay.wire._codec", WIRE, ["crypto"])],
        build_dir="build/cython",
        compiler_directives={"language_level": "3"},
    ),
    cmdclass={"build_ext": BuildExt},
)
