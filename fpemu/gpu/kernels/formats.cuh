// Formats as types, codes as numbers, products of numbers, and the one rounding of a sum back to a code.
#pragma once
#include "integers.cuh"

enum Arithmetic { TRUNCATED, EXACT, FMA, FLUSHED, CDNA3, CDNA3_FP8, VIA_HALF, INTEGER, SCALED, SCALED_GROUPS };
enum NanRule { NAN_NONE, NAN_IEEE, NAN_TOP, NAN_NEGATIVE_ZERO };
enum Special { FINITE = 0, PLUS_INFINITY = 1, MINUS_INFINITY = 2, NOT_A_NUMBER = 4 };  // a set: they are or-ed

constexpr int ZERO = -100000;  // the exponent of a zero: below every floor
constexpr int NO_FLOOR = ZERO;

template <int PRECISION, int EMIN_, int EMAX_, int EXPONENT_BITS, int PADDING_, NanRule NAN_, bool INF_,
          bool SUBNORMALS_, bool NEGATIVE_ZERO_>
struct Format {
  static constexpr int P = PRECISION, EMIN = EMIN_, EMAX = EMAX_, PADDING = PADDING_;
  static constexpr int FRACTION = PRECISION - 1, BIAS = 1 - EMIN_, TOP = (1 << EXPONENT_BITS) - 1;
  static constexpr int SIGN = EXPONENT_BITS + FRACTION;  // place of the sign, the padding left out
  static constexpr int WIDTH = 1 + SIGN + PADDING;
  static constexpr NanRule NAN_RULE = NAN_;
  static constexpr bool INF = INF_, SUBNORMALS = SUBNORMALS_, NEGATIVE_ZERO = NEGATIVE_ZERO_;
  static constexpr u64 FRACTION_MASK = (1ull << FRACTION) - 1;
  typedef typename WordOf<(WIDTH <= 8 ? 8 : WIDTH <= 16 ? 16 : WIDTH <= 32 ? 32 : 64)>::type code;
};

template <int BITS> struct Integer {
  static constexpr int WIDTH = BITS;
  typedef typename WordOf<BITS>::type code;
};

typedef Format<11, -14, 15, 5, 0, NAN_IEEE, true, true, true> Fp16;
typedef Format<24, -126, 127, 8, 0, NAN_IEEE, true, true, true> Fp32;

// significand · 2^(exponent - (P - 1)); a subnormal keeps the exponent EMIN and is not normalised.
struct Number {
  u64 significand;
  int exponent;
  bool negative;
  int special;
};

template <class T> FPEMU_FUNCTION Number decode(u64 code) {
  const u64 raw = code >> T::PADDING, fraction = raw & T::FRACTION_MASK;
  const int field = (int)(raw >> T::FRACTION) & T::TOP;
  Number x;
  x.negative = (raw >> T::SIGN) & 1;
  x.special = FINITE;
  if (T::NAN_RULE == NAN_IEEE && field == T::TOP)
    x.special = fraction || !T::INF ? NOT_A_NUMBER : x.negative ? MINUS_INFINITY : PLUS_INFINITY;
  if (T::NAN_RULE == NAN_TOP && field == T::TOP && fraction == T::FRACTION_MASK) x.special = NOT_A_NUMBER;
  if (T::NAN_RULE == NAN_NEGATIVE_ZERO && raw == 1ull << T::SIGN) x.special = NOT_A_NUMBER;
  x.significand = field ? fraction | 1ull << T::FRACTION : T::SUBNORMALS ? fraction : 0;
  if (x.special) x.significand = 0;
  x.exponent = x.significand ? larger(field, 1) - T::BIAS : ZERO;
  if (!T::NEGATIVE_ZERO && !x.significand && !x.special) x.negative = false;
  return x;
}

// The exact product; its significand has Pa + Pb - 2 fraction bits and is not normalised, its exponent is ea + eb.
FPEMU_FUNCTION Number multiply(const Number& x, const Number& y) {
  Number p;
  p.negative = x.negative != y.negative;
  p.significand = x.significand * y.significand;
  p.exponent = p.significand ? x.exponent + y.exponent : ZERO;
  p.special = FINITE;
  if (x.special | y.special) {
    const bool zero = (!x.special && !x.significand) || (!y.special && !y.significand);
    const bool nan = ((x.special | y.special) & NOT_A_NUMBER) || zero;
    p.special = nan ? NOT_A_NUMBER : p.negative ? MINUS_INFINITY : PLUS_INFINITY;
  }
  return p;
}

// Codes of NaN and infinities. `found` is the set of all specials among the terms of a sum.
template <class T> FPEMU_FUNCTION u64 infinity(bool negative) {
  return (u64)negative << T::SIGN | (u64)T::TOP << T::FRACTION;
}
template <class T> FPEMU_FUNCTION bool is_nan(u64 code) {
  return (code & ((1ull << T::SIGN) - 1)) > infinity<T>(false);
}
template <class T> FPEMU_FUNCTION u64 any_nan() { return infinity<T>(false) | T::FRACTION_MASK; }
template <class T> FPEMU_FUNCTION u64 special_code(int found) {
  const bool nan = (found & NOT_A_NUMBER) || (found & 3) == 3;
  return nan ? any_nan<T>() : infinity<T>(found == MINUS_INFINITY);
}

// Round magnitude · 2^unit once to FRACTION_BITS fraction bits, and make it a code of T (fp16, fp32 or fp64).
// Beyond the largest number: infinity, also when rounding toward zero, as the hardware does. SIGNED_ZERO: what rounds
// to zero keeps its sign.
template <class T, bool NEAREST, int FRACTION_BITS, bool SIGNED_ZERO>
FPEMU_FUNCTION u64 round_once(bool negative, u64 magnitude, int unit) {
  if (!magnitude) return SIGNED_ZERO ? (u64)negative << T::SIGN : 0;
  const int exponent = larger(bit_length(magnitude) - 1 + unit, T::EMIN);
  if (exponent > T::EMAX) return infinity<T>(negative);
  const int drop = exponent - FRACTION_BITS - unit;  // so many places go
  u64 kept = drop <= 0 ? magnitude << -drop : drop < 64 ? magnitude >> drop : 0;
  if (NEAREST && drop > 0 && drop <= 64) {
    const u64 half = 1ull << (drop - 1), rest = drop < 64 ? magnitude & ((half << 1) - 1) : magnitude;
    if (rest > half || (rest == half && (kept & 1))) kept++;
  }
  kept <<= T::FRACTION - FRACTION_BITS;
  if (!kept) return SIGNED_ZERO ? (u64)negative << T::SIGN : 0;
  // added, not or-ed: the leading bit raises the field to that of a normal number, a carry to the next, or to Inf
  return ((u64)negative << T::SIGN) | (((u64)(exponent - T::EMIN) << T::FRACTION) + kept);
}
