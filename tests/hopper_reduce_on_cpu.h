// Functions of CUDA and of hopper.cuh for hopper_reduce.cu, whose threads run one after another: before its text.
#pragma once

#include <algorithm>
#include <cmath>
#include "integers.cuh"
using std::max;
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
static struct {
  int x;
} threadIdx, blockIdx, gridDim;
static void named_sync(int, int) {}
static bool named_any(int, int, bool x) { return x; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static T __shfl_xor_sync(u32, T x, int) { return x; }
static bool __any_sync(u32, bool x) { return x; }
template <class T> static T __ldcg(const T* p) { return *p; }
template <class T> static void __stcs(T* p, const T& x) { *p = x; }
static float __fadd_rn(float x, float y) { return x + y; }
static float __int_as_float(int x) {
  union {
    int i;
    float f;
  } u = {x};
  return u.f;
}
static double __hiloint2double(int high, int low) {
  union {
    u64 i;
    double d;
  } u = {(u64)(u32)high << 32 | (u32)low};
  return u.d;
}
static void grid_wait() {}
static void grid_release() {}
#define __grid_constant__
#define __launch_bounds__(...)
#define __global__ static
