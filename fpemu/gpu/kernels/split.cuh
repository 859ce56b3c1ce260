// One fp32 number into the words of a split: the CUDA form of fpemu.schemes.words.steps, the same bits for any rules.
//
// For every kernel that splits, in its loads or apart:
//
//     #include "split.cuh"
//     // fpemu.gpu.gemm.splitting.definition(rules):
//     typedef Split<Word<Fp16, RNE, 0, 0x7BFF, 0x7C00>, Word<...>> Rules;
//
//     u32 code[Rules::COUNT];
//     u32 found = split_number<Rules>(x, e, code);
//
// splits x · 2^e (e = 0: no scaling; a literal 0 costs nothing) and writes the codes of the words: word i is the low
// Rules::WIDTH bits of code[i] (8, 16 or 32; tf32: the fp32 word, low 13 bits zero). NaN and Inf count as +0. Returned
// is a set: bit i if word i overflows, NOT_FINITE if x is NaN or infinite; 0 if there is nothing to say. Callers that
// need no report drop it, and the compiler the work for it. e may be any of -250 to 250.
//
// Two ways to the same bits. split_exactly works in double, where each step is exact but one that directed roundings
// can force (see steps), and rounds in integers. split_fast works in fp32 and rounds as the hardware converts; for
// words that round to nearest or toward zero, with scales of at most 2^40, it is exact for 2^-100 <= |x · 2^e| < 2^80
// and for zeros: the word is then a multiple of the last place of the number it rounds, or equal to it; so the residual
// stays a multiple of x's last place, at least 2^-123, does not grow, and fits into 24 bits; nothing scaled reaches
// 2^128. split_number uses split_fast under these conditions. This text compiles for the host too, where the tests
// compare it with NumPy.
#pragma once
#include "formats.cuh"
#include "bit_patterns.cuh"

enum WordRounding { RNE, RNA, RZ, RU, RD, ODD, BIT_CUT, AWAY };  // AWAY: away from zero; subnormal words: see rounded
constexpr u32 NOT_FINITE = 0x80;
constexpr int FAST_EXPONENT = 40;
constexpr float FAST_LEAST = 0x1p-100f, FAST_MOST = 0x1p80f;

FPEMU_FUNCTION double power_of_two(int e) { return fp64_of((u64)(1023 + e) << 52); }      // -1022 <= e <= 1023
FPEMU_FUNCTION float small_power_of_two(int e) { return fp32_of((u32)(127 + e) << 23); }  // -126 <= e <= 127

// --- one word

// T: the format; LARGEST: code of its largest number; BEYOND: code of an overflow (Inf, or NaN if there is no Inf).
template <class T, WordRounding MODE_, int EXPONENT_, u64 LARGEST_, u64 BEYOND_> struct Word {
  typedef T Type;
  static constexpr WordRounding MODE = MODE_;
  static constexpr int EXPONENT = EXPONENT_, FRACTION = T::FRACTION, WIDTH = T::WIDTH;
  static constexpr u64 LARGEST = LARGEST_, BEYOND = BEYOND_;  // without padding, as all codes up to `stored`
  static constexpr bool TOWARD_ZERO = MODE == RZ || MODE == BIT_CUT;
  static constexpr bool HALF = T::P == 11 && T::EMIN == -14, WIDE = T::EMIN == -126 && T::EMAX == 127 && T::P < 24;
  static constexpr bool FAST =
      EXPONENT >= 0 && EXPONENT <= FAST_EXPONENT &&
      ((HALF && (MODE == RNE || MODE == AWAY || TOWARD_ZERO)) || (WIDE && (MODE == RNE || MODE == RNA || MODE == RZ)));
};

template <class W> FPEMU_FUNCTION u32 stored(u64 magnitude, bool negative) {
  typedef typename W::Type T;
  if (!T::NEGATIVE_ZERO && !magnitude) negative = false;
  if (T::NAN_RULE == NAN_NEGATIVE_ZERO && magnitude == W::BEYOND) negative = false;  // its NaN has the sign in the code
  return (u32)((magnitude | (u64)negative << T::SIGN) << T::PADDING);
}

// The one rounding of v; `over`: with an unbounded exponent it is beyond the format's largest number.
template <class W> FPEMU_FUNCTION u64 rounded(double v, bool& over) {
  typedef typename W::Type T;
  const u64 code = fp64_code(v), magnitude = code & ~(1ull << 63);
  const bool negative = code >> 63;
  over = false;
  if (magnitude > 0x7FFull << 52) return T::NAN_RULE == NAN_NEGATIVE_ZERO || !T::INF ? W::BEYOND : any_nan<T>();
  u64 kept;
  if (magnitude == 0x7FFull << 52) kept = ~0ull;
  else {
    const int field = (int)(magnitude >> 52), exponent = field - 1023, to = larger(exponent, T::EMIN);
    u64 significand = field ? (magnitude & ((1ull << 52) - 1)) | 1ull << 52 : 0;  // no subnormal double comes here
    if (W::MODE == AWAY) {  // to P bits away from zero, then to nearest even where fewer bits are left
      const u64 last = (1ull << (52 - T::FRACTION)) - 1;
      significand = (significand + last) & ~last;
    }
    const int drop = smaller(52 - T::FRACTION + to - exponent, 63);  // of so many places go; 63: all, and half is more
    kept = significand >> drop;
    const u64 rest = significand - (kept << drop), half = 1ull << (drop - 1);
    if (W::MODE == RNE || W::MODE == AWAY) kept += rest > half || (rest == half && (kept & 1));
    if (W::MODE == RNA) kept += rest >= half;
    if (W::MODE == RU) kept += rest && !negative;
    if (W::MODE == RD) kept += rest && negative;
    if (W::MODE == ODD) kept += rest && !(kept & 1);
    kept += (u64)(to - T::EMIN) << T::FRACTION;  // added: a leading bit, or a carry, raises the field
  }
  over = kept > W::LARGEST;
  if (!over) return kept;
  const bool stops = W::MODE == RZ || W::MODE == ODD || (W::MODE == RU && negative) || (W::MODE == RD && !negative);
  return stops && kept != ~0ull ? W::LARGEST : W::BEYOND;
}

// The word's value, taken from the residual of x.
template <class W> FPEMU_FUNCTION double taken(u64 magnitude, bool negative) {
  typedef typename W::Type T;
  if (magnitude > W::LARGEST)
    return fp64_of((magnitude == W::BEYOND && T::INF ? 0x7FFull << 52 : 0xFFFull << 51) | (u64)negative << 63);
  const int field = (int)(magnitude >> T::FRACTION);
  const u64 significand = field ? (magnitude & T::FRACTION_MASK) | 1ull << T::FRACTION : magnitude;
  const double size = (double)(s64)significand * power_of_two(larger(field, 1) - T::BIAS - T::FRACTION - W::EXPONENT);
  return negative ? -size : size;
}

// --- the fast way: conversions of the hardware, or their meaning in integers

#ifdef __CUDACC__
template <bool ZERO> FPEMU_FUNCTION u32 half_of(float x) {
  unsigned short h;
  if (ZERO) asm("cvt.rz.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
FPEMU_FUNCTION float value_of_half(u32 code) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)code));
  return x;
}
#else
template <bool ZERO> FPEMU_FUNCTION u32 half_of(float x) {
  bool over;
  typedef Word<Fp16, ZERO ? RZ : RNE, 0, 0x7BFF, 0x7C00> W;
  return stored<W>(rounded<W>(x, over), fp32_code(x) >> 31);
}
FPEMU_FUNCTION float value_of_half(u32 code) {
  return (float)taken<Word<Fp16, RNE, 0, 0x7BFF, 0x7C00> >(code & 0x7FFF, code >> 15);
}
#endif

// Rounds the fp32 number in place of its word, for a format with fp32's exponents, and gives its code. NaN: see below.
template <class W> FPEMU_FUNCTION u32 cut_word(float x) {
  constexpr int PLACES = 23 - W::FRACTION;
  u32 code = fp32_code(x);
  if (W::MODE == RNE) code += (1u << (PLACES - 1)) - 1 + ((code >> PLACES) & 1);
  if (W::MODE == RNA) code += 1u << (PLACES - 1);
  return code & ~((1u << PLACES) - 1);
}

// To the 11 significant bits of fp16, away from zero.
FPEMU_FUNCTION float away_to_half(float x) { return fp32_of((fp32_code(x) + 0x1fff) & ~0x1fffu); }

template <class W> FPEMU_FUNCTION u32 step_fast(float& left, u32& code) {
  const float scaled = left * small_power_of_two(W::EXPONENT);
  u32 found = 0;
  float value;
  if (W::HALF) {
    const float size = fp32_of(fp32_code(scaled) & 0x7FFFFFFF);
    code = half_of<W::TOWARD_ZERO>(W::MODE == AWAY ? away_to_half(scaled) : scaled);
    if (W::MODE == BIT_CUT && size >= 65536.0f) code = 0x7C00 | (fp32_code(scaled) >> 31) << 15;
    found = W::MODE == AWAY ? size > 65504.0f : size >= (W::TOWARD_ZERO ? 65536.0f : 65520.0f);
    value = value_of_half(code);
  } else {  // below 2^80 · 2^40 nothing overflows: no NaN comes here
    const u32 cut = cut_word<W>(scaled);
    value = fp32_of(cut);
    code = cut >> (W::WIDTH == 16 ? 16 : 0);
  }
  left = left - value * small_power_of_two(-W::EXPONENT);
  return found;
}

template <class W> FPEMU_FUNCTION u32 step_exactly(double& left, u32& code) {
  const double scaled = left * power_of_two(W::EXPONENT);
  const bool negative = fp64_code(scaled) >> 63;
  bool over;
  const u64 magnitude = rounded<W>(scaled, over);
  code = stored<W>(magnitude, negative);
  left = left - taken<W>(magnitude, negative);
  return over;
}

// --- all words

template <class... W> struct Split {
  static constexpr int COUNT = 0;
  static constexpr bool FAST = true;
  static FPEMU_FUNCTION u32 fast(float&, u32*) { return 0; }
  static FPEMU_FUNCTION u32 exactly(double&, u32*) { return 0; }
};
template <class First, class... Rest> struct Split<First, Rest...> {
  typedef Split<Rest...> Others;
  static constexpr int COUNT = 1 + Others::COUNT, WIDTH = First::WIDTH;
  static constexpr bool FAST = First::FAST && Others::FAST;
  typedef typename WordOf<WIDTH>::type code;
  static FPEMU_FUNCTION u32 fast(float& left, u32* codes) {
    const u32 found = step_fast<First>(left, *codes);
    return found | Others::fast(left, codes + 1) << 1;
  }
  static FPEMU_FUNCTION u32 exactly(double& left, u32* codes) {
    const u32 found = step_exactly<First>(left, *codes);
    return found | Others::exactly(left, codes + 1) << 1;
  }
};

template <class Rules> FPEMU_FUNCTION u32 split_fast(float x, u32* codes) {
  float left = x;
  return Rules::fast(left, codes);
}

template <class Rules> FPEMU_FUNCTION u32 split_exactly(float x, int e, u32* codes) {
  double left = (double)x * power_of_two(e);
  return Rules::exactly(left, codes);
}

template <class Rules> FPEMU_FUNCTION u32 split_number(float x, int e, u32* codes) {
  u32 found = 0;
  if ((fp32_code(x) & 0x7F800000) == 0x7F800000) found = NOT_FINITE, x = 0;
  if (Rules::FAST) {
    // in two steps: 2^e may lie outside of fp32. A result that is not below 2^-100 was not rounded on the way, as |x|
    // is.
    const float scaled = e ? x * small_power_of_two(e / 2) * small_power_of_two(e - e / 2) : x;
    const float size = fp32_of(fp32_code(scaled) & 0x7FFFFFFF);
    if (x == 0 || (size >= FAST_LEAST && size < FAST_MOST)) return found | split_fast<Rules>(scaled, codes);
  }
  return found | split_exactly<Rules>(x, e, codes);
}
