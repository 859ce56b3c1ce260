// AMD's CDNA2 and CDNA3, as fpemu.mma.reference has them.
#pragma once
#include "fma.cuh"
#include "truncated.cuh"

// ---- AMD CDNA2: fp32 arithmetic that flushes subnormals

// A subnormal code of fp32, or a zero, becomes a zero, with its sign or without.
FPEMU_FUNCTION u64 flush(u64 code, bool keep_sign) {
  return code & 0x7F800000 ? code : keep_sign ? code & 0x80000000 : 0;
}

template <class T> FPEMU_FUNCTION Number decode_flushed(u64 code) {
  Number x = decode<T>(code);
  if (!(x.significand >> T::FRACTION) && !x.special) x.significand = 0, x.exponent = ZERO, x.negative = false;
  return x;
}

template <class S> FPEMU_FUNCTION u64 flushed_product(u64 a, u64 b) {
  const Number p = multiply(decode_flushed<typename S::A>(a), decode_flushed<typename S::B>(b));
  if (p.special) return special_code<Fp32>(p.special);
  const int unit = p.exponent - S::A::FRACTION - S::B::FRACTION;
  return flush(round_once<Fp32, true, 23, true>(p.negative, p.significand, unit), true);
}

// Flushes c + (p0 + p1), or c + ((p0 + p1) + (p2 + p3)), after every step.
template <class S> FPEMU_FUNCTION u64 flushed(const typename S::A::code* a, const typename S::B::code* b, u64 c) {
  u64 s = flush(add<Fp32>(flushed_product<S>(a[0], b[0]), flushed_product<S>(a[1], b[1])), true);
  if (S::BLOCK == 4) {
    const u64 t = flush(add<Fp32>(flushed_product<S>(a[2], b[2]), flushed_product<S>(a[3], b[3])), true);
    s = flush(add<Fp32>(s, t), true);
  }
  return flush(add<Fp32>(c, s), true);
}

// ---- AMD CDNA3: the products truncated on their own grid, then floored with c on the common one

struct Partial {  // units · 2^(exponent - 24)
  s64 units;
  int exponent, special;
};

// The products k = FIRST, FIRST + STEP, ..., each truncated 24 places below the largest of their exponents.
template <class S, int FIRST, int STEP>
FPEMU_FUNCTION Partial truncated_sum(const typename S::A::code* a, const typename S::B::code* b) {
  constexpr int POINT = S::A::P + S::B::P - 2;
  Partial sum;
  sum.units = 0, sum.exponent = ZERO, sum.special = FINITE;
  for (int k = FIRST; k < S::BLOCK; k += STEP) {
    const Number p = multiply(decode<typename S::A>(a[k]), decode<typename S::B>(b[k]));
    sum.special |= p.special;
    if (p.significand && bit_length(p.significand) - 1 + p.exponent - POINT >= 128)
      sum.special |= p.negative ? MINUS_INFINITY : PLUS_INFINITY;
    sum.exponent = larger(sum.exponent, p.exponent);
  }
  for (int k = FIRST; k < S::BLOCK; k += STEP) {
    const Number p = multiply(decode<typename S::A>(a[k]), decode<typename S::B>(b[k]));
    sum.units += align(p, p.exponent - sum.exponent, POINT, 24);
  }
  return sum;
}

// floor(log2 |x|) and at least emin, where a decoded number has emin itself: subnormals of fp32 have it too.
template <class S> FPEMU_FUNCTION u64 cdna3(const typename S::A::code* a, const typename S::B::code* b, u64 c) {
  constexpr bool FP8 = S::ARITHMETIC == CDNA3_FP8;
  const Number nc = decode<Fp32>(c);
  Partial dot = truncated_sum<S, 0, FP8 ? 2 : 1>(a, b);
  if (FP8) {
    const Partial odd = truncated_sum<S, 1, 2>(a, b);
    const int e = larger(dot.exponent, odd.exponent);
    dot.units = floor_shift(dot.units, dot.exponent - e) + floor_shift(odd.units, odd.exponent - e);
    dot.exponent = e, dot.special |= odd.special;
  }
  const int found = dot.special | nc.special;
  if (found) return special_code<Fp32>(found);
  const int ec = nc.significand ? nc.exponent : -126, top = larger(dot.exponent, ec);
  const s64 signed_c = nc.negative ? -(s64)nc.significand : (s64)nc.significand;
  s64 kept = floor_shift(signed_c, ec - 23 - (top - 24)) * 256;  // units of 2^(top - 32) from here on
  if (FP8 && ec < top - 25) kept = 0;
  s64 sum = floor_shift(dot.units, dot.exponent - 24 - (top - 32)) + kept;
  const u64 size = sum < 0 ? -(u64)sum : (u64)sum;
  const int own = larger(bit_length(size) - 1 + top - 32, -126), drop = larger(own - 31 - (top - 32), 0);
  sum >>= smaller(drop, 63);
  const u64 magnitude = sum < 0 ? -(u64)sum : (u64)sum;
  return round_once<Fp32, true, 23, true>(sum < 0, magnitude, top - 32 + drop);
}
