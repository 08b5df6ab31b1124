"""The few calls of the HIP runtime that load a code object and launch its kernel, through ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path

from dsv4_kernels.errors import BackendUnavailableError

LIBRARY = "libamdhip64.so"
_BUFFER_POINTER, _BUFFER_SIZE, _END = (ctypes.c_void_p(i) for i in (1, 2, 3))
"""HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END of hip_runtime_api.h."""


class HipRuntime:
    """An opened HIP runtime. Every failed call raises BackendUnavailableError with HIP's own words."""

    def __init__(self, library: str | Path = LIBRARY) -> None:
        try:
            self._hip = ctypes.CDLL(str(library))
        except OSError as error:
            raise BackendUnavailableError(f"{library}: {error}; compiled kernels need the ROCm runtime") from error
        self._hip.hipGetErrorString.restype = ctypes.c_char_p

    def load(self, code: bytes, symbol: str) -> object:
        """The function `symbol` of a code object, loaded on the current device for the life of the process."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("hipModuleLoadData", ctypes.byref(module), code)
        self._call("hipModuleGetFunction", ctypes.byref(function), module, symbol.encode())
        return function

    def launch(
        self, function: object, grid: tuple[int, int, int], threads: int, arguments: bytes, stream: int, lds: int
    ) -> None:
        """Launch with a packed argument segment and `lds` bytes of LDS a workgroup on a stream handle."""
        segment = ctypes.create_string_buffer(arguments, len(arguments))
        size = ctypes.c_size_t(len(arguments))
        extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(segment), _BUFFER_SIZE, ctypes.addressof(size), _END
        )
        unsigned = [ctypes.c_uint(n) for n in (*grid, threads, 1, 1, lds)]
        self._call("hipModuleLaunchKernel", function, *unsigned, ctypes.c_void_p(stream), None, extra)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._hip, name)(*arguments)
        if code:
            told = self._hip.hipGetErrorString(code)
            raise BackendUnavailableError(f"{name} failed: {told.decode() if told else code}")
