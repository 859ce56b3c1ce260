// Integers from numbers t_i modulo small p_i, in integers. The constants are those that crt.cu lists.
//
// C = sum of t_i P / p_i - z P with 0 <= t_i <= p_i congruent to r_i q_i, z the integer nearest to the sum of t_i /
// p_i. The numbers of a group are put together first: v = sum of t_i OTHERS_i <= 3 G < 2^26, C = sum of v P / G - z P.
// The sum of v / G <= N <= 48 in fp64 errs by less than 2^-44, so that z is right if 2|C| < P (1 - 2^-40). Sums of v
// times a limb stay below 16 · 2^58.
#pragma once
#include "exact_rounding.cuh"

// The digits of C, of base 2^32 with carries; `t` returns the number of a modulus.
template <class F> FPEMU_FUNCTION void combine(s64 (&limb)[LIMBS], const F& t) {
  u64 sums[LIMBS];
  double share = 0;
  FPEMU_UNROLL
  for (int l = 0; l < LIMBS; l++) sums[l] = 0;
  FPEMU_UNROLL
  for (int g = 0; g < GROUPS; g++) {
    u32 v = 0;
    FPEMU_UNROLL
    for (int i = 3 * g; i < smaller(3 * g + 3, N); i++) v += t(i) * OTHERS[i];
    share = fused(fp64_of(0x4330000000000000ull | v) - 4503599627370496.0, SHARE[g], share);  // 2^52 + v - 2^52
    FPEMU_UNROLL
    for (int l = 0; l < LIMBS; l++) sums[l] += (u64)v * WEIGHT[l][g];
  }
  const u32 z = (u32)fp64_code(share + 6755399441055744.0);  // 1.5 · 2^52: the nearest integer in the low bits
  FPEMU_UNROLL
  for (int l = 0; l < LIMBS; l++) limb[l] = (s64)sums[l] - (s64)((u64)z * PRODUCT[l]);
}

struct Limbs {  // the same, one after another
  s64 limb[LIMBS];
  int index;
  FPEMU_FUNCTION void reset() { index = 0; }
  FPEMU_FUNCTION s64 next() { return limb[index++]; }
};

template <bool NARROW> struct Result {
  typedef Binary64 Format;
  typedef double Real;
};
template <> struct Result<true> {
  typedef Binary32 Format;
  typedef float Real;
};
