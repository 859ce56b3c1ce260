// Carriers: floating-point numbers that hold the operands of an instruction exactly. Which they are, how a block's
// operands lie in shared memory, and the operations on them that the GPU's compiler and the host's spell differently.
//
// A block's operands lie in shared memory: a[k][row], b[k][column], the binary exponents of their values beside them. A
// thread's sixteen outputs are SIDE rows by SIDE columns; its pointers start at its first row and column.
#pragma once
#include "formats.cuh"

constexpr int SIDE = 4, THREADS_A_SIDE = 16, TILE = SIDE * THREADS_A_SIDE;
constexpr int NO_EXPONENT = -2000;  // of a zero: a sum of two of them fits 16 bits

#define FPEMU_EACH(r, c)                      \
  FPEMU_UNROLL                                \
  for (int r = 0; r < SIDE; r++) FPEMU_UNROLL \
  for (int c = 0; c < SIDE; c++)

// ---- what the GPU's compiler and the host's spell differently

typedef short s16;

#ifdef __CUDACC__
#define FPEMU_SOME(COUNT) _Pragma(#COUNT)
FPEMU_FUNCTION int bits_of(float x) { return __float_as_int(x); }
FPEMU_FUNCTION float float_of(int x) { return __int_as_float(x); }
FPEMU_FUNCTION s64 bits_of(double x) { return __double_as_longlong(x); }
FPEMU_FUNCTION double double_of(s64 x) { return __longlong_as_double(x); }
FPEMU_FUNCTION float toward_zero(int x) { return __int2float_rz(x); }
FPEMU_FUNCTION float toward_zero(s64 x) { return __ll2float_rz(x); }
FPEMU_FUNCTION float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
FPEMU_FUNCTION double fused(double x, double y, double z) { return __fma_rn(x, y, z); }
FPEMU_FUNCTION double cut(double x) { return trunc(x); }
FPEMU_FUNCTION double lower(double x) { return floor(x); }
// In both halves of a word: the larger of x + y and z, as signed 16-bit numbers.
FPEMU_FUNCTION u32 add_max(u32 x, u32 y, u32 z) { return __viaddmax_s16x2(x, y, z); }
#else
#define FPEMU_SOME(COUNT)
template <class T, class U> inline T same_bits(U x) {
  T y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}
inline int bits_of(float x) { return same_bits<int>(x); }
inline float float_of(int x) { return same_bits<float>(x); }
inline s64 bits_of(double x) { return same_bits<s64>(x); }
inline double double_of(s64 x) { return same_bits<double>(x); }
inline float toward_zero(s64 x) { return (float)double_of(bits_of((double)x) & -(1ll << 29)); }  // |x| < 2^53
inline float toward_zero(int x) { return toward_zero((s64)x); }
inline float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fused(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline double cut(double x) { return __builtin_trunc(x); }
inline double lower(double x) { return __builtin_floor(x); }
inline u32 add_max(u32 x, u32 y, u32 z) {
  const int low = larger((s16)(x + y), (s16)z), high = larger((s16)((x >> 16) + (y >> 16)), (s16)(z >> 16));
  return (u32)(low & 0xFFFF) | (u32)high << 16;
}
#endif

FPEMU_FUNCTION double power(int e) { return double_of((s64)(1023 + e) << 52); }
FPEMU_FUNCTION int exponent_of(float x) { return ((bits_of(x) >> 23) & 255) - 127; }
FPEMU_FUNCTION int exponent_of(double x) { return (int)((bits_of(x) >> 52) & 2047) - 1023; }
FPEMU_FUNCTION float magnitude(float x) { return float_of(bits_of(x) & 0x7FFFFFFF); }
FPEMU_FUNCTION double magnitude(double x) { return double_of(bits_of(x) & 0x7FFFFFFFFFFFFFFFll); }
FPEMU_FUNCTION double with_sign(double x, double y) {
  return double_of((bits_of(x) & 0x7FFFFFFFFFFFFFFFll) | (bits_of(y) & (1ll << 63)));
}
FPEMU_FUNCTION double infinite() { return double_of(0x7FFll << 52); }

// ---- the carriers of an instruction

template <class T> struct EminOf {
  static constexpr int VALUE = T::EMIN;
};
template <int BITS> struct EminOf<Integer<BITS>> {
  static constexpr int VALUE = 0;
};
template <bool INTEGERS, bool WIDE> struct Types {
  typedef float Element, Total;
};
template <> struct Types<true, false> {
  typedef signed char Element;
  typedef int Total;
};
template <> struct Types<false, true> {
  typedef double Element, Total;
};

template <class S, bool FLOATS> struct Narrow {
  static constexpr bool VALUE = false;
};
// A product has at most 22 bits, so a·b and a·b·2^(F - e) are exact in fp32: their exponents lie between -150 and 128,
// and what underflows is below one unit. The significands are below 2, so a block sums to less than 2^31 in int32.
// For finite operands and accumulators far from 2^127.
template <class S> struct Narrow<S, true> {
  static constexpr bool VALUE = S::ARITHMETIC == TRUNCATED && S::A::P + S::B::P <= 22 &&
                                S::A::EMIN + S::B::EMIN >= -28 && S::A::EMAX + S::B::EMAX <= 30 && S::F >= 23 &&
                                S::F <= 28 && ((s64)S::BLOCK << (S::F + 2)) <= (1ll << 31) && S::D::P == 24 &&
                                !S::NEAREST && S::FRACTION_BITS == 23 && (S::E0 == NO_FLOOR || S::E0 <= -126);
};

template <class S> struct Carrier {
  static constexpr bool INTEGERS = S::ARITHMETIC == INTEGER;
  typedef typename Types<INTEGERS, S::D::WIDTH == 64>::Element Element;
  typedef typename Types<INTEGERS, S::D::WIDTH == 64>::Total Total;
  static constexpr bool HALF = S::ARITHMETIC == VIA_HALF;
  static constexpr bool ALIGNED = S::ARITHMETIC == TRUNCATED || S::ARITHMETIC == SCALED || HALF ||
                                  S::ARITHMETIC == CDNA3 || S::ARITHMETIC == CDNA3_FP8;
  static constexpr bool NARROW = Narrow<S, !INTEGERS>::VALUE;
  static constexpr int EMIN_A = HALF ? -14 : EminOf<typename S::A>::VALUE;
  static constexpr int EMIN_B = HALF ? -14 : EminOf<typename S::B>::VALUE;
  static constexpr int BLOCK = INTEGERS ? 1 : S::BLOCK_WORDS;       // with the scales
  static constexpr int BLOCKS = INTEGERS ? S::K : S::K / S::BLOCK;  // of an instruction
  static constexpr int CHUNK = BLOCK * larger(1, 32 / BLOCK);       // k in shared memory at a time
  static constexpr int ROW = TILE + (CHUNK <= 48 ? SIDE : 0);       // one more access wide, against bank conflicts
};
