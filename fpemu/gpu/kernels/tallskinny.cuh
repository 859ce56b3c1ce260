// What all kernels for tall and skinny matrices share: operands in memory, the fused multiply-add, a finished sum.
//
// C (m×n) = A (m×k) B (k×n). Every element of C is one chain of fused multiply-adds over ascending k that starts from
// +0. REAL is float or double. Steps are in elements; indices have 64 bits. A_COLUMNS: A's rows lie side by side
// (a_row is 1), A_ROWS: its columns do (a_k is 1); neither: any steps.
#pragma once
#include "bit_patterns.cuh"

struct Operands {
  const REAL* A;
  s64 a_row, a_k;
  const REAL* B;
  s64 b_k, b_column;
  REAL* C;
  s64 c_row, c_column;
  s64 m, k, n;
};

FPEMU_FUNCTION const REAL* at_a(const Operands& o, s64 row, s64 k) {
#if defined(A_COLUMNS)
  return o.A + row + k * o.a_k;
#elif defined(A_ROWS)
  return o.A + row * o.a_row + k;
#else
  return o.A + row * o.a_row + k * o.a_k;
#endif
}
FPEMU_FUNCTION const REAL* at_b(const Operands& o, s64 k, s64 column) { return o.B + k * o.b_k + column * o.b_column; }
FPEMU_FUNCTION REAL* at_c(const Operands& o, s64 row, s64 column) { return o.C + row * o.c_row + column * o.c_column; }

FPEMU_FUNCTION float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
FPEMU_FUNCTION double fused(double x, double y, double z) { return __fma_rn(x, y, z); }

// Every NaN has one pattern, that of fpemu.simt.
FPEMU_FUNCTION float finished(float d) { return d == d ? d : fp32_of(0x7FFFFFFFu); }
FPEMU_FUNCTION double finished(double d) { return d == d ? d : fp64_of(0x7FF8000000000000ull); }
