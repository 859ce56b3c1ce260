// IEEE's fused multiply-add to nearest even, in integers; formats up to fp64.
#pragma once
#include "formats.cuh"

struct Wide {  // 128 bits
  u64 high, low;
};

FPEMU_FUNCTION Wide wide_product(u64 x, u64 y) {
  const u64 x0 = (u32)x, x1 = x >> 32, y0 = (u32)y, y1 = y >> 32;
  const u64 low = x0 * y0, mid = x1 * y0 + (low >> 32), other = x0 * y1 + (u32)mid;  // none of them overflows
  Wide p;
  p.high = x1 * y1 + (mid >> 32) + (other >> 32);
  p.low = (other << 32) | (u32)low;
  return p;
}

FPEMU_FUNCTION Wide shift_left(Wide x, int n) {
  if (n >= 64) {
    x.high = x.low << (n - 64);
    x.low = 0;
  } else if (n) {
    x.high = x.high << n | x.low >> (64 - n);
    x.low <<= n;
  }
  return x;
}

// Shift right with a sticky bit: the lost bits are or-ed into the last bit, so that a later rounding takes them into
// account.
FPEMU_FUNCTION Wide shift_right_sticky(Wide x, int n) {
  u64 lost = 0;
  if (n >= 128) {
    lost = x.high | x.low;
    x.high = x.low = 0;
  } else if (n >= 64) {
    lost = x.low | (n > 64 ? x.high << (128 - n) : 0);
    x.low = n > 64 ? x.high >> (n - 64) : x.high;
    x.high = 0;
  } else if (n) {
    lost = x.low << (64 - n);
    x.low = x.low >> n | x.high << (64 - n);
    x.high >>= n;
  }
  x.low |= lost != 0;
  return x;
}

FPEMU_FUNCTION int bit_length(Wide x) { return x.high ? 64 + bit_length(x.high) : bit_length(x.low); }

// a · b + c of numbers of T, rounded once to T.
//
// Both terms are shifted up until bit 125 leads, which leaves the product's 106 bits at least 20 zeros, and the smaller
// term down to the larger one's place. Bits fall off only if it goes down more than 20 places: then the sum keeps its
// leading bit or the one below, the lost bits lie 120 places farther down, and the other term ends in zeros there: the
// last bit, made odd, is on the right side of every number that 64 bits hold and of every tie between two of them.
template <class T> FPEMU_FUNCTION u64 fused_multiply_add(const Number& a, const Number& b, u64 code) {
  const Number c = decode<T>(code);
  const Number p = multiply(a, b);  // for its sign and specials; the significand may be longer than one word
  if (p.special | c.special) return special_code<T>(p.special | c.special);
  Wide x = wide_product(a.significand, b.significand), y;
  y.high = 0, y.low = c.significand;
  if (!(x.high | x.low)) return c.significand || p.negative == c.negative ? code : 0;
  int ux = a.exponent + b.exponent - 2 * T::FRACTION, uy = c.exponent - T::FRACTION, shift = 126 - bit_length(x);
  x = shift_left(x, shift);
  ux -= shift;
  bool negative = p.negative;
  if (c.significand) {
    bool other = c.negative;
    shift = 126 - bit_length(y);
    y = shift_left(y, shift);
    uy -= shift;
    if (uy > ux || (uy == ux && (y.high > x.high || (y.high == x.high && y.low > x.low)))) {
      const Wide z = x;
      x = y;
      y = z;
      const int u = ux;
      ux = uy;
      uy = u;
      const bool n = negative;
      negative = other;
      other = n;
    }
    y = shift_right_sticky(y, ux - uy);
    if (negative == other) {
      x.low += y.low;
      x.high += y.high + (x.low < y.low);
    } else {
      const bool borrow = x.low < y.low;
      x.low -= y.low;
      x.high -= y.high + borrow;
    }
    if (!(x.high | x.low)) return 0;  // exact cancellation is +0
  }
  shift = 128 - bit_length(x);
  x = shift_left(x, shift);
  return round_once<T, true, T::FRACTION, true>(negative, x.high | (x.low != 0), ux - shift + 64);
}

template <class T> FPEMU_FUNCTION u64 add(u64 x, u64 y) {
  Number one;
  one.significand = 1ull << T::FRACTION, one.exponent = 0, one.negative = false, one.special = FINITE;
  return fused_multiply_add<T>(one, decode<T>(x), y);
}

// The NaN of a step that keeps payloads: the first one of b, c, a, made quiet; `invalid` where none of them is.
template <class T> FPEMU_FUNCTION u64 first_nan(u64 a, u64 b, u64 c, u64 invalid) {
  const u64 quiet = 1ull << (T::FRACTION - 1);
  return is_nan<T>(b) ? b | quiet : is_nan<T>(c) ? c | quiet : is_nan<T>(a) ? a | quiet : invalid;
}
