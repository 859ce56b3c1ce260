// An output that depends on a NaN or an Inf: see fpemu.schemes.ranges.patch. It is NaN or infinite, by the signs of the
// entries alone: a product of an Inf and a zero, a product with a NaN, and infinities of both signs make it NaN;
// otherwise it is the infinity of the products. That holds in every order of addition.
#pragma once
#include "epilogue.cuh"

enum { MADE_NAN = 1, MADE_PLUS = 2, MADE_MINUS = 4 };

FPEMU_FUNCTION bool is_nonfinite(float x) { return !(x - x == 0); }

FPEMU_FUNCTION int product_of(float x, float y) {
  if (!is_nonfinite(x) && !is_nonfinite(y)) return 0;
  const float p = (is_nonfinite(x) || x == 0 ? x
                   : x < 0                   ? -1.0f
                                             : 1.0f) *
                  (is_nonfinite(y) || y == 0 ? y
                   : y < 0                   ? -1.0f
                                             : 1.0f);
  return p != p ? MADE_NAN : p > 0 ? MADE_PLUS : MADE_MINUS;
}

// The code of an output from the union of its products' outcomes.
FPEMU_FUNCTION bool is_nan(int outcome) { return (outcome & MADE_NAN) || (outcome & 6) == 6; }
FPEMU_FUNCTION u32 code_of(int outcome) {
  return is_nan(outcome) ? 0x7FFFFFFF : outcome & MADE_MINUS ? 0xFF800000 : 0x7F800000;
}
