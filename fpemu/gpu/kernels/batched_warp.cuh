// Fragments of A and B straight from memory, any layout and alignment: for matrices so small that a block in shared
// memory costs more than it saves. Element pairs are those that a register of the instruction holds: k and k + 1.
#pragma once
#include "batched_sizes.cuh"

// Eight by eight halves of a warp, transposed: a lane has two neighbours of a line.
#ifdef __CUDACC__
FPEMU_FUNCTION u32 transposed(u32 x) {
  u32 made;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(made) : "r"(x));
  return made;
}
#else
u32 transposed(u32 x);
#endif

// One element: its parts, each in the low half of a word.
FPEMU_FUNCTION void load_one(u32 (&part)[PARTS], u64 at, s64 plane, bool exists) {
  if (SPLIT) {
    const u32 w = exists ? load4(at) : 0;
    part[0] = w & 0xFFFF, part[PARTS - 1] = w >> 16;
    return;
  }
  FPEMU_UNROLL
  for (int i = 0; i < PARTS; i++) part[i] = exists ? load2(at + i * plane) : 0;
}

// Elements k and k + 1 of a row of A or a column of B, `left` of which are there; `next` bytes lie from one to the
// other.
template <bool ALONG_K, int WIDTH>
FPEMU_FUNCTION void load_pair(u32 (&part)[PARTS], u64 at, s64 next, s64 plane, int left) {
  if (SPLIT) {
    u32 w[2];
    if (ALONG_K && WIDTH >= 8 && left > 1) {
      const uint2 two = load8(at);
      w[0] = two.x, w[1] = two.y;
    } else w[0] = left > 0 ? load4(at) : 0, w[1] = left > 1 ? load4(at + next) : 0;
    part[0] = pick(w[0], w[1], LOWS), part[PARTS - 1] = pick(w[0], w[1], HIGHS);
    return;
  }
  FPEMU_UNROLL
  for (int i = 0; i < PARTS; i++) {
    const u64 own = at + i * plane;
    if (ALONG_K && WIDTH >= 4) part[i] = left > 1 ? load4(own) : left > 0 ? load2(own) : 0;
    else part[i] = (left > 0 ? load2(own) : 0) | (left > 1 ? load2(own + next) : 0) << 16;
  }
}

// The operands of multiply_step from the parts of a pair.
FPEMU_FUNCTION void terms_of(u32 (&term)[TERMS], const u32 (&part)[PARTS], u32 signs) {
  FPEMU_UNROLL
  for (int i = 0; i < PARTS; i++) term[i] = i == PARTS - 1 ? part[i] ^ signs : part[i];
  if (TERMS == 3) term[TERMS - 1] = add_halves(term[0], term[1 % TERMS]);
}
