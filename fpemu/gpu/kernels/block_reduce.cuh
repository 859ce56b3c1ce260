// What kernels need besides arithmetic: a block's largest value, its sum, counters. As plain C++ a block is one thread
// (blockDim is 1), which runs the whole of it: kernels that walk over their work in steps of blockDim are then the same
// text without a GPU.
#pragma once
#include "integers.cuh"

#ifdef __CUDACC__
#define FPEMU_SHARED_BYTES(NAME) extern __shared__ __align__(16) u8 NAME[]

// The largest of the block's values, in every thread.
__device__ inline int block_max(int value) {
  __shared__ int parts[33];
  for (int step = 16; step; step >>= 1) value = larger(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    const int warps = (blockDim.x + 31) / 32;
    value = parts[smaller(threadIdx.x, warps - 1)];
    for (int step = 16; step; step >>= 1) value = larger(value, __shfl_xor_sync(~0u, value, step));
    if (threadIdx.x == 0) parts[32] = value;
  }
  __syncthreads();
  value = parts[32];
  __syncthreads();
  return value;
}

// The bits that are set in any of the block's values, in every thread.
__device__ inline int block_or(int value) {
  __shared__ int parts[32];
  value = __reduce_or_sync(~0u, value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  int all = 0;
  for (int i = 0; i < (int)(blockDim.x + 31) / 32; i++) all |= parts[i];
  __syncthreads();
  return all;
}

// The same for codes of 64 bits: the largest.
__device__ inline u64 block_max_code(u64 value) {
  __shared__ u64 parts[33];
  for (int step = 16; step; step >>= 1) {
    const u64 other = __shfl_xor_sync(~0u, value, step);
    if (other > value) value = other;
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = parts[smaller(threadIdx.x, (int)(blockDim.x + 31) / 32 - 1)];
    for (int step = 16; step; step >>= 1) {
      const u64 other = __shfl_xor_sync(~0u, value, step);
      if (other > value) value = other;
    }
    if (threadIdx.x == 0) parts[32] = value;
  }
  __syncthreads();
  return parts[32];  // the next barrier is the caller's, before the next call
}

// The sum of the block's values, in every thread.
template <class T> __device__ inline T block_sum(T value) {
  __shared__ T parts[33];
  for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    T sum = 0;
    for (int i = 0; i < (int)(blockDim.x + 31) / 32; i++) sum += parts[i];
    parts[32] = sum;
  }
  __syncthreads();
  value = parts[32];
  __syncthreads();
  return value;
}

#else
#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static
#define FPEMU_SHARED_BYTES(NAME) static u8 NAME[1 << 20]
struct Three {
  unsigned x, y, z;
};
static Three blockIdx, gridDim, blockDim = {1, 1, 1}, threadIdx = {0, 0, 0};
extern "C" inline void __attribute__((used)) set_block(unsigned x, unsigned y, unsigned z, unsigned nx, unsigned ny,
                                                       unsigned nz) {
  blockIdx = {x, y, z};
  gridDim = {nx, ny, nz};
}
inline void __syncthreads() {}
inline int block_max(int value) { return value; }
inline int block_or(int value) { return value; }
inline u64 block_max_code(u64 value) { return value; }
template <class T> inline T block_sum(T value) { return value; }
template <class T, class U> inline void atomicAdd(T* at, U value) { *at += (T)value; }
template <class T, class U> inline void atomicMax(T* at, U value) {
  if (*at < (T)value) *at = (T)value;
}
#endif
