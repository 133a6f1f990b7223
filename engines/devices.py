"""The CUDA devices of this machine, asked of the driver itself, with or without torch."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

# CUdevice_attribute, cuda.h, the same since CUDA 3.
_MAJOR, _MINOR = 75, 76
_NAME_BYTES = 256


@dataclass(frozen=True)
class CudaDevice:
    """A CUDA device; `compute_capability` such as (9, 0)."""

    name: str
    compute_capability: tuple[int, int]


@functools.cache
def cuda_devices() -> tuple[CudaDevice, ...]:
    """The devices that this process may use; `why_no_cuda` says why there are none."""
    driver = _driver()
    count = ctypes.c_int()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_device(driver, ordinal) for ordinal in range(count.value))


def why_no_cuda() -> str:
    """Why there is no CUDA device, as a clause; "" where there is one."""
    if cuda_devices():
        return ""
    if _driver() is None:
        return "no CUDA device (the NVIDIA driver is not installed or does not start)"
    return "no CUDA device (the NVIDIA driver shows none; see CUDA_VISIBLE_DEVICES)"


@functools.cache
def _driver() -> ctypes.CDLL | None:
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        return driver if driver.cuInit(0) == 0 else None
    return None


def _device(driver: ctypes.CDLL, ordinal: int) -> CudaDevice:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    driver.cuDeviceGetName(name, _NAME_BYTES, device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return CudaDevice(name.value.decode("utf-8", "replace"), (major.value, minor.value))
