"""What a block of threads makes of D: the tiles that a plan can have, and how many registers and bytes they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

_REGISTERS = 254  # of a thread, by `Tile.registers`; the hardware has 255
_OTHER_REGISTERS = 54  # for addresses and counters
_WORDS_REGISTERS = 26  # the same where words come from memory; a few too many cost less than a smaller tile
_WIDE_REGISTERS = 40  # more of these where words are tf32, whose codes take twice as many
_SHORT_REGISTERS = 16  # and for sums that begin and end within a turn
_STAGES = (3, 2)  # buffers for words that come from memory, best first
BULK_ROW = 128  # bytes of a row that TMA brings
_BARRIERS = 16  # bytes of two barriers
SHAPES = ((256, 128, 64, 64), (128, 128, 64, 32), (128, 64, 32, 32), (64, 64, 32, 16), (32, 32, 16, 16))
"""(M, N, warp_m, warp_n), largest first."""


@dataclass(frozen=True)
class Tile:
    """What a block of threads makes of D, and how.

    Parameters
    ----------
    M, N : int
        Rows and columns of D.
    K : int
        Length in k of the stretch in shared memory.
    warp_m, warp_n : int
        Rows and columns of a warp.
    pieces : int
        In how many pieces the next stretch is fetched, split and stored.
    ahead : int
        How many pieces before it is stored a piece is fetched; 0: while one piece is multiplied.
    blocks : int
        For how many blocks the registers of a multiprocessor have to last.
    pipeline : bool
        Whether the next stretch is fetched while one is multiplied, into a second buffer.
    stages : int
        How many stretches are in shared memory or on their way, if the words come from memory; 0: the loads split.
    bulk : bool
        Whether words are brought by TMA, rows of 128 bytes.
    """

    M: int
    N: int
    K: int
    warp_m: int
    warp_n: int
    pieces: int = 1
    ahead: int = 0
    blocks: int = 1
    pipeline: bool = True
    stages: int = 0
    bulk: bool = False

    def __str__(self) -> str:
        more = f" of words, {self.stages} stages" if self.stages else "" if self.pipeline else " without pipeline"
        return f"{self.M}x{self.N}x{self.K}{more}{' by TMA' if self.bulk else ''}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.M // self.warp_m * (self.N // self.warp_n) * 32

    def registers(self, sums: int, words: int) -> int:
        """About how many a thread needs, for so many sums of each entry of D and words: fp32 sums and fragments of
        32 bytes of k, which most instructions have."""
        fragments = sums * self.warp_m * self.warp_n // 32 + words * (4 + self.warp_n // 4)
        if self.stages:
            return fragments + _WORDS_REGISTERS
        eights = (self.M + self.N) * self.K // 8 // self.threads
        return fragments + 8 * -(-eights // self.pieces) * (1 + self.ahead) + _OTHER_REGISTERS

    def shared(self, words: tuple[int, int], size: int) -> int:
        """Bytes of shared memory for so many words of A and of B, of `size` bytes."""
        rows = words[0] * self.M + words[1] * self.N
        return (self.stages or 1 + self.pipeline) * (rows * self.K * size + _BARRIERS * self.bulk)


def splitting(stretch: int, sums: int, words: tuple[int, int], size: int, short: bool, shared: int) -> list[Tile]:
    """The tiles of kernels that split in their loads, largest first.

    Parameters
    ----------
    stretch : int
        Length in k.
    sums : int
        Of each entry of D.
    words : (int, int)
        Of A and of B, and of how many bytes (`size`).
    short : bool
        Whether some sums begin and end within a turn.
    shared : int
        Bytes of shared memory that a block may have.
    """
    found = []
    more = _WIDE_REGISTERS * (size == 4) + _SHORT_REGISTERS * short
    for M, N, warp_m, warp_n in SHAPES:
        tile = Tile(M, N, stretch, warp_m, warp_n)
        fetches = [side * stretch / (8 * tile.threads) for side in (M, N)]
        if not all(n.is_integer() for n in fetches) or tile.shared(words, size) > shared:
            continue
        for pieces in range(1, int(sum(fetches)) + 1):
            tile = replace(tile, pieces=pieces)
            if tile.registers(sums, max(words)) + more <= _REGISTERS:
                found.append(tile)
                break
    return found


def copying(
    stretches: Sequence[int], sums: int, words: tuple[int, int], size: int, shared: int, bulk: bool
) -> list[Tile]:
    """The tiles of kernels that find words in memory, largest first; parameters as those of `splitting`.

    A stretch is the first of `stretches` that fits. bulk: TMA brings the words, where it can.
    """
    found = []
    for M, N, warp_m, warp_n in SHAPES:
        known = [
            Tile(M, N, K, warp_m, warp_n, stages=stages, bulk=bulk and K * size == BULK_ROW)
            for K in stretches
            for stages in _STAGES
        ]
        fitting = [
            tile
            for tile in known
            if tile.shared(words, size) <= shared
            and tile.registers(sums, max(words)) <= _REGISTERS
            and M * tile.K * size % (16 * tile.threads) == N * tile.K * size % (16 * tile.threads) == 0
        ]
        found += fitting[:1]
    return found
