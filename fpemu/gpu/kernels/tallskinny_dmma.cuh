// The matrix instruction of fp64: C (8×8) += A (8×4) B (4×8) by a warp, each element a chain of fused multiply-adds
// over ascending k. Lane l has A[l / 4][l % 4], B[l % 4][l / 4] and C[l / 4][2 (l % 4) + 0, 1].
#pragma once
#include "integers.cuh"

FPEMU_FUNCTION void dmma(double (&c)[2], double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(c[0]), "+d"(c[1])
               : "d"(a), "d"(b));
}
