// The arithmetic of one matrix instruction on bit patterns: the CUDA implementation of fpemu.mma.reference, all arithmetics.
//
// A Spec is a struct of constants that fpemu.gpu.emulation.specification writes from an MmaSpec: types A, B, C, D
// (formats) and K, BLOCK, ARITHMETIC, F, E0, NEAREST, FRACTION_BITS, NAN_CODE, PAYLOADS, and of block scales SCALE_BLOCK,
// SCALE_FRACTION, SCALE_EMIN. emulate<Spec>(a, b, c) takes WORDS codes of a row of A and of a column of B (K operands,
// and behind each block, of BLOCK_WORDS words, its scales) and the code of c, and returns the code of d. Integers only: nothing here
// depends on how a compiler or a processor rounds.
//
// Sizes. A significand has at most 24 bits, but 53 in an FMA chain. A product of two has at most 48 (there 106, in two
// words); a truncated term at most F + 2 <= 37, and 65 of them add to less than 2^44.
#pragma once
#include "amd.cuh"
#include "exact.cuh"
#include "fma.cuh"
#include "scaled.cuh"
#include "truncated.cuh"

// ---- fp8 through mma.sync on Hopper: converted to fp16, two half-precision blocks from zero, c added at the end

template <class T> FPEMU_FUNCTION u16 to_half(u64 code) {
  const Number x = decode<T>(code);
  if (x.special) return (u16)special_code<Fp16>(x.special);
  return (u16)round_once<Fp16, true, 10, true>(x.negative, x.significand, x.exponent - T::FRACTION);  // exact
}

template <class S> FPEMU_FUNCTION u64 via_half(const typename S::A::code* a, const typename S::B::code* b, u64 c) {
  constexpr int HALF = S::K / 2;
  u64 d = 0;
  FPEMU_UNROLL
  for (int turn = 0; turn < 2; turn++) {  // k mod 4 in {0, 1}, then in {2, 3}
    u16 x[HALF], y[HALF];
    FPEMU_UNROLL
    for (int i = 0; i < HALF; i++) {
      const int k = 4 * (i / 2) + i % 2 + 2 * turn;
      x[i] = to_half<typename S::A>(a[k]), y[i] = to_half<typename S::B>(b[k]);
    }
    d = truncated<S, Fp16, Fp16, HALF>(x, y, d);
  }
  return add<typename S::D>(c, d);
}

// ---- one instruction

template <class S> FPEMU_FUNCTION u64 emulate(const typename S::A::code* a, const typename S::B::code* b, u64 c) {
  if constexpr (S::ARITHMETIC == INTEGER) {
    u32 d = (u32)c;  // modulo 2^32
    for (int k = 0; k < S::K; k++) d += (u32)((int)(signed char)a[k] * (int)(signed char)b[k]);
    return d;
  } else {
    u64 d = c;
    if constexpr (S::ARITHMETIC == FLUSHED) d = flush(d, false);
    if constexpr (S::ARITHMETIC == VIA_HALF) d = via_half<S>(a, b, c);
    else
      for (int k = 0; k < S::WORDS; k += S::BLOCK_WORDS) {
        if constexpr (S::ARITHMETIC == TRUNCATED)
          d = truncated<S, typename S::A, typename S::B, S::BLOCK>(a + k, b + k, d);
        if constexpr (S::ARITHMETIC == SCALED) d = scaled<S>(a + k, b + k, d);
        if constexpr (S::ARITHMETIC == SCALED_GROUPS) d = scaled_groups<S>(a + k, b + k, d);
        if constexpr (S::ARITHMETIC == EXACT) d = exact<S>(a + k, b + k, d);
        if constexpr (S::ARITHMETIC == FMA) {
          const u64 start = d;
          d = fused_multiply_add<typename S::D>(decode<typename S::A>(a[k]), decode<typename S::B>(b[k]), start);
          if (S::PAYLOADS && is_nan<typename S::D>(d)) d = first_nan<typename S::D>(a[k], b[k], start, S::NAN_CODE);
        }
        if constexpr (S::ARITHMETIC == FLUSHED) d = flushed<S>(a + k, b + k, d);
        if constexpr (S::ARITHMETIC == CDNA3 || S::ARITHMETIC == CDNA3_FP8) d = cdna3<S>(a + k, b + k, d);
      }
    return !S::PAYLOADS && is_nan<typename S::D>(d) ? S::NAN_CODE : d;
  }
}
