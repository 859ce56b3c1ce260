// A number as an integer times a power of two, and the digits that a split takes from it: fpemu.schemes.errorfree.split
// in integers. No step rounds but the digit itself, so that the digits are those of the definition whatever the range.
#pragma once
#include "bit_patterns.cuh"

constexpr int NOTHING = -(1 << 20);  // the exponent of a zero
enum Rule { PUBLISHED, BALANCED, TRUNCATE, NEAREST };
constexpr int NO_LIMIT = 0, POWERS_ONLY = 64;

FPEMU_FUNCTION bool is_special(u64 code) { return (code >> 52 & 0x7ff) == 0x7ff; }

// m · 2^e, |m| < 2^53; NaN and infinities count as zero.
struct Element {
  s64 m;
  int e;
};
FPEMU_FUNCTION Element element(u64 code) {
  const int field = (int)(code >> 52) & 0x7ff;
  u64 m = code & ((1ull << 52) - 1);
  if (field) m |= 1ull << 52;
  if (field == 0x7ff) m = 0;
  return {code >> 63 ? -(s64)m : (s64)m, larger(field, 1) - 1075};
}
// The codes of four numbers of a row from k on, zeros beyond K; two at a time where the row begins at a multiple of 16.
FPEMU_FUNCTION void read_four(u64 (&codes)[4], const double* row, int k, int K) {
#ifdef __CUDACC__
  if (k + 4 <= K && ((u64)row & 15) == 0) {  // k is a multiple of 4
    const ulonglong2 x = *(const ulonglong2*)(row + k), y = *(const ulonglong2*)(row + k + 2);
    codes[0] = x.x, codes[1] = x.y, codes[2] = y.x, codes[3] = y.y;
    return;
  }
#endif
  for (int v = 0; v < 4; v++) codes[v] = k + v < K ? fp64_code(row[k + v]) : 0;
}
FPEMU_FUNCTION u64 size_of(s64 m) { return (u64)(m < 0 ? -m : m); }
FPEMU_FUNCTION int ceil_log2(u64 m) { return bit_length(m - 1); }  // of m > 0
FPEMU_FUNCTION int trailing_zeros_64(u64 m) {                      // of m > 0
  const u32 low = (u32)m;
  return low ? trailing_zeros(low) : 32 + trailing_zeros((u32)(m >> 32));
}

// 2^s for |s| <= 1022.
FPEMU_FUNCTION double power(int s) { return fp64_of((u64)(s + 1023) << 52); }

// t · 2^s, one rounding where it leaves the normal range; t an integer of magnitude up to 2^62, or zero.
FPEMU_FUNCTION double weighted(double t, int s) {
  s = larger(smaller(s, 2000), -2000);
  const int half = s >> 1;
  return t * power(half) * power(s - half);
}
// t · 2^s for any finite t and |s| <= 6000: by powers that bring it to where one rounding is left.
FPEMU_FUNCTION double scaled(double t, int s) {
  const Element x = element(fp64_code(t));
  return weighted((double)x.m, x.e + s);
}

// 2 ceil(log2 x) of x = |m| 2^e, and one more where x would get a digit beyond 2^bits - 1: from one digit on below 2^c
// that is a `room`-th part of it (NO_LIMIT: never; POWERS_ONLY: powers of two alone). It grows with x.
FPEMU_FUNCTION int key(s64 m, int e, int room) {
  if (!m) return 2 * NOTHING;
  const u64 size = size_of(m);
  const int c = ceil_log2(size);
  const u64 below = (1ull << c) - size;
  const bool beyond = room == NO_LIMIT ? false : room == POWERS_ONLY ? below == 0 : below << room <= 1ull << c;
  return 2 * (c + e) + beyond;
}

// m · 2^-places to the nearest integer, ties to even.
FPEMU_FUNCTION s64 nearest(s64 m, int places) {
  if (places > 62) return 0;
  const s64 floor = m >> places, rest = m - (floor << places), half = 1ll << (places - 1);
  return floor + (rest > half || (rest == half && (floor & 1)));
}

// The digit of x = m 2^e in units of 2^unit; x is left with what remains.
FPEMU_FUNCTION int take(s64& m, int e, int unit, int rule) {
  const int places = unit - e;
  if (!m) return 0;
  if (places < 0) {  // an integer, and even: every rule takes it whole
    const int digit = (int)(m << smaller(-places, 62));
    m = 0;
    return digit;
  }
  s64 digit;
  if (rule == TRUNCATE) digit = places > 62 ? 0 : m < 0 ? -(-m >> places) : m >> places;
  else if (rule == PUBLISHED && m > 0) digit = 2 * nearest(m, places + 1);
  else digit = places ? nearest(m, places) : m;
  if (digit) m -= digit << places;
  return (int)digit;
}

// The digit of t, a number in units, as a float: the definition's own operations, |t| <= 2^26.
FPEMU_FUNCTION double digit_of(double t, int rule) {
  if (rule == PUBLISHED) return (t + 9007199254740992.0) - 9007199254740992.0;  // 2^53
  const double near = (t + 6755399441055744.0) - 6755399441055744.0;            // 1.5 · 2^52
  if (rule != TRUNCATE) return near;
  return t >= 0 ? (near > t ? near - 1 : near) : (near < t ? near + 1 : near);
}
FPEMU_FUNCTION int integer_of(double digit) { return (int)(u32)fp64_code(digit + 6755399441055744.0); }
FPEMU_FUNCTION double fused(double x, double y, double z) {
#ifdef __CUDACC__
  return __fma_rn(x, y, z);
#else
  return __builtin_fma(x, y, z);
#endif
}

// Codes of small integers in the formats that carry digits.
enum Carrier { INT8_DIGITS, FP16_DIGITS, BF16_DIGITS, FP32_DIGITS, FP64_DIGITS };
FPEMU_FUNCTION u16 half_code(int digit) {  // |digit| <= 2^11
  const u32 size = (u32)(digit < 0 ? -digit : digit);
  if (!size) return 0;
  const int e = bit_length(size) - 1;
  const u32 fraction = e <= 10 ? size << (10 - e) : size >> (e - 10);
  return (u16)((digit < 0 ? 0x8000u : 0) | (u32)(e + 15) << 10 | (fraction & 0x3ff));
}
FPEMU_FUNCTION void store(void* out, s64 at, int digit, int carrier) {
  if (carrier == INT8_DIGITS) ((signed char*)out)[at] = (signed char)digit;
  if (carrier == FP16_DIGITS) ((u16*)out)[at] = half_code(digit);
  if (carrier == BF16_DIGITS) ((u16*)out)[at] = (u16)(fp32_code((float)digit) >> 16);
  if (carrier == FP32_DIGITS) ((float*)out)[at] = (float)digit;
  if (carrier == FP64_DIGITS) ((double*)out)[at] = (double)digit;
}
