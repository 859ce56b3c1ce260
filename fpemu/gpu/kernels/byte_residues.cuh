// Residues of integers modulo p <= 256 as bytes in [0, p), by three instructions: dp4a, FMA, multiply-add.
//
// Before this file come struct Reduction constants in __constant__ arrays.
//
// An integer with the bytes x_j is congruent to v = sum of x_j (256^j mod p), each factor in [-p/2, p/2]: |v| < 2^17 a
// word of four bytes. `start` + v are the bits of a float in [2^23, 2^24), y; the FMA y / p + center, in [1.5 · 2^23,
// 2^24), rounds the quotient to the nearest integer, which is then in the low bits. fpemu.gpu.errorfree.hopper chooses
// start, inverse and center so that it is the right one for all v, and that the low byte of y - quotient · p is v mod p.
#pragma once
#include "bit_patterns.cuh"

#ifndef __CUDACC__
#define __constant__ static const
#endif

struct Reduction {
  u32 weights[4];  // 256^j mod p as signed bytes, four a word
  int start;
  float inverse, center;
  int minus_p;
};

// sum + the four bytes of x times the signed bytes of w.
FPEMU_FUNCTION int byte_sum(u32 x, u32 w, int sum) {
#ifdef __CUDACC__
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(w));
#else
  for (int j = 0; j < 4; j++) sum += (int)(x >> 8 * j & 255) * (signed char)(w >> 8 * j & 255);
#endif
  return sum;
}
// The number whose low byte is the residue, from `start` + v.
FPEMU_FUNCTION int rest_of(int y, const Reduction& of) {
#ifdef __CUDACC__
  const float quotient = __fmaf_rn(fp32_of((u32)y), of.inverse, of.center);
#else
  const float quotient = __builtin_fmaf(fp32_of((u32)y), of.inverse, of.center);
#endif
  return (int)((u32)y + fp32_code(quotient) * (u32)of.minus_p);
}
FPEMU_FUNCTION u32 pack_bytes(int a, int b, int c, int d) {  // the low bytes
#ifdef __CUDACC__
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
#else
  return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (u32)(d & 255) << 24;
#endif
}
