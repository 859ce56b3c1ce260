// What becomes of the exact products of slices: sums in fp64 or fp32 in a stated order, or one exact sum; and the end
// of a GEMM, with what NaN and infinities reach.
#pragma once
#include "exact_rounding.cuh"

enum Product { INT32_PRODUCT, FP32_PRODUCT, FP64_PRODUCT };

FPEMU_FUNCTION double product_at(const void* T, int type, s64 at) {
  return type == INT32_PRODUCT  ? (double)((const int*)T)[at]
         : type == FP32_PRODUCT ? (double)((const float*)T)[at]
                                : ((const double*)T)[at];
}

// An integer as fp64: 2^52 + 2^31 + x is a matter of bits.
FPEMU_FUNCTION double wide(int x) {
  return fp64_of(0x4330000000000000ull | ((u32)x ^ 0x80000000u)) - 4503601774854144.0;
}
FPEMU_FUNCTION double wide(float x) { return (double)x; }
FPEMU_FUNCTION double wide(double x) { return x; }

// sum + x factor, where x factor is exact; for fp32 it is rounded first.
FPEMU_FUNCTION double accumulated(double sum, double x, double factor) { return fused(x, factor, sum); }
FPEMU_FUNCTION float accumulated(float sum, double x, double factor) { return sum + (float)(x * factor); }

// A matrix of the caller's: numbers from one row, and one column, to the next. Of a complex column, j is even for the real
// part.
struct View {
  void* at;
  s64 row, column;
  int narrow;  // float, else double
  int complex;
};
FPEMU_FUNCTION s64 place_of(const View& X, s64 i, s64 j) {
  return i * X.row + (X.complex ? (j >> 1) * X.column + (j & 1) : j * X.column);
}
FPEMU_FUNCTION double read(const View& X, s64 i, s64 j) {
  const s64 at = place_of(X, i, j);
  return X.narrow ? (double)((const float*)X.at)[at] : ((const double*)X.at)[at];
}
FPEMU_FUNCTION void write(const View& X, s64 i, s64 j, u64 code) {
  const s64 at = place_of(X, i, j);
  if (X.narrow) ((u32*)X.at)[at] = (u32)code;
  else ((u64*)X.at)[at] = code;
}

// Products of one exact sum: T number t has the weight 2^offset of the sum's unit; offsets do not fall.
struct Terms {
  const void* T;
  s64 stride, at;  // from one T to the next; of the entry
  const int* offsets;
  int type, count, index, place;
  s64 later;
  FPEMU_FUNCTION void reset() { index = 0, place = 0, later = 0; }
  FPEMU_FUNCTION s64 next() {
    s64 now = later;
    later = 0;
    for (; index < count && offsets[index] >> 5 == place; index++) {
      const s64 x = (s64)product_at(T, type, at + index * stride);  // below 2^53
      const int bit = offsets[index] & 31;
      const s64 low = (s64)((u64)(x & 0xffffffff) << bit), high = x >> 32;  // x = low part + 2^32 high part
      now += low & 0xffffffff;
      later += ((u64)low >> 32) + (high << bit);
    }
    place++;
    return now;
  }
};

// What comes after the sum: D = alpha T + beta C.
struct End {
  View A, B, C, D;
  double alpha, beta, alpha_imaginary, beta_imaginary;
  const int *special_rows, *special_columns;  // null: none
  u64 nan;
  int K, has_c;  // K: numbers of a row of A
};

// A·B where a row of A or a column of B has a NaN or an infinity: by the signs alone. Complex matrices stand for real
// ones, in which a column of A is Re a, the next one -Im a, and a block of B is ((Re b, Im b), (Im b, -Re b)).
FPEMU_FUNCTION double reached(const End& end, s64 i, s64 j) {
  const bool complex = end.D.complex;
  double sum = 0;
  for (int k = 0; k < end.K; k++) {
    double x = read(end.A, i, k), y = complex ? read(end.B, k >> 1, (j & ~1ll) | ((k ^ j) & 1)) : read(end.B, k, j);
    if (!is_special(fp64_code(x))) x = x > 0 ? 1 : x < 0 ? -1 : 0;
    if (!is_special(fp64_code(y))) y = y > 0 ? 1 : y < 0 ? -1 : 0;
    sum += complex && k & 1 && !(j & 1) ? -(x * y) : x * y;
  }
  return sum;
}
FPEMU_FUNCTION bool is_reached(const End& end, s64 i, s64 j) {
  if (end.D.complex) j >>= 1;
  return (end.special_rows && end.special_rows[i]) || (end.special_columns && end.special_columns[j]);
}
FPEMU_FUNCTION bool finite(double x) { return !is_special(fp64_code(x)); }

// alpha · T + beta · C, one rounding an operation in the result's format, and the code of every NaN.
FPEMU_FUNCTION u64 finished(const End& end, double T, double C) {
  if (end.D.narrow) {
    float t = end.alpha == 1 ? (float)T : (float)end.alpha * (float)T;
    if (end.has_c) {
      const float c = (float)end.beta * (float)C;
      t = t + c;
    }
    return t != t ? end.nan : fp32_code(t);
  }
  double t = end.alpha == 1 ? T : end.alpha * T;
  if (end.has_c) {
    const double c = end.beta * C;
    t = t + c;
  }
  return t != t ? end.nan : fp64_code(t);
}

// The same where the sum was to be rounded once but something is NaN or infinite: only signs count there. T has the
// sign of the finite entries of A·B, and counts where alpha is not finite.
FPEMU_FUNCTION u64 finished_special(const End& end, double T, double C) {
  if (finite(end.alpha) && finite(T)) T = 0;
  if (finite(end.beta) && finite(C)) C = 0;
  return finished(end, T, C);
}

// The code of an entry of alpha · S + beta · C rounded once, NaN and infinities as they come; `plain`: alpha is a power of
// two, not negative, and nothing is added.
template <class Digits>
FPEMU_FUNCTION u64 round_entry(const End& end, s64 i, s64 j, Digits& digits, int count, int exponent, bool plain) {
  const bool odd = is_reached(end, i, j), scalars = finite(end.alpha) && finite(end.beta);
  if (plain && !odd) {
    Stream<s64> sum;
    digits.reset();
    for (int k = 0; k < count; k++) sum.feed(digits.next());
    exponent += significand(end.alpha).e + 52;
    return end.D.narrow ? sum.template round<Binary32>(exponent) : sum.template round<Binary64>(exponent);
  }
  const double C = end.has_c ? read(end.C, i, j) : 0;
  if (scalars && !odd && finite(C)) {
    const double beta = end.has_c ? end.beta : 0;
    return end.D.narrow ? round_combined<Binary32>(digits, count, exponent, end.alpha, beta, C)
                        : round_combined<Binary64>(digits, count, exponent, end.alpha, beta, C);
  }
  double T = odd ? reached(end, i, j) : 0;
  if (!odd && !scalars) {
    Stream<s64> sum;
    digits.reset();
    for (int k = 0; k < count; k++) sum.feed(digits.next());
    exponent += 1023;  // as in the NumPy reference: the factor 2^1023 keeps most nonzero sums from rounding to zero
    const double t = end.D.narrow ? (double)fp32_of((u32)sum.template round<Binary32>(exponent))
                                  : fp64_of(sum.template round<Binary64>(exponent));
    T = t > 0 ? 1 : t < 0 ? -1 : 0;
  }
  return finished_special(end, T, C);
}
