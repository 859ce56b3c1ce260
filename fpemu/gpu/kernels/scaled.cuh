// Block-scaled fused sums, as fpemu.mma.reference has them: the codes of a block's operands, then those of its scales.
#pragma once
#include "truncated.cuh"

// A scale in ue8m0, or in ue4m3, whose sign is ignored. A zero has the exponent EMIN too.
template <class S> FPEMU_FUNCTION Number scale(u64 code) {
  constexpr int FRACTION = S::SCALE_FRACTION;
  if constexpr (FRACTION == 0) return {1, (int)code - 127, false, code == 255 ? NOT_A_NUMBER : FINITE};
  code &= 127;
  const int field = (int)(code >> FRACTION), fraction = (int)code & ((1 << FRACTION) - 1);
  const u64 significand = (u64)(field ? fraction | 1 << FRACTION : fraction);
  return {significand, larger(field, 1) - 1 + S::SCALE_EMIN, false, code == 127 ? NOT_A_NUMBER : FINITE};
}

template <class S> FPEMU_FUNCTION u64 scaled(const typename S::A::code* a, const typename S::B::code* b, u64 c) {
  typedef typename S::A TA;
  typedef typename S::B TB;
  const Number nc = decode<typename S::C>(c), scale_a = scale<S>(a[S::BLOCK]), scale_b = scale<S>(b[S::BLOCK]);
  const int shift = scale_a.exponent + scale_b.exponent;
  int found = nc.special | scale_a.special | scale_b.special, top = larger(nc.exponent, S::E0);
  for (int k = 0; k < S::BLOCK; k++) {
    const Number p = multiply(decode<TA>(a[k]), decode<TB>(b[k]));
    found |= p.special;
    if (p.significand) top = larger(top, p.exponent + shift);
  }
  if (found) return special_code<typename S::D>(found);
  if (top == ZERO) top = 0;
  s64 total = align(nc, nc.exponent - top, S::C::P - 1, S::F);
  for (int k = 0; k < S::BLOCK; k++) {
    const Number p = multiply(decode<TA>(a[k]), decode<TB>(b[k]));
    if (p.significand) total += align(p, p.exponent + shift - top, TA::P + TB::P - 2, S::F);
  }
  const u64 size = total < 0 ? -(u64)total : (u64)total;
  return round_once<typename S::D, S::NEAREST, S::FRACTION_BITS, false>(total < 0, size, top - S::F);
}

constexpr int EXACT_PRODUCTS = 16;  // products that are added exactly

template <class S> FPEMU_FUNCTION u64 scaled_groups(const typename S::A::code* a, const typename S::B::code* b, u64 c) {
  constexpr int GROUPS = S::BLOCK / EXACT_PRODUCTS, POINT = S::A::FRACTION + S::B::FRACTION;
  const Number nc = decode<typename S::C>(c);
  int found = nc.special, top = larger(nc.exponent, S::E0);
  Number terms[GROUPS];
  for (int g = 0; g < GROUPS; g++) {
    const int at = S::BLOCK + g * EXACT_PRODUCTS / S::SCALE_BLOCK;
    const Number scale_a = scale<S>(a[at]), scale_b = scale<S>(b[at]);
    s64 sum = 0;  // in units of 2^-POINT: a product of exponent e has the significand times 2^e, e >= 0
    for (int k = g * EXACT_PRODUCTS; k < (g + 1) * EXACT_PRODUCTS; k++) {
      const Number p = multiply(decode<typename S::A>(a[k]), decode<typename S::B>(b[k]));
      const s64 size = p.significand ? (s64)(p.significand << p.exponent) : 0;
      sum += p.negative ? -size : size;
    }
    const u64 size = (u64)(sum < 0 ? -sum : sum) * scale_a.significand * scale_b.significand;
    terms[g] = {size, scale_a.exponent + scale_b.exponent, sum < 0, FINITE};
    found |= scale_a.special | scale_b.special;
    if (size) top = larger(top, terms[g].exponent);
  }
  if (found) return special_code<typename S::D>(found);
  if (top == ZERO) top = 0;
  s64 total = align(nc, nc.exponent - top, S::C::P - 1, S::F);
  for (int g = 0; g < GROUPS; g++)
    if (terms[g].significand) total += align(terms[g], terms[g].exponent - top, POINT + 2 * S::SCALE_FRACTION, S::F);
  const u64 size = total < 0 ? -(u64)total : (u64)total;
  return round_once<typename S::D, S::NEAREST, S::FRACTION_BITS, false>(total < 0, size, top - S::F);
}
