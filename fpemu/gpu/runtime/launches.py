"""Kernel launches: packed parameters, launch attributes, tensor maps for TMA.

`cuda.core.launch` packs scalars and buffers again at every call, and takes no structs, the parameters of most kernels
here. A `Launch` packs once and is patched in place.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.runtime import device, native, recording
from fpemu.gpu.runtime.compiler import check

_WRONG_CONTEXT = ("CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_INVALID_HANDLE")
_ANY = 1 << 40  # an address for tensor maps whose own is not known yet
_TYPES = {1: "UINT8", 2: "FLOAT16", 4: "FLOAT32"}  # by bytes: TMA copies elements, whatever they represent


def pack(value: Any) -> NDArray[Any]:
    """Copy one kernel parameter into separate memory.

    Parameters
    ----------
    value : buffer, NumPy scalar, one-element array, int or float
        A buffer is passed by its ``pointer``, a NumPy value in its own type (structs too), a Python int as a
        `long long`, a float as a `double`.
    """
    value = getattr(value, "pointer", value)
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value).reshape(-1)
    if isinstance(value, float):
        return np.array([value], np.float64)
    return np.array([value], np.uint64 if value > np.iinfo(np.int64).max else np.int64)


def configuration(
    grid: int | tuple[int, ...], block: int | tuple[int, ...], shared: int, cluster: int, overlap: bool
) -> Any:
    """Return a launch's CUlaunchConfig; the parameters are those of `fpemu.gpu.runtime.modules.Module.launch`."""
    cuda = device.driver()
    config, attributes, kinds = cuda.CUlaunchConfig(), [], cuda.CUlaunchAttributeID
    for name, size in (("gridDim", grid), ("blockDim", block)):
        sizes = size if isinstance(size, tuple) else (size,)
        for axis, length in zip("XYZ", (*sizes, 1, 1), strict=False):
            setattr(config, name + axis, int(length))
    config.sharedMemBytes = shared
    if cluster > 1:
        attribute = cuda.CUlaunchAttribute()
        attribute.id, value = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, cuda.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
        attribute.value = value
        attributes.append(attribute)
    if overlap:
        attribute = cuda.CUlaunchAttribute()
        attribute.id, value = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, cuda.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        attribute.value = value
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


class Launch:
    """A kernel with its launch configuration and packed arguments, from `fpemu.gpu.runtime.modules.Module.prepare`.

    `queue` costs one driver call: nothing is imported, checked, packed or synchronised. During a recording it adds the
    launch to the recording instead (`fpemu.gpu.runtime.recording`).

    Attributes
    ----------
    name : str
        The kernel.
    arguments : list of array
        The parameters in their order, one element each, in the memory that the driver reads at every launch:
        ``launch.arguments[0][0] = pointer`` changes the next one. The caller keeps the memory behind it alive.
    """

    def __init__(self, function: Any, config: Any, args: tuple[Any, ...], keep: object = None, name: str = "") -> None:
        self.name, self.arguments = name, [pack(value) for value in args]
        self._function, self._config, self._stream, self._keep = function, config, 0, (args, keep)
        self._addresses = np.array([value.ctypes.data for value in self.arguments], np.uint64)
        self._address, self._launch = int(self._addresses.ctypes.data), device.bindings().cuLaunchKernelEx

    def queue(self, stream: int = 0) -> None:
        """Queue the kernel on a stream, given by its handle; 0: the default stream."""
        if (record := recording.active()) is not None:
            record.steps.append(self)
        else:
            self.issue(stream)

    def row(self) -> tuple[int, int, int, int]:
        """Return the launch as a row of `fpemu.gpu.runtime.native`, whose code sets the stream."""
        return native.LAUNCH, int(self._config.getPtr()), int(self._function), self._address

    def issue(self, stream: int = 0) -> None:
        """Queue the kernel, also during a recording."""
        if stream != self._stream:
            self._config.hStream = self._stream = stream
        (status,) = self._launch(self._config, self._function, self._address, 0)
        if status:
            if status.name in _WRONG_CONTEXT:  # another thread, or another library has changed the context
                with device.entered():
                    (status,) = self._launch(self._config, self._function, self._address, 0)
            check((status,))


def tensor_map(
    pointer: int, itemsize: int, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> NDArray[np.uint64]:
    """Encode a tensor for TMA, to be passed to a kernel as a `__grid_constant__` parameter (hopper.cuh: TensorMap).

    Parameters
    ----------
    pointer : int
        A multiple of 16; the placeholder of a recording becomes the map's first word.
    itemsize : int
        Bytes of an element.
    shape : tuple of int
        The last axis is contiguous; elements of a tile outside of the shape are zero.
    strides : tuple of int
        Bytes between consecutive indices of all axes but the last, multiples of 16.
    box : tuple of int
        Shape of a tile, without leading axes of length 1; its rows are 128 bytes, swizzled for wgmma.
    """
    cuda = device.driver()
    tile = (*(1,) * (len(shape) - len(box)), *box)
    recorded = recording.region(pointer) is not None
    address = _ANY if recorded else pointer
    encoded = check(
        cuda.cuTensorMapEncodeTiled(
            getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[itemsize]}"),
            len(shape),
            address,
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
    words = np.frombuffer(ctypes.string_at(encoded.getPtr(), 128), np.uint64).copy()
    if recorded:
        if int(words[0]) != _ANY:
            raise recording.NotRecordableError("a tensor map whose first word is not the tensor's address")
        words[0] = pointer
    return words
