// Exact block sums: products and accumulator added in fixed point over the whole range, then one rounding.
#pragma once
#include "formats.cuh"

template <class S> struct LongSum {
  static constexpr int LOWEST =
      smaller(S::A::EMIN + S::B::EMIN - S::A::FRACTION - S::B::FRACTION, S::C::EMIN - S::C::FRACTION);
  static constexpr int HIGHEST = larger(S::A::EMAX + S::B::EMAX + 2, S::C::EMAX + 1) + 8;  // 65 terms
  static constexpr int WORDS = (HIGHEST - LOWEST) / 32 + 3;
  s64 word[WORDS];  // of 32 bits each, the carries not yet passed on: 65 terms of less than 2^33

  FPEMU_FUNCTION void clear() {
    for (int i = 0; i < WORDS; i++) word[i] = 0;
  }
  FPEMU_FUNCTION void add(bool negative, u64 significand, int unit) {
    if (!significand) return;
    const int place = unit - LOWEST, at = place >> 5, shift = place & 31;
    const u64 low = (significand & 0xFFFFFFFF) << shift, high = (significand >> 32) << shift;
    const s64 sign = negative ? -1 : 1;
    word[at] += sign * (s64)(low & 0xFFFFFFFF);
    word[at + 1] += sign * (s64)((low >> 32) + (high & 0xFFFFFFFF));
    word[at + 2] += sign * (s64)(high >> 32);
  }
  // Propagate the carries; the result, the last carry, is 0 or -1.
  FPEMU_FUNCTION s64 carry() {
    s64 over = 0;
    for (int i = 0; i < WORDS; i++) {
      over += word[i];
      word[i] = over & 0xFFFFFFFF;
      over >>= 32;
    }
    return over;
  }
  // The leading 64 bits, the last one odd if any bit below them is set. Returns whether the sum is negative.
  FPEMU_FUNCTION bool leading(u64& magnitude, int& unit) {
    const bool negative = carry() < 0;
    if (negative) {
      for (int i = 0; i < WORDS; i++) word[i] = (i ? 0xFFFFFFFF : 0x100000000) - word[i];  // two's complement
      carry();
    }
    int top = WORDS - 1;
    while (top > 0 && !word[top]) top--;
    const int shift = 32 - bit_length((u64)word[top]);
    const u64 second = top > 0 ? (u64)word[top - 1] : 0, third = top > 1 ? (u64)word[top - 2] : 0;
    magnitude = ((u64)word[top] << 32 | second) << shift | third >> (32 - shift);
    if (shift == 32) magnitude = 0;  // all words are zero
    u64 lost = shift < 32 ? third << shift & 0xFFFFFFFF : 0;
    for (int i = 0; i < top - 2; i++) lost |= (u64)word[i];
    magnitude |= lost != 0;
    unit = LOWEST + 32 * (top - 1) - shift;
    return negative;
  }
};

template <class S> FPEMU_FUNCTION u64 exact(const typename S::A::code* a, const typename S::B::code* b, u64 c) {
  const Number nc = decode<typename S::C>(c);
  LongSum<S> sum;
  sum.clear();
  sum.add(nc.negative, nc.significand, nc.exponent - S::C::FRACTION);
  int found = nc.special;
  bool all_negative = nc.negative;
  for (int k = 0; k < S::BLOCK; k++) {
    const Number p = multiply(decode<typename S::A>(a[k]), decode<typename S::B>(b[k]));
    found |= p.special;
    all_negative = all_negative && p.negative;
    sum.add(p.negative, p.significand, p.exponent - S::A::FRACTION - S::B::FRACTION);
  }
  if (found) return special_code<typename S::D>(found);
  u64 magnitude;
  int unit;
  const bool negative = sum.leading(magnitude, unit);  // a sum of zeros is -0 if every term is
  return round_once<typename S::D, S::NEAREST, S::FRACTION_BITS, true>(magnitude ? negative : all_negative, magnitude,
                                                                       unit);
}
