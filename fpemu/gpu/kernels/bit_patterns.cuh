// Numbers as patterns and back, which GPU and host compilers spell differently.
#pragma once
#include "integers.cuh"

#ifdef __CUDACC__
FPEMU_FUNCTION u32 fp32_code(float x) { return __float_as_uint(x); }
FPEMU_FUNCTION float fp32_of(u32 code) { return __uint_as_float(code); }
FPEMU_FUNCTION u64 fp64_code(double x) { return (u64)__double_as_longlong(x); }
FPEMU_FUNCTION double fp64_of(u64 code) { return __longlong_as_double((s64)code); }
#else
FPEMU_FUNCTION u32 fp32_code(float x) {
  u32 c;
  __builtin_memcpy(&c, &x, 4);
  return c;
}
FPEMU_FUNCTION float fp32_of(u32 code) {
  float x;
  __builtin_memcpy(&x, &code, 4);
  return x;
}
FPEMU_FUNCTION u64 fp64_code(double x) {
  u64 c;
  __builtin_memcpy(&c, &x, 8);
  return c;
}
FPEMU_FUNCTION double fp64_of(u64 code) {
  double x;
  __builtin_memcpy(&x, &code, 8);
  return x;
}
#endif
