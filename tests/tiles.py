"""The tiles of the kernels of split schemes on ``mma.sync``, and the local memory of compiled kernels."""

from __future__ import annotations

from struct import unpack_from

from fpemu.gpu.gemm.mma_sync import fused


def tiles_of(kernel):
    """The tiles that a kernel could have, largest first; none for the kernels of any order."""
    if not isinstance(kernel, fused.FusedKernel):
        return []
    return fused.tiles(kernel.lowering, kernel.row, kernel.how, words=kernel.tile.stages > 0)


def frames(cubin):
    """Bytes of local memory that each kernel's threads have, from the attributes in a cubin (EIATTR_FRAME_SIZE)."""
    assert cubin[:4] == b"\x7fELF"
    start, (size, count, names) = unpack_from("<Q", cubin, 40)[0], unpack_from("<HHH", cubin, 58)
    heads = [unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    sizes = []
    for name, _, _, _, at, length in heads:
        end = at + length if cubin[heads[names][4] + name :].startswith(b".nv.info\0") else at
        while at < end:
            form, attribute, extra = unpack_from("<BBH", cubin, at)
            if (form, attribute) == (4, 0x11):
                sizes.append(unpack_from("<I", cubin, at + 8)[0])
            at += 4 + (extra if form == 4 else 0)
    return sizes
