// alpha · S + beta · C rounded once, for an integer S that comes in digits of base 2^32, the lowest first.
//
// Only the leading three digits that count and whether anything lies below them are kept. The digits are those of two's
// complement, so which of them is the leading one is known at the end: for a number that is not negative the last that
// is not 0, else the last that is not 2^32 - 1; both are kept.
#pragma once
#include "formats.cuh"
#include "slices.cuh"

typedef Format<53, -1022, 1023, 11, 0, NAN_IEEE, true, true, true> Binary64;
typedef Format<24, -126, 127, 8, 0, NAN_IEEE, true, true, true> Binary32;

struct Lead {  // a digit, the two below it, whether anything is below these, the place of the first
  u32 first, second, third;
  bool rest;
  int place;
};

// (high + low 2^-32) 2^place and, if `rest`, a little more, as a code of T to nearest even; high >= 2^32, or all is 0.
template <class T> FPEMU_FUNCTION u64 round_lead(bool minus, u64 high, u32 low, bool rest, int place) {
  const int zeros = high ? 64 - bit_length(high) : 0;
  const u64 shifted = zeros ? high << zeros | (u64)low >> (32 - zeros) : high;
  rest |= (u32)(low << zeros) != 0;
  return round_once<T, true, T::FRACTION, true>(minus, shifted | rest, place - zeros);
}

template <class Carry> struct Stream {
  Carry carry = 0;
  Lead now = {0, 0, 0, false, -1}, positive = now, negative = now;
  bool any = false;

  // Add x to the current digit and go on to the next one. With 64 bits of carry |x| < 2^62.
  FPEMU_FUNCTION void feed(Carry x) {
    carry += x;
    const u32 digit = (u32)carry;
    carry >>= 32;
    now.rest |= now.third != 0;
    now.third = now.second;
    now.second = now.first;
    now.first = digit;
    now.place++;
    if (digit) positive = now, any = true;
    if (~digit) negative = now;
  }

  // The sum times 2^exponent as a code of T, to nearest even; zero is +0.
  template <class T> FPEMU_FUNCTION u64 round(int exponent) {
    while (carry != 0 && carry != -1) feed(0);
    const bool minus = carry != 0;
    if (!minus && !any) return 0;
    const Lead x = minus ? negative : positive;
    u64 high = (u64)x.first << 32 | x.second;
    u32 low = x.third;
    int place = 32 * (x.place - 1);
    bool rest = x.rest;
    if (minus) {  // its magnitude: all digits turned, and one more at the very bottom
      high = ~high;
      low = ~low;
      if (!rest && !++low && !++high) {
        high = 1ull << 63;
        place++;
      }
    }
    return round_lead<T>(minus, high, low, rest, place + exponent);
  }
};

// The same for a number whose DIGITS digits of base 2^32, still with carries, are all given; it fits into them.
template <class T, int DIGITS> FPEMU_FUNCTION u64 round_digits(const s64 (&digits)[DIGITS], int exponent) {
  u32 d[DIGITS];
  s64 carry = 0;
  FPEMU_UNROLL
  for (int i = 0; i < DIGITS; i++) {
    carry += digits[i];
    d[i] = (u32)carry;
    carry >>= 32;
  }
  const bool minus = carry < 0;
  u32 turn = minus ? ~0u : 0u, below = 0;
  u64 one = minus;
  Lead x = {0, 0, 0, false, 0};
  FPEMU_UNROLL
  for (int i = 0; i < DIGITS; i++) {
    one += d[i] ^ turn;
    d[i] = (u32)one;
    one >>= 32;
    if (i >= 3) below |= d[i - 3];
    if (d[i]) x = {d[i], i >= 1 ? d[i - 1] : 0, i >= 2 ? d[i - 2] : 0, below != 0, i};
  }
  return round_lead<T>(minus, (u64)x.first << 32 | x.second, x.third, x.rest, 32 * (x.place - 1) + exponent);
}

// significand · 2^exponent of a finite double, 2^52 <= |significand| < 2^53; {0, 0} of a zero.
FPEMU_FUNCTION Element significand(double x) {
  Element found = element(fp64_code(x));
  if (!found.m) return {0, 0};
  const int zeros = 53 - bit_length(size_of(found.m));
  return {found.m < 0 ? -(s64)(size_of(found.m) << zeros) : found.m << zeros, found.e - zeros};
}

// alpha · (the sum of `count` digits from `digits.next()`) 2^exponent + beta · C, rounded once. Distances between alpha
// · S = X 2^x and beta · C = Y 2^(x + d) are brought nearer as fpemu.schemes.errorfree.sums proves: d above t with |X|
// < 2^t is as good as t, and d below -170 as good as -170, the unit going with Y or with X.
template <class T, class Digits>
FPEMU_FUNCTION u64 round_combined(Digits& digits, int count, int exponent, double alpha, double beta, double C) {
  const Element a = significand(alpha), b = significand(beta), c = significand(C);
  bool zero = true;
  {
    Stream<s64> sum;
    digits.reset();
    for (int k = 0; k < count; k++) sum.feed(digits.next());
    while (sum.carry != 0 && sum.carry != -1) sum.feed(0);
    zero = sum.carry == 0 && !sum.any;
  }
  const bool added = b.m && c.m;
  const int top = 32 * (count + 2) + 53, away = added ? b.e + c.e - (exponent + a.e) : 0;
  const int near = larger(smaller(away, top), -170);
  const bool follows = away > near || zero;
  const int first = near >= 0 ? near / 32 : -((31 - near) / 32), bit = near - 32 * first;
  __int128 Y = added ? (__int128)b.m * c.m : 0;  // |Y| < 2^106
  const bool minus = Y < 0;
  unsigned __int128 y = minus ? -(unsigned __int128)Y : (unsigned __int128)Y;
  Stream<__int128> sum;
  digits.reset();
  const int start = smaller(0, first), stop = larger(count, added ? first + 5 : 0);
  // y 2^bit has up to 137 bits: its lowest digit apart
  const u32 lowest = (u32)(y << bit);
  unsigned __int128 others = bit ? y >> (32 - bit) : y >> 32;
  for (int k = start; k < stop; k++) {
    __int128 x = k >= 0 && k < count ? (__int128)digits.next() * a.m : 0;
    if (added && k >= first && k < first + 5) {
      const u32 digit = k == first ? lowest : (u32)others;
      if (k > first) others >>= 32;
      x += minus ? -(__int128)digit : (__int128)digit;
    }
    sum.feed(x);
  }
  return sum.template round<T>(exponent + a.e + 32 * start + (follows ? away - near : 0));
}
