// The steps of the powers of two of Ozaki scheme II: fpemu.schemes.errorfree.crt, to the same integers.
#pragma once
#include "slices.cuh"

constexpr int SPECIAL = 1 << 20;  // in the place of the exponent of a row or column with a NaN or an Inf

// 2^s as two factors, so that x times both is x 2^s rounded once for any |s| <= 2044: if the first product is subnormal
// the second one is below all numbers.
struct Power {
  double first, second;
  FPEMU_FUNCTION static Power of(int s) { return {power(s >> 1), power(s - (s >> 1))}; }
  FPEMU_FUNCTION double times(double x) const { return x * first * second; }
};

FPEMU_FUNCTION bool finite_code(double x) { return !is_special(fp64_code(x)); }
FPEMU_FUNCTION u32 ceiling(double x) {  // of 0 <= x < 2^32
#ifdef __CUDACC__
  return __double2uint_ru(x);
#else
  return (u32)__builtin_ceil(x);
#endif
}

// An upper bound of a sum of squares of units, from the sums of their bits from 31 on and below, in units of 2^60.
FPEMU_FUNCTION double sum_of_squares(s64 high, s64 low) {
  const double S = weighted((double)high, 31) + (double)low;
  return weighted(S * (1 + 8.881784197001252e-16), -60);  // 2^-50
}

// The largest t with 4^t S <= g 4^h, as `_power` has it.
FPEMU_FUNCTION int room(double S, int h, double g) {
  const Element x = element(fp64_code(S));
  const int exponent = x.m ? x.e + bit_length(size_of(x.m)) : 0, q = (exponent - 1) >> 1;  // frexp's
  return h - q - (x.m && weighted((double)x.m, x.e - 2 * q) > g);
}
