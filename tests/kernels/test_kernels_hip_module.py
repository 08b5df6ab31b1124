"""The calls into HIP's module interface, against a small library built here that records what it was asked."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from pathlib import Path

import pytest

from dsv4_kernels import hip_module
from dsv4_kernels.errors import BackendUnavailableError

RECORDER = r"""
#include <stdio.h>
#include <string.h>
typedef unsigned u;
static char log_[4096];
const char *recorded(void) { return log_; }
const char *hipGetErrorString(int e) { return e == 98 ? "invalid device function" : "no error"; }
int hipModuleLoadData(void **module, const void *image) {
    sprintf(log_ + strlen(log_), "load %.4s;", (const char *)image); *module = (void *)0x11; return 0; }
int hipModuleGetFunction(void **function, void *module, const char *name) {
    sprintf(log_ + strlen(log_), "get %p %s;", module, name); *function = (void *)0x22;
    return strcmp(name, "absent") ? 0 : 98; }
int hipModuleLaunchKernel(void *f, u gx, u gy, u gz, u bx, u by, u bz, u lds, void *stream, void **args, void **extra) {
    sprintf(log_ + strlen(log_), "launch %p %u,%u,%u %u,%u,%u lds %u stream %p args %p "
            "extra %p %p %p size %zu end %p first %d;",
            f, gx, gy, gz, bx, by, bz, lds, stream, (void *)args, extra[0], extra[2], extra[4], *(size_t *)extra[3],
            extra[4], *(int *)extra[1]); return 0; }
"""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with HIP's module calls that writes down what it is asked."""
    folder = tmp_path_factory.mktemp("hip")
    (folder / "hip.c").write_text(RECORDER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "libhip.so", "hip.c"], cwd=folder, check=True, capture_output=True)
    return folder / "libhip.so"


def test_hip_calls_follow_its_c_interface(recorder: Path) -> None:
    runtime = hip_module.HipRuntime(recorder)
    function = runtime.load(b"\x7fELF and so on", "kernel_name")
    runtime.launch(function, (5, 6, 1), 64, struct.pack("<iq", 77, 1), 0x33, 4096)
    library = ctypes.CDLL(str(recorder))
    library.recorded.restype = ctypes.c_char_p
    assert library.recorded().decode() == (
        "load \x7fELF;get 0x11 kernel_name;"
        "launch 0x22 5,6,1 64,1,1 lds 4096 stream 0x33 args (nil) extra 0x1 0x2 0x3 size 12 end 0x3 first 77;"
    )
    with pytest.raises(BackendUnavailableError, match="hipModuleGetFunction failed: invalid device function"):
        runtime.load(b"\x7fELF", "absent")
