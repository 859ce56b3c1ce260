// The high words h of two fp32 numbers, h of x in the lower half: RNE16, or for the balanced split RZ16 where `second`
// is false (A) and, where it is true (B), RNE16 of x raised away from zero to 11 significant bits.
//
// x - h is exact in fp32 all the same. RZ16 leaves the last bits of x. A raised number is a number of fp16 unless it is
// subnormal there; then h = 0 up to 2^-25, and beyond it both x and h are multiples of 2^-48 and differ by less than
// 2^-24.
//
// Comes after hopper.cuh.
#pragma once

#ifdef __CUDACC__
FPEMU_FUNCTION u32 to_halves_toward_zero(float x, float y) {
  u32 h;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(y), "f"(x));
  return h;
}
#else
FPEMU_FUNCTION u32 to_halves_toward_zero(float x, float y) {
  float g, f;
  const u32 h = to_halves(x, y);
  of_halves(h, g, f);
  return h - (fabsf(g) > fabsf(x)) - ((u32)(fabsf(f) > fabsf(y)) << 16);
}
#endif

// Away from zero to 11 significant bits.
FPEMU_FUNCTION float raised(float x) { return __uint_as_float((__float_as_uint(x) + 0x1fff) & ~0x1fffu); }

template <bool BALANCED> FPEMU_FUNCTION u32 high_words(float x, float y, bool second) {
  if (!BALANCED) return to_halves(x, y);
  return second ? to_halves(raised(x), raised(y)) : to_halves_toward_zero(x, y);
}
