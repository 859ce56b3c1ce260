// x mod p for x < 2^32: with magic = floor(2^32 / p) the high half of x magic is x / p rounded down, or one less, so
// that 0 <= x - q p < 2p.
#pragma once
#include "integers.cuh"

FPEMU_FUNCTION u32 reduce(u32 x, u32 p, u32 magic) { return x - high_product(x, magic) * p; }
