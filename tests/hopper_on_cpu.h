// Hopper's kernels on the processor, for tests without a GPU: all thread blocks run at the same time, their threads as
// fibers that take turns at every barrier. Before the headers and the text of a kernel.
#pragma once

#include "fibers.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "integers.cuh"

#define __grid_constant__
#define __launch_bounds__(...)
#define __global__ static
#define threadIdx (now->index)
#define blockIdx (now->block->index)

using std::max;
using std::min;
struct uint2 {
  u32 x, y;
};
struct alignas(16) uint4 {
  u32 x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
static uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// --- threads
struct Index {
  int x = 0;
};
struct Meeting {
  int here = 0;
  u64 past = 0;
  u32 words[32];
  int any = 0, last = 0;
};
struct Block {
  Index index;
  u8* memory;  // dynamic shared memory
  Meeting all, cluster, named[16], warps[16];
  std::map<int, std::vector<float4>> arrays;  // static shared memory, by lines of the source
};
struct Thread : Fiber {
  Index index;
  Block* block;
};
static Thread* now;
static Fiber host;
static Index gridDim;
static void give_way() { continue_fiber(*now, host); }
static void meet(Meeting& m, int all) {
  const u64 past = m.past;
  if (++m.here == all) m.here = 0, m.past++, m.last = m.any, m.any = 0;
  else
    while (m.past == past) give_way();
}

// --- warps
static Meeting& warp() { return now->block->warps[threadIdx.x / 32]; }
template <class T, class F> static auto exchange(T x, F use) {
  Meeting& w = warp();
  memcpy(&w.words[threadIdx.x % 32], &x, 4);
  meet(w, 32);
  auto result = use(w.words);
  meet(w, 32);
  return result;
}
template <class T> static T word_as(u32 word) {
  T x;
  memcpy(&x, &word, 4);
  return x;
}
template <class T> static T __shfl_sync(u32, T x, int lane) {
  return exchange(x, [&](const u32* all) { return word_as<T>(all[lane]); });
}
template <class T> static T __shfl_xor_sync(u32, T x, int mask) { return __shfl_sync(0, x, threadIdx.x % 32 ^ mask); }
static int __reduce_add_sync(u32, int x) {
  return exchange(x, [](const u32* all) {
    int sum = 0;
    for (int i = 0; i < 32; i++) sum += all[i];
    return sum;
  });
}
static bool __any_sync(u32, bool x) { return __reduce_add_sync(0, x) > 0; }

// --- numbers and memory
static u32 __float_as_uint(float x) {
  u32 word;
  memcpy(&word, &x, 4);
  return word;
}
static float __uint_as_float(u32 word) { return word_as<float>(word); }
static float __int_as_float(int word) { return word_as<float>(word); }
static double __hiloint2double(int high, int low) {
  const u64 word = (u64)(u32)high << 32 | (u32)low;
  double x;
  memcpy(&x, &word, 8);
  return x;
}
static float __fadd_rn(float x, float y) { return x + y; }
static float __fmul_rn(float x, float y) { return x * y; }
template <class T> static T __ldcg(const T* p) { return *p; }
template <class T> static void __stcs(T* p, const T& x) { *p = x; }
template <class T> static void __stcg(T* p, const T& x) { *p = x; }
template <class T> static T atomicMax(T* p, T x) {
  T old = *p;
  *p = max(old, x);
  return old;
}
template <class T, class U> static T atomicAdd(T* p, U x) {
  T old = *p;
  *p += x;
  return old;
}
template <class T> static T atomicOr(T* p, T x) {
  T old = *p;
  *p |= x;
  return old;
}
static u64 l2_policy(bool) { return 0; }
static void grid_wait() {}
static void grid_release() {}
