// Functions of CUDA for the kernels of fpemu.gpu.gemm on the processor: before their text.
#pragma once

#include "cuda_on_cpu.h"
#define __forceinline__ inline
#define __grid_constant__
inline int __syncthreads_or(int x) {
  static int any;
  any |= x != 0, __syncthreads();
  const int result = any;
  __syncthreads();
  if (threadIdx.x == 0) any = 0;
  __syncthreads();
  return result;
}
template <class T> T atomicAdd(T* at, T x) {
  T old = *at;
  *at += x;
  return old;
}
template <class T> T atomicMax(T* at, T x) {
  T old = *at;
  if (x > old) *at = x;
  return old;
}
