// The arithmetic of a block on carriers: floating-point numbers that hold the operands' values exactly, for the sixteen
// outputs of a thread at once. The CUDA form of fpemu.mma.compiled, where the same conditions are derived:
//
//   truncated   fp64: products of 24-bit numbers, their truncation and the sum of 65 such terms are exact (F <= 35).
//               fp32 and int32, for narrow operands and fp32 results toward zero: see NARROW.
//   exact       fp64 with the error of each addition; where one is not zero, again in fixed point (exact.cuh).
//   scaled      fp64, as truncated; the sums of 16 products of 4-bit numbers in fp32.
//   cdna3       fp64. flushed and fma: the processor's own operations, each rounded to nearest.
#pragma once
#include "carrier.cuh"
#include "exact.cuh"
#include "scaled.cuh"

template <class E> struct alignas(SIDE * sizeof(E)) Four {
  E at[SIDE];
};  // one access
template <class E> FPEMU_FUNCTION Four<E> four(const E* x) { return *(const Four<E>*)x; }

// Which k of the block a sum runs over, as its number q counts up.
template <int FIRST, int STEP> struct Every {
  static FPEMU_FUNCTION constexpr int at(int q) { return FIRST + q * STEP; }
};
template <int TURN> struct Turn {  // k mod 4 in {0, 1}, or in {2, 3}
  static FPEMU_FUNCTION constexpr int at(int q) { return 4 * (q / 2) + q % 2 + 2 * TURN; }
};

// The largest exponent of the products of each output, in halves of words for two columns.
struct Highest {
  u32 word[SIDE][SIDE / 2];
  FPEMU_FUNCTION int at(int r, int c) const { return (s16)(word[r][c / 2] >> 16 * (c % 2)); }
};

template <int ROW, int LENGTH, class K> FPEMU_FUNCTION Highest highest(const s16* ea, const s16* eb) {
  Highest result;
  FPEMU_UNROLL
  for (int r = 0; r < SIDE; r++) FPEMU_UNROLL
  for (int c = 0; c < SIDE / 2; c++) result.word[r][c] = (2 * NO_EXPONENT & 0xFFFF) * 0x10001u;
  FPEMU_SOME(unroll 8)
  for (int q = 0; q < LENGTH; q++) {
    const Four<s16> x = four(ea + K::at(q) * ROW), y = four(eb + K::at(q) * ROW);
    FPEMU_UNROLL
    for (int c = 0; c < SIDE / 2; c++) {
      const u32 two = (u32)(unsigned short)y.at[2 * c] | (u32)(unsigned short)y.at[2 * c + 1] << 16;
      FPEMU_UNROLL
      for (int r = 0; r < SIDE; r++)
        result.word[r][c] = add_max((unsigned short)x.at[r] * 0x10001u, two, result.word[r][c]);
    }
  }
  return result;
}

// ---- truncated

// Round a float64 number once to D; `SIGNED`: zeros keep their sign, else all are +0.
template <class S, bool SIGNED> FPEMU_FUNCTION float round_carrier(double v) {
  typedef typename S::D D;
  const int quantum = smaller(larger(exponent_of(v), D::EMIN), D::EMAX + 1) - S::FRACTION_BITS;
  double r;
  if (S::NEAREST) {
    const double magic = 1.5 * power(52 + quantum);  // its unit is the quantum: the sum rounds to nearest even there
    r = (v + magic) - magic;
  } else {
    r = cut(v * power(-quantum)) * power(quantum);
  }
  if (magnitude(r) >= power(D::EMAX + 1)) r = with_sign(infinite(), r);
  return (float)(SIGNED ? with_sign(r, v) : r + 0.0);
}

template <class T> struct ToNearest {
  typedef T D;
  static constexpr bool NEAREST = true;
  static constexpr int FRACTION_BITS = T::FRACTION;
};

template <class S, int LENGTH, class K>
FPEMU_FUNCTION void truncated_double(const float* a, const float* b, const s16* ea, const s16* eb,
                                     float (&acc)[SIDE][SIDE]) {
  constexpr int ROW = Carrier<S>::ROW, FLOOR = S::E0 == NO_FLOOR ? -400 : S::E0;  // -400: below every exponent
  const Highest top = highest<ROW, LENGTH, K>(ea, eb);
  double scale[SIDE][SIDE], sum[SIDE][SIDE];
  FPEMU_EACH(r, c) {
    const int ec = acc[r][c] != 0 ? larger(exponent_of(acc[r][c]), S::D::EMIN) : FLOOR;
    scale[r][c] = power(S::F - larger(larger(top.at(r, c), FLOOR), ec));
    sum[r][c] = cut((double)acc[r][c] * scale[r][c]);
  }
  FPEMU_SOME(unroll 2)
  for (int q = 0; q < LENGTH; q++) {
    const Four<float> x = four(a + K::at(q) * ROW), y = four(b + K::at(q) * ROW);
    FPEMU_EACH(r, c) sum[r][c] += cut((double)x.at[r] * (double)y.at[c] * scale[r][c]);
  }
  FPEMU_EACH(r, c) {
    const double unit = double_of((2046ll << 52) - bits_of(scale[r][c]));  // its reciprocal
    acc[r][c] = round_carrier<S, false>(sum[r][c] * unit);
  }
}

template <class S>
FPEMU_FUNCTION void truncated_single(const float* a, const float* b, const s16* ea, const s16* eb,
                                     float (&acc)[SIDE][SIDE]) {
  constexpr int ROW = Carrier<S>::ROW, LOWEST = S::A::EMIN + S::B::EMIN;
  constexpr bool SHORT = (s64)(4 * S::BLOCK + 2) << S::F < 1ll << 31;  // with the accumulator's term too
  const Highest top = highest<ROW, S::BLOCK, Every<0, 1>>(ea, eb);
  float scale[SIDE][SIDE];
  int sum[SIDE][SIDE];
  FPEMU_EACH(r, c) {
    const int e = larger(larger(top.at(r, c), LOWEST), exponent_of(acc[r][c]));
    scale[r][c] = float_of((127 + S::F - e) << 23);
    sum[r][c] = 0;
  }
  FPEMU_SOME(unroll 8)
  for (int q = 0; q < S::BLOCK; q++) {
    const Four<float> x = four(a + q * ROW), y = four(b + q * ROW);
    FPEMU_EACH(r, c) sum[r][c] += (int)(x.at[r] * y.at[c] * scale[r][c]);
  }
  FPEMU_EACH(r, c) {
    const int term = (int)(acc[r][c] * scale[r][c]);
    const float total = SHORT ? toward_zero(sum[r][c] + term) : toward_zero((s64)sum[r][c] + term);
    const float unit = float_of((254 << 23) - bits_of(scale[r][c]));
    // every product zero: c has no bits below its own unit, and a zero is +0
    acc[r][c] = top.at(r, c) >= LOWEST ? total * unit : acc[r][c] + 0.0f;
  }
}

// fp8 through half precision: two blocks from zero, then c by one rounding; fp16 by way of fp32, which is one rounding.
template <class S>
FPEMU_FUNCTION void via_half_carrier(const float* a, const float* b, const s16* ea, const s16* eb,
                                     float (&acc)[SIDE][SIDE]) {
  float part[SIDE][SIDE];
  FPEMU_EACH(r, c) part[r][c] = 0;
  truncated_double<S, S::BLOCK / 2, Turn<0>>(a, b, ea, eb, part);
  truncated_double<S, S::BLOCK / 2, Turn<1>>(a, b, ea, eb, part);
  FPEMU_EACH(r, c) {
    const float sum = acc[r][c] + part[r][c];
    acc[r][c] = S::D::P == 24 ? sum : round_carrier<ToNearest<typename S::D>, true>((double)sum);
  }
}

// ---- block-scaled: the scales lie behind the operands of a block

template <class S>
FPEMU_FUNCTION void scaled_carrier(const float* a, const float* b, const s16* ea, const s16* eb,
                                   float (&acc)[SIDE][SIDE]) {
  constexpr int ROW = Carrier<S>::ROW, FLOOR = S::E0 == NO_FLOOR ? -600 : S::E0;  // -600: below every exponent
  const Highest top = highest<ROW, S::BLOCK, Every<0, 1>>(ea, eb);
  const Four<float> u = four(a + S::BLOCK * ROW), v = four(b + S::BLOCK * ROW);
  double scale[SIDE][SIDE], unit[SIDE][SIDE], sum[SIDE][SIDE];
  FPEMU_EACH(r, c) {
    const int shift = exponent_of(u.at[r]) + exponent_of(v.at[c]);
    const int ec = acc[r][c] != 0 ? larger(exponent_of(acc[r][c]), S::D::EMIN) : FLOOR;
    const int e = larger(larger(top.at(r, c) + shift, FLOOR), ec);
    scale[r][c] = power(S::F - e + shift), unit[r][c] = power(e - S::F);
    sum[r][c] = cut((double)acc[r][c] * power(S::F - e)) + (double)u.at[r] * (double)v.at[c] * 0.0;  // NaN, or a zero
  }
  FPEMU_SOME(unroll 2)
  for (int q = 0; q < S::BLOCK; q++) {
    const Four<float> x = four(a + q * ROW), y = four(b + q * ROW);
    FPEMU_EACH(r, c) sum[r][c] += cut((double)x.at[r] * (double)y.at[c] * scale[r][c]);
  }
  FPEMU_EACH(r, c) acc[r][c] = round_carrier<S, false>(sum[r][c] * unit[r][c]);
}

template <class S>
FPEMU_FUNCTION void scaled_groups_carrier(const float* a, const float* b, float (&acc)[SIDE][SIDE]) {
  constexpr int ROW = Carrier<S>::ROW, GROUPS = S::BLOCK / EXACT_PRODUCTS, FLOOR = S::E0 == NO_FLOOR ? -600 : S::E0;
  float part[GROUPS][SIDE][SIDE];
  int top[SIDE][SIDE];
  FPEMU_EACH(r, c) top[r][c] = acc[r][c] != 0 ? larger(larger(exponent_of(acc[r][c]), S::D::EMIN), FLOOR) : FLOOR;
  FPEMU_UNROLL
  for (int g = 0; g < GROUPS; g++) {
    const int at = (S::BLOCK + g * EXACT_PRODUCTS / S::SCALE_BLOCK) * ROW;
    const Four<float> u = four(a + at), v = four(b + at);
    FPEMU_EACH(r, c) part[g][r][c] = 0;
    FPEMU_SOME(unroll 4)
    for (int q = g * EXACT_PRODUCTS; q < (g + 1) * EXACT_PRODUCTS; q++) {
      const Four<float> x = four(a + q * ROW), y = four(b + q * ROW);
      FPEMU_EACH(r, c) part[g][r][c] += x.at[r] * y.at[c];  // exact: multiples of a quarter, below 2^10
    }
    FPEMU_EACH(r, c) {
      const int e = larger(exponent_of(u.at[r]), S::SCALE_EMIN) + larger(exponent_of(v.at[c]), S::SCALE_EMIN);
      if (part[g][r][c] != 0 && u.at[r] != 0 && v.at[c] != 0) top[r][c] = larger(top[r][c], e);
    }
  }
  double sum[SIDE][SIDE];
  FPEMU_EACH(r, c) sum[r][c] = cut((double)acc[r][c] * power(S::F - top[r][c]));
  FPEMU_UNROLL
  for (int g = 0; g < GROUPS; g++) {
    const int at = (S::BLOCK + g * EXACT_PRODUCTS / S::SCALE_BLOCK) * ROW;
    const Four<float> u = four(a + at), v = four(b + at);
    FPEMU_EACH(r, c)
    sum[r][c] += cut((double)part[g][r][c] * ((double)u.at[r] * (double)v.at[c]) * power(S::F - top[r][c]));
  }
  FPEMU_EACH(r, c) acc[r][c] = round_carrier<S, false>(sum[r][c] * power(top[r][c] - S::F));
}

// ---- exact

struct Anything {  // in fp32's clothes
  typedef Fp32 A, B, C;
};

// The exact sum, rounded to odd at 53 bits: a later rounding to fewer than 52 is then right.
template <class S> FPEMU_FUNCTION double exact_to_odd(const float* a, const float* b, float c) {
  LongSum<Anything> sum;
  sum.clear();
  const Number nc = decode<Fp32>((u32)bits_of(c));
  sum.add(nc.negative, nc.significand, nc.exponent - 23);
  for (int k = 0; k < S::BLOCK; k++) {
    const Number x = decode<Fp32>((u32)bits_of(a[k * Carrier<S>::ROW]));
    const Number p = multiply(x, decode<Fp32>((u32)bits_of(b[k * Carrier<S>::ROW])));
    sum.add(p.negative, p.significand, p.exponent - 46);
  }
  u64 leading;
  int unit;
  const bool negative = sum.leading(leading, unit);
  if (!leading) return 0;
  const double odd = (double)(s64)(leading >> 11 | ((leading & 2047) != 0)) * power(unit + 11);
  return negative ? -odd : odd;
}

template <class S> FPEMU_FUNCTION void exact_carrier(const float* a, const float* b, float (&acc)[SIDE][SIDE]) {
  constexpr int ROW = Carrier<S>::ROW;
  double sum[SIDE][SIDE], lost[SIDE][SIDE];
  FPEMU_EACH(r, c) sum[r][c] = acc[r][c], lost[r][c] = 0;
  FPEMU_SOME(unroll 2)
  for (int k = 0; k < S::BLOCK; k++) {
    const Four<float> x = four(a + k * ROW), y = four(b + k * ROW);
    FPEMU_EACH(r, c) {
      const double s = sum[r][c], p = (double)x.at[r] * (double)y.at[c], t = s + p, v = t - s;
      lost[r][c] += magnitude((s - (t - v)) + (p - v));
      sum[r][c] = t;
    }
  }
  u32 inexact = 0;
  FPEMU_EACH(r, c) {
    if (lost[r][c] > 0) inexact |= 1u << (r * SIDE + c);
    else acc[r][c] = round_carrier<S, true>(sum[r][c]);
  }
  while (inexact) {
    const int which = trailing_zeros(inexact);
    inexact &= inexact - 1;
    float start = 0;
    FPEMU_EACH(r, c) if (which == r * SIDE + c) start = acc[r][c];
    const float d = round_carrier<S, true>(exact_to_odd<S>(a + which / SIDE, b + which % SIDE, start));
    FPEMU_EACH(r, c) if (which == r * SIDE + c) acc[r][c] = d;
  }
}

// ---- chains of fused multiply-adds

// fp16 values: rounded to odd in fp64, then once to fp16.
FPEMU_FUNCTION float fused_half(float x, float y, float z) {
  const double p = (double)x * (double)y, c = z, s = p + c, w = s - p, error = (p - (s - w)) + (c - w);
  s64 bits = bits_of(s);
  // an even s moves one unit toward the error: away from zero if they have one sign
  if (error != 0 && !(bits & 1)) bits += (error > 0) == (s > 0) ? 1 : -1;
  const double v = magnitude(s) < infinite() ? double_of(bits) : s;
  return round_carrier<ToNearest<Fp16>, true>(v);
}

template <class S, class E> FPEMU_FUNCTION void fma_carrier(const E* a, const E* b, E (&acc)[SIDE][SIDE]) {
  const Four<E> x = four(a), y = four(b);
  FPEMU_EACH(r, c) {
    if constexpr (S::D::P == 11) acc[r][c] = fused_half(x.at[r], y.at[c], acc[r][c]);
    else acc[r][c] = fused(x.at[r], y.at[c], acc[r][c]);
  }
}

// ---- AMD

FPEMU_FUNCTION float flushed_carrier(float x) {  // a subnormal becomes a zero of its sign
  return magnitude(x) < float_of(1 << 23) ? float_of(bits_of(x) & (int)0x80000000) : x;
}

template <class S> FPEMU_FUNCTION void cdna2_carrier(const float* a, const float* b, float (&acc)[SIDE][SIDE]) {
  constexpr int ROW = Carrier<S>::ROW;
  Four<float> x[S::BLOCK], y[S::BLOCK];
  FPEMU_UNROLL
  for (int k = 0; k < S::BLOCK; k++) x[k] = four(a + k * ROW), y[k] = four(b + k * ROW);
  FPEMU_EACH(r, c) {
    float p[S::BLOCK];
    FPEMU_UNROLL
    for (int k = 0; k < S::BLOCK; k++) p[k] = flushed_carrier(x[k].at[r] * y[k].at[c]);
    float s = flushed_carrier(p[0] + p[1]);
    if constexpr (S::BLOCK == 4) s = flushed_carrier(s + flushed_carrier(p[2] + p[3]));
    acc[r][c] = flushed_carrier(acc[r][c] + s);
  }
}

FPEMU_FUNCTION double bounded_product(float x, float y) {
  const double p = (double)x * (double)y;
  return magnitude(p) >= power(128) ? with_sign(infinite(), p) : p;
}

// The sum of products floored 32 places below the larger exponent and c 24; floored 31 below their own, rounded to
// fp32.
FPEMU_FUNCTION float add_accumulator(double total, int e, float c, int drop) {
  const int ec = larger(exponent_of(c), -126), top = larger(e, ec);
  double kept = lower((double)c * power(24 - top)) * power(top - 24);
  if (ec < top - drop) kept = 0;
  const double s = lower(total * power(32 - top)) * power(top - 32) + kept;
  const int own = larger(exponent_of(s), -126);
  return (float)(lower(s * power(31 - own)) * power(own - 31) + 0.0);
}

// Every STEP-th product from FIRST on, truncated 24 places below the largest of their exponents, which `e` becomes.
template <class S, int FIRST, int STEP>
FPEMU_FUNCTION void cdna3_products(const float* a, const float* b, const s16* ea, const s16* eb,
                                   double (&sum)[SIDE][SIDE], int (&e)[SIDE][SIDE]) {
  constexpr int ROW = Carrier<S>::ROW, LENGTH = S::BLOCK / STEP;
  const Highest top = highest<ROW, LENGTH, Every<FIRST, STEP>>(ea, eb);
  FPEMU_EACH(r, c) e[r][c] = larger(top.at(r, c), -500), sum[r][c] = 0;  // -500: below every exponent
  FPEMU_SOME(unroll 2)
  for (int q = 0; q < LENGTH; q++) {
    const Four<float> x = four(a + (FIRST + q * STEP) * ROW), y = four(b + (FIRST + q * STEP) * ROW);
    FPEMU_EACH(r, c) sum[r][c] += cut(bounded_product(x.at[r], y.at[c]) * power(24 - e[r][c]));
  }
}

template <class S>
FPEMU_FUNCTION void cdna3_carrier(const float* a, const float* b, const s16* ea, const s16* eb,
                                  float (&acc)[SIDE][SIDE]) {
  double sum[SIDE][SIDE];
  int e[SIDE][SIDE];
  if constexpr (S::ARITHMETIC == CDNA3) {
    cdna3_products<S, 0, 1>(a, b, ea, eb, sum, e);
    FPEMU_EACH(r, c) acc[r][c] = add_accumulator(sum[r][c] * power(e[r][c] - 24), e[r][c], acc[r][c], 10000);
  } else {
    double odd[SIDE][SIDE];
    int f[SIDE][SIDE];
    cdna3_products<S, 0, 2>(a, b, ea, eb, sum, e);
    cdna3_products<S, 1, 2>(a, b, ea, eb, odd, f);
    FPEMU_EACH(r, c) {
      const int top = larger(e[r][c], f[r][c]);
      const double total = lower(sum[r][c] * power(e[r][c] - top)) + lower(odd[r][c] * power(f[r][c] - top));
      acc[r][c] = add_accumulator(total * power(top - 24), top, acc[r][c], 25);
    }
  }
}

// ---- one block of any arithmetic

// `nonfinite`: some operand is not finite, or some accumulator large.
template <class S, class E, class T>
FPEMU_FUNCTION void block(const E* a, const E* b, const s16* ea, const s16* eb, T (&acc)[SIDE][SIDE], bool nonfinite) {
  if constexpr (S::ARITHMETIC == INTEGER) {
    const Four<E> x = four(a), y = four(b);
    FPEMU_EACH(r, c) acc[r][c] = (T)((u32)acc[r][c] + (u32)((int)x.at[r] * (int)y.at[c]));  // modulo 2^32
  } else if constexpr (S::ARITHMETIC == TRUNCATED) {
    if constexpr (Carrier<S>::NARROW)
      if (!nonfinite) return truncated_single<S>(a, b, ea, eb, acc);
    truncated_double<S, S::BLOCK, Every<0, 1>>(a, b, ea, eb, acc);
  } else if constexpr (S::ARITHMETIC == VIA_HALF) {
    via_half_carrier<S>(a, b, ea, eb, acc);
  } else if constexpr (S::ARITHMETIC == SCALED) {
    scaled_carrier<S>(a, b, ea, eb, acc);
  } else if constexpr (S::ARITHMETIC == SCALED_GROUPS) {
    scaled_groups_carrier<S>(a, b, acc);
  } else if constexpr (S::ARITHMETIC == EXACT) {
    exact_carrier<S>(a, b, acc);
  } else if constexpr (S::ARITHMETIC == FMA) {
    fma_carrier<S>(a, b, acc);
  } else if constexpr (S::ARITHMETIC == FLUSHED) {
    cdna2_carrier<S>(a, b, acc);
  } else {
    cdna3_carrier<S>(a, b, ea, eb, acc);
  }
}
