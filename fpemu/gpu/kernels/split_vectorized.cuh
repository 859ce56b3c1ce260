// Split eight numbers into words at once by split_fast of split.cuh, fp16 and bf16 in pairs.
#pragma once
#include "split.cuh"

// Whether split_fast is exact for every number, after scaling in two steps. It is for fp16 words whose first word
// rounds to nearest or truncates: numbers below 2^-100 have zero words; if the first word is infinite, so is the
// residual; and other residuals are below 2^16.
template <class R> struct AllHalves {
  static constexpr bool VALUE = true;
};
template <class First, class... Rest> struct AllHalves<Split<First, Rest...>> {
  static constexpr bool VALUE = First::HALF && First::FAST && AllHalves<Split<Rest...>>::VALUE;
};
template <class R> struct FirstWord;
template <class First, class... Rest> struct FirstWord<Split<First, Rest...>> {
  typedef First type;
};
template <class R> constexpr bool ALWAYS_FAST = AllHalves<R>::VALUE && FirstWord<R>::type::MODE != RZ;

template <class R> FPEMU_FUNCTION bool takes_fast_way(float scaled) {
  const float size = fp32_of(fp32_code(scaled) & 0x7FFFFFFF);
  return R::FAST && size >= FAST_LEAST && size < FAST_MOST;
}

// A magnitude below which no word overflows in split_fast (fpemu.gpu.gemm.splitting.within): the residual of x after a
// word is at most `part` times x, or `least`.
constexpr double two_to(int e) { return e > 0 ? 2 * two_to(e - 1) : e < 0 ? 0.5 * two_to(e + 1) : 1; }
template <class W> constexpr double largest_of() {
  const u64 field = W::LARGEST >> W::FRACTION, fraction = W::LARGEST & ((1ull << W::FRACTION) - 1);
  return (double)(fraction | 1ull << W::FRACTION) * two_to((int)field - W::Type::BIAS - W::FRACTION);
}
template <class R> struct Safe {
  static constexpr double bound(double, double) { return FAST_MOST; }
};
template <class First, class... Rest> struct Safe<Split<First, Rest...>> {
  static constexpr double UNIT = two_to(-First::Type::P + (First::MODE != RNE && First::MODE != RNA));
  static constexpr double SCALE = two_to(First::EXPONENT);
  static constexpr double STEP = two_to(First::Type::EMIN - First::Type::P + 1) / SCALE;
  static constexpr double bound(double part, double least) {
    const double own = largest_of<First>() / (SCALE * part), left = least * UNIT > STEP ? least * UNIT : STEP;
    const double others = Safe<Split<Rest...>>::bound(part * UNIT, left);
    return least * SCALE > largest_of<First>() ? 0 : own < others ? own : others;
  }
};
template <class R> constexpr double SAFE = R::FAST ? Safe<R>::bound(1, 0) : 0;

#ifdef __CUDACC__
template <bool ZERO> FPEMU_FUNCTION u32 two_halves(float low, float high) {
  u32 code;
  if (ZERO) asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(code) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(code) : "f"(high), "f"(low));
  return code;
}
template <class W> FPEMU_FUNCTION u32 two_of_bf16(float low, float high) {
  u32 code;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(code) : "f"(high), "f"(low));
  return code;
}
#else
template <bool ZERO> FPEMU_FUNCTION u32 two_halves(float low, float high) {
  return half_of<ZERO>(low) | half_of<ZERO>(high) << 16;
}
template <class W> FPEMU_FUNCTION u32 two_of_bf16(float low, float high) {
  return cut_word<W>(low) >> 16 | cut_word<W>(high);
}
#endif

// Without it cut numbers must be below 2^16.
#ifndef FPEMU_CUTS_LARGE
#define FPEMU_CUTS_LARGE 1
#endif

template <class W> FPEMU_FUNCTION u32 infinite_from(float x, u32 half) {  // what bit-cut has no exponent for
  return W::MODE == BIT_CUT && (fp32_code(x) & 0x7FFFFFFF) >= 0x47800000 ? (half & 0x8000) | 0x7C00 : half;
}

// The codes of one word after another, packed into 32-bit words; x becomes the residual.
template <class R> struct Eight {
  template <int WORDS, int EACH> static FPEMU_FUNCTION void split(float (&)[8], u32 (&)[WORDS][EACH]) {}
};
template <class First, class... Rest> struct Eight<Split<First, Rest...>> {
  template <int WORDS, int EACH> static FPEMU_FUNCTION void split(float (&x)[8], u32 (&codes)[WORDS][EACH]) {
    u32(&own)[EACH] = codes[WORDS - 1 - (int)sizeof...(Rest)];
    constexpr int CODES = 8 / EACH;  // in a 32-bit word
    const float scale = small_power_of_two(First::EXPONENT), back = small_power_of_two(-First::EXPONENT);
    if constexpr (First::HALF && First::FAST) {
      FPEMU_UNROLL
      for (int i = 0; i < 4; i++) {
        const float low = x[2 * i] * scale, high = x[2 * i + 1] * scale;
        u32 two = First::MODE == AWAY ? two_halves<false>(away_to_half(low), away_to_half(high))
                                      : two_halves<First::TOWARD_ZERO>(low, high);
        if (First::MODE == BIT_CUT && FPEMU_CUTS_LARGE)
          two = infinite_from<First>(low, two & 0xFFFF) | infinite_from<First>(high, two >> 16) << 16;
        own[i] = two;
        x[2 * i] = x[2 * i] - value_of_half(two & 0xFFFF) * back;
        x[2 * i + 1] = x[2 * i + 1] - value_of_half(two >> 16) * back;
      }
    } else if constexpr (First::FAST && First::WIDTH == 16 && First::MODE == RNE) {
      FPEMU_UNROLL
      for (int i = 0; i < 4; i++) {
        own[i] = two_of_bf16<First>(x[2 * i] * scale, x[2 * i + 1] * scale);
        x[2 * i] = x[2 * i] - fp32_of(own[i] << 16) * back;
        x[2 * i + 1] = x[2 * i + 1] - fp32_of(own[i] & 0xFFFF0000) * back;
      }
    } else {
      FPEMU_UNROLL
      for (int i = 0; i < EACH; i++) own[i] = 0;
      FPEMU_UNROLL
      for (int i = 0; i < 8; i++) {
        u32 code = 0;
        if constexpr (First::FAST) step_fast<First>(x[i], code);
        own[i / CODES] |= code << i % CODES * (32 / CODES);
      }
    }
    Eight<Split<Rest...>>::split(x, codes);
  }
};

template <class R, int WORDS, int EACH> FPEMU_FUNCTION void split_eight(float (&x)[8], u32 (&codes)[WORDS][EACH]) {
  Eight<R>::split(x, codes);
}
