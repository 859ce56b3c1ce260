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

// A complex number times another one: four products and two sums, each rounded; a real factor scales both parts.
template <class Real> FPEMU_FUNCTION void scale(Real (&x)[2], Real real, Real imaginary) {
  if (imaginary == 0) {
    x[0] *= real, x[1] *= real;
    return;
  }
  const Real re = real * x[0] - imaginary * x[1];
  x[1] = real * x[1] + imaginary * x[0], x[0] = re;
}
// alpha t + beta c of complex numbers, each operation rounded; c: null if there is none.
template <class Real> FPEMU_FUNCTION void combine(Real (&t)[2], const Real (&alpha)[2], const Real (&beta)[2],
                                                  const Real* c) {
  scale(t, alpha[0], alpha[1]);
  if (!c) return;
  Real scaled[2] = {c[0], c[1]};
  scale(scaled, beta[0], beta[1]);
  t[0] += scaled[0], t[1] += scaled[1];
}
