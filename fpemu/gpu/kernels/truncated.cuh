// The truncated fused dot product of NVIDIA's tensor cores, as fpemu.mma.reference has it.
#pragma once
#include "formats.cuh"

// Truncate significand · 2^(below - point) toward zero to a multiple of 2^-F; the result counts those units.
FPEMU_FUNCTION s64 align(const Number& x, int below, int point, int F) {
  const int shift = larger(below, -100) + F - point;  // below <= 0; 100 places down nothing is left
  const u64 kept = shift >= 0 ? x.significand << shift : x.significand >> smaller(-shift, 63);
  return x.negative ? -(s64)kept : (s64)kept;
}

template <class S, class TA, class TB, int BLOCK>
FPEMU_FUNCTION u64 truncated(const typename TA::code* a, const typename TB::code* b, u64 c) {
  typedef typename S::D D;
  const Number nc = decode<typename S::C>(c);
  int found = nc.special, top = larger(nc.exponent, S::E0);
  FPEMU_UNROLL
  for (int k = 0; k < BLOCK; k++) {
    const Number p = multiply(decode<TA>(a[k]), decode<TB>(b[k]));
    found |= p.special;
    top = larger(top, p.exponent);
  }
  if (found) return special_code<D>(found);
  if (top == ZERO) top = 0;  // all zero and no floor: any grid will do
  s64 total = align(nc, nc.exponent - top, S::C::P - 1, S::F);
  FPEMU_UNROLL
  for (int k = 0; k < BLOCK; k++) {
    const Number p = multiply(decode<TA>(a[k]), decode<TB>(b[k]));
    total += align(p, p.exponent - top, TA::P + TB::P - 2, S::F);
  }
  const u64 magnitude = total < 0 ? -(u64)total : (u64)total;
  return round_once<D, S::NEAREST, S::FRACTION_BITS, false>(total < 0, magnitude, top - S::F);
}
