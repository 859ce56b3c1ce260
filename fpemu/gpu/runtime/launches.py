"""How the driver wants to be told of a launch: parameters, a configuration with its attributes, tensors for TMA."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.runtime.compiler import check

_TYPES = {1: "UINT8", 2: "FLOAT16", 4: "FLOAT32"}  # of TMA, by bytes: nothing but the size matters to a copy


def pack(value: Any) -> NDArray[Any]:
    """One parameter of a kernel: a NumPy value as it is, a Python int as a `long long`, a float as a `double`."""
    if isinstance(value, np.ndarray | np.generic):
        return np.ascontiguousarray(value).reshape(-1)
    if isinstance(value, float):
        return np.array([value], np.float64)
    return np.array([value], np.uint64 if value > np.iinfo(np.int64).max else np.int64)


def configuration(
    cuda: Any, grid: int | tuple[int, ...], block: int | tuple[int, ...], shared: int, cluster: int, overlap: bool
) -> Any:
    """A launch's configuration for cuLaunchKernelEx; parameters as those of `fpemu.gpu.runtime.device.Module.launch`."""
    config, attributes, kinds = cuda.CUlaunchConfig(), [], cuda.CUlaunchAttributeID
    for name, sizes in (("gridDim", grid), ("blockDim", block)):
        for axis, size in zip("XYZ", _three(sizes), strict=True):
            setattr(config, name + axis, size)
    config.sharedMemBytes = shared
    if cluster > 1:
        value = cuda.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
        attributes.append((kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value))
    if overlap:
        value = cuda.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        attributes.append((kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value))
    made = []
    for kind, value in attributes:
        attribute = cuda.CUlaunchAttribute()
        attribute.id, attribute.value = kind, value
        made.append(attribute)
    config.attrs, config.numAttrs = made, len(made)
    return config


def _three(size: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = tuple(int(s) for s in (size if isinstance(size, tuple) else (size,)))
    return (*sizes, *(1,) * (3 - len(sizes)))


def tensor_map(
    cuda: Any, pointer: int, itemsize: int, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> NDArray[np.uint64]:
    """A tensor as TMA wants it, to be passed to a kernel as a `__grid_constant__` parameter (hopper.cuh: TensorMap).

    Parameters
    ----------
    cuda : module
        cuda.bindings.driver, in the GPU's context.
    pointer : int
        A multiple of 16.
    itemsize : int
        Bytes of an element.
    shape : tuple of int
        The last axis lies contiguous; what a tile has outside of the shape is zero.
    strides : tuple of int
        Bytes from one place to the next on all axes but the last, multiples of 16.
    box : tuple of int
        The tile, one place on the first axes where it has fewer; its lines are 128 bytes, swizzled as wgmma reads them.
    """
    tile = (*(1,) * (len(shape) - len(box)), *box)
    made = check(
        cuda.cuTensorMapEncodeTiled(
            getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[itemsize]}"),
            len(shape),
            pointer,
            [cuda.cuuint64_t(n) for n in shape[::-1]],
            [cuda.cuuint64_t(n) for n in strides[::-1]],
            [cuda.cuuint32_t(n) for n in tile[::-1]],
            [cuda.cuuint32_t(1)] * len(shape),
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return np.frombuffer(ctypes.string_at(made.getPtr(), 128), np.uint64)
