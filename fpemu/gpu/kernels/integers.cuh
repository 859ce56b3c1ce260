// Integers of fixed width and the few operations on them that GPU and host compilers spell differently.
//
// arithmetic.cuh and generator.cuh rest on this file alone: they compile as CUDA (NVRTC, no system header) and as plain
// C++, where they are compared with NumPy without a GPU.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#ifdef __CUDACC__
#define FPEMU_FUNCTION __device__ __forceinline__
#define FPEMU_UNROLL _Pragma("unroll")
#else
#define FPEMU_FUNCTION inline
#define FPEMU_UNROLL
#endif

// The narrowest word that holds so many bits.
template <int BITS> struct WordOf {
  typedef u64 type;
};
template <> struct WordOf<8> {
  typedef u8 type;
};
template <> struct WordOf<16> {
  typedef u16 type;
};
template <> struct WordOf<32> {
  typedef u32 type;
};

FPEMU_FUNCTION constexpr int larger(int x, int y) { return x > y ? x : y; }
FPEMU_FUNCTION constexpr int smaller(int x, int y) { return x < y ? x : y; }

// How many bits x has: the position of its leading one, counted from 1; 0 for 0.
FPEMU_FUNCTION int bit_length(u64 x) {
#ifdef __CUDACC__
  return 64 - __clzll((s64)x);
#else
  return x ? 64 - __builtin_clzll(x) : 0;
#endif
}

// How many zero bits x ends with; 32 for 0.
FPEMU_FUNCTION int trailing_zeros(u32 x) {
#ifdef __CUDACC__
  return x ? __ffs((int)x) - 1 : 32;
#else
  return x ? __builtin_ctz(x) : 32;
#endif
}

// The high 32 bits of a product of two words.
FPEMU_FUNCTION u32 high_product(u32 x, u32 y) { return (u32)(((u64)x * y) >> 32); }

// x times 2^places, rounded down; as many places either way as one likes, if no leading bit is lost to the left.
FPEMU_FUNCTION s64 floor_shift(s64 x, int places) {
  return places >= 0 ? (s64)((u64)x << smaller(places, 63)) : x >> smaller(-places, 63);
}
