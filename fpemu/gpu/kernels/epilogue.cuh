// What follows a product: alpha · t + beta · c, each operation rounded once, and every NaN with one code. As
// fpemu.schemes.base.scaled has it: alpha = 1 leaves t alone, and without c nothing is added.
#pragma once
#include "bit_patterns.cuh"

template <class Real> struct Scaling {
  Real alpha, beta;
  u64 nan_code;
};

FPEMU_FUNCTION float with_code(float d, u64 nan_code) { return d == d ? d : fp32_of((u32)nan_code); }
FPEMU_FUNCTION double with_code(double d, u64 nan_code) { return d == d ? d : fp64_of(nan_code); }

// c: null if there is none.
template <class Real> FPEMU_FUNCTION Real finished(Real t, const Scaling<Real>& s, const Real* c) {
  if (s.alpha != (Real)1) t = s.alpha * t;
  if (c) {
    const Real scaled = s.beta * *c;
    t = t + scaled;
  }
  return with_code(t, s.nan_code);
}
