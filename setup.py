"""Builds the C extensions; all else is in pyproject.toml.

1. An extension is its .pyx and the C files it calls: nothing is installed as a library.
2. Each builds alone: VOICE_RELAY_EXTENSIONS names those to build (by default all).
3. A missing compiler or header ends in one line that names the Debian package.
"""

import os
import subprocess
import sys
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WIRE = sorted(glob("csrc/wire/*.c"))
RELAY = sorted(glob("csrc/relay/*.c"))
MEDIA = sorted(glob("csrc/media/*.c"))
SSL = {"openssl/evp.h": "libssl-dev"}
SOUND = {"opus/opus.h": "libopus-dev", "speex/speex_resampler.h": "libspeexdsp-dev"}

# module: (C files, libraries, {header that must be there: its Debian package})
EXTENSIONS: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "relay.wire._codec": (WIRE, ["crypto"], SSL),
    "relay._dataplane": (WIRE + RELAY, ["crypto"], SSL),
    "transceiver._engine": (WIRE + MEDIA, ["crypto", "opus", "speexdsp", "m"], SSL | SOUND),
}
WANTED = os.environ.get("VOICE_RELAY_EXTENSIONS", " ".join(EXTENSIONS)).split()


class BuildExt(build_ext):
    """build_ext that looks for the compiler and the system's headers first."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link `ext`, or exit with one line."""
        probe = [*self.compiler.compiler, "-E", "-x", "c", "-"]
        for header, package in {"stdio.h": "libc6-dev", **EXTENSIONS[ext.name][2]}.items():
            source = f"#include <{header}>\n".encode()
            try:
                done = subprocess.run(probe, input=source, capture_output=True)
            except FileNotFoundError:
                sys.exit(f"error: {ext.name} needs a C compiler: install gcc")
            if done.returncode != 0:
                sys.exit(f"error: {ext.name} needs the header {header}: install {package}")
        super().build_extension(ext)


def extension(name: str) -> Extension:
    """An extension of one .pyx beside its module, compiled as C11 with csrc/ for includes."""
    sources, libraries, _ = EXTENSIONS[name]
    files = [name.replace(".", "/") + ".pyx", *sources]
    built = Extension(name, files, include_dirs=["csrc"], libraries=libraries)
    built.depends = [*sorted(glob("csrc/*/*.h")), *sorted(glob("*/*.pxd"))]
    built.extra_compile_args = ["-std=gnu11", "-O2"]
    return built


EXT_MODULES = cythonize([extension(name) for name in WANTED], build_dir="build/cython")
setup(ext_modules=EXT_MODULES, cmdclass={"build_ext": BuildExt})
