// One number of the scheme `staged-int8`: the scale of its row, its words, and the unscaling of a sum of products.
//
// For the GPU and, compared with fpemu.schemes.staged_int8 there, for a processor (GCC or Clang).
#pragma once
#include "integers.cuh"

#ifdef __CUDACC__
FPEMU_FUNCTION u32 code_of(float x) { return __float_as_uint(x); }
FPEMU_FUNCTION float float_of(u32 code) { return __uint_as_float(code); }
FPEMU_FUNCTION double power_of_two(int e) { return __longlong_as_double((s64)(1023 + e) << 52); }
FPEMU_FUNCTION float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
FPEMU_FUNCTION u16 half_code(float x) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
FPEMU_FUNCTION float half_value(u16 h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
}
FPEMU_FUNCTION float reciprocal(float x) {  // nearly
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FPEMU_FUNCTION u32 last_bytes(u32 a, u32 b, u32 c, u32 d) {
  return __byte_perm(__byte_perm(a, b, 0x40), __byte_perm(c, d, 0x40), 0x5410);
}
#else
#include <math.h>
FPEMU_FUNCTION u32 code_of(float x) {
  u32 c;
  __builtin_memcpy(&c, &x, 4);
  return c;
}
FPEMU_FUNCTION float float_of(u32 code) {
  float x;
  __builtin_memcpy(&x, &code, 4);
  return x;
}
FPEMU_FUNCTION double power_of_two(int e) { return ldexp(1.0, e); }
FPEMU_FUNCTION float fused(float x, float y, float z) { return fmaf(x, y, z); }
FPEMU_FUNCTION u16 half_code(float x) {
  _Float16 h = (_Float16)x;
  u16 c;
  __builtin_memcpy(&c, &h, 2);
  return c;
}
FPEMU_FUNCTION float half_value(u16 c) {
  _Float16 h;
  __builtin_memcpy(&h, &c, 2);
  return (float)h;
}
FPEMU_FUNCTION float reciprocal(float x) { return 1.0f / x; }
FPEMU_FUNCTION u32 last_bytes(u32 a, u32 b, u32 c, u32 d) {
  return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24;
}
#endif

// 16 e + j: the scale j 2^e, the largest with j of 8 to 15 that keeps `largest` (the code of an fp32 number) below
// 2^13.
FPEMU_FUNCTION int scale_for(u32 largest) {
  if (!largest) return 8;
  const int places = largest >> 23 ? 0 : 24 - bit_length(largest);  // a subnormal number made normal
  const u32 significand = largest >> 23 ? (largest & 0x7FFFFF) | 0x800000 : largest << places;
  const int exponent = largest >> 23 ? (int)(largest >> 23) : 1 - places;  // with a bias of 127
  return (136 - exponent) * 16 + (int)(0x7FFFFFF / significand);
}

// The scale in two factors: e lies in -118 ... 158, beyond fp32's exponents.
struct Scale {
  float up, factor;
};
FPEMU_FUNCTION Scale scale_of(int scale) {
  const int e = scale >> 4, e1 = smaller(e, 100);
  return {float_of((u32)(e1 + 127) << 23), (float)(scale & 15) * float_of((u32)(e - e1 + 127) << 23)};
}

struct Numbers {
  u16 h, r;       // fp16
  u32 high, low;  // integers, as last bytes
};

// The nearest integer to x, not beyond 127, as the last byte of 1.5 2^23 + x.
FPEMU_FUNCTION u32 byte_of(float x) { return code_of(fmaxf(fminf(x, 127.0f), -127.0f) + 12582912.0f); }

FPEMU_FUNCTION Numbers split(float x, const Scale& scale) {
  const float near = x * scale.up;  // exact, where anything is left of x
  Numbers n;
  n.h = half_code(near * scale.factor);
  const float value = half_value(n.h), left = fused(near, scale.factor, -value);  // exact
  n.r = half_code(left), n.high = byte_of(value * 0x1p-6f), n.low = byte_of(left * 64.0f);
  return n;
}

// x / (j k) · 2^e, rounded once, for j and k of 8 to 15; NEAR: neither 2^e nor the result is out of the normal range.
// The quotient is the one to nearest: the reciprocal is (its error is squared), and then the theorem of Markstein
// holds; tests/schemes/test_staged_int8.py divides all significands. Double needs no care: no quotient by less
// than 2^8 is close to half of a last place of fp32.
template <bool NEAR> FPEMU_FUNCTION float unscaled(float x, float j, float k, float one_by_j, float one_by_k, int e) {
  const float jk = j * k;
  if (!NEAR) return (float)((double)x / (double)jk * power_of_two(e));
  float r = one_by_j * one_by_k;
  r = fused(fused(-jk, r, 1.0f), r, r);
  const float q = x * r;
  return fused(fused(-q, jk, x), r, q) * float_of((u32)(e + 127) << 23);
}
