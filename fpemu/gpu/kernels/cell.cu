// The steps of a sweep's cell beside its products: operands, combination of accumulators, sums of a relative error.
#include "bit_patterns.cuh"
#include "block_reduce.cuh"

FPEMU_FUNCTION double power_of_two(int e) { return fp64_of((u64)(1023 + e) << 52); }  // -1022 <= e <= 1023

// --- operands

typedef unsigned __int128 u128;
constexpr u128 MULTIPLIER = (u128)0x2360ED051FC65DA4 << 64 | 0x4385DF649FCCF645;  // of PCG64

// low + span · u, u the multiple of 2^-53 in [0, 1) that NumPy's PCG64 with this state returns, rounded to fp32.
//
// Word i is a function of the state after i + 1 steps x → M x + c, computed by squaring (F. Brown, "Random number
// generation with arbitrary strides", 1994); the output function is XSL-RR (M. O'Neill, HMC-CS-2014-0905, 2014).
extern "C" __global__ void __launch_bounds__(256)
    draw(float* out, s64 count, const u64* state, double low, double span) {
  for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (s64)gridDim.x * blockDim.x) {
    u128 x = (u128)state[0] << 64 | state[1], c = (u128)state[2] << 64 | state[3], m = MULTIPLIER;
    for (u64 steps = (u64)i + 1; steps; steps >>= 1) {
      if (steps & 1) x = m * x + c;
      c = (m + 1) * c;
      m = m * m;
    }
    const u64 folded = (u64)(x >> 64) ^ (u64)x;
    const int turn = (int)(x >> 122);
    const u64 word = folded >> turn | folded << (-turn & 63);
    out[i] = (float)(low + span * ((double)(s64)(word >> 11) * 0x1p-53));
  }
}

// --- the sum of the accumulators

struct Sums {  // in the order of the additions
  const float* sum[8];
  int band[8];
  int count, exponent, as_run, in_double;
};

// x 2^e rounded once, as ldexp: in fp64 nothing that an fp32 number and such a scale make is subnormal.
FPEMU_FUNCTION float scaled(float x, int e) { return (float)((double)x * power_of_two(e)); }
FPEMU_FUNCTION double scaled(double x, int e) { return x * power_of_two(e); }

template <class T> FPEMU_FUNCTION float combined(const Sums& s, s64 at) {
  T total = 0;
  if (s.as_run) {
    for (int i = 0; i < s.count; i++) {
      const T term = scaled((T)s.sum[i][at], -s.exponent * s.band[i]);
      total = i ? total + term : term;
    }
    return (float)total;
  }
  int last = s.band[0];
  for (int i = 0; i < s.count;) {
    const int band = s.band[i];
    const bool first = i == 0;
    T inside = (T)s.sum[i++][at];
    while (i < s.count && s.band[i] == band) inside = inside + (T)s.sum[i++][at];
    total = first ? inside : scaled(total, -s.exponent * (last - band)) + inside;
    last = band;
  }
  return (float)scaled(total, -s.exponent * last);
}

extern "C" __global__ void __launch_bounds__(256) combine(Sums s, float* D, s64 count) {
  for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (s64)gridDim.x * blockDim.x)
    D[i] = s.in_double ? combined<double>(s, i) : combined<float>(s, i);
}

// --- a relative error

constexpr int REGULAR = 400;  // |binary exponent| of numbers whose differences and scaled squares need no care
constexpr int BINS = 34;      // of 32 bits: a sum of numbers up to 1 in units of 2^-1074

FPEMU_FUNCTION double entry(const void* C, int narrow, s64 i) {
  return narrow ? (double)((const float*)C)[i] : ((const double*)C)[i];
}
FPEMU_FUNCTION bool irregular(double x) {
  const int e = (int)(fp64_code(x) >> 52 & 0x7FF) - 1023;
  return x != 0 && (e < -REGULAR || e > REGULAR);  // NaN and Inf too
}

// Maxima of each block: the code of |C - R|, the code of |R|, and whether an entry is irregular.
extern "C" __global__ void __launch_bounds__(256)
    compare(const void* C, int narrow, const double* R, s64 count, u64* maxima) {
  u64 d = 0, r = 0, bad = 0;
  for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (s64)gridDim.x * blockDim.x) {
    const double x = entry(C, narrow, i), y = R[i];
    const u64 a = fp64_code(x - y) & ~(1ull << 63), b = fp64_code(y) & ~(1ull << 63);
    bad |= irregular(x) || irregular(y);
    d = a > d ? a : d;
    r = b > r ? b : r;
  }
  d = block_max_code(d);
  __syncthreads();
  r = block_max_code(r);
  __syncthreads();
  bad = block_max_code(bad);
  if (threadIdx.x == 0) maxima[3 * blockIdx.x] = d, maxima[3 * blockIdx.x + 1] = r, maxima[3 * blockIdx.x + 2] = bad;
}

// A number of [0, 1] as an integer in units of 2^-1074, added to digits of 32 bits that hold their carries.
FPEMU_FUNCTION void add(u64* bins, double x) {
  const u64 code = fp64_code(x);
  const int field = larger((int)(code >> 52), 1), place = (field - 1) / 32, shift = (field - 1) % 32;
  const u64 significand = (code & ((1ull << 52) - 1)) | (u64)(code >> 52 != 0) << 52;
  if (!significand) return;
  const u64 low = (significand & 0xFFFFFFFF) << shift, high = (significand >> 32) << shift;
  const u64 middle = (low >> 32) + (high & 0xFFFFFFFF);
  atomicAdd(bins + place, low & 0xFFFFFFFF);
  atomicAdd(bins + place + 1, middle & 0xFFFFFFFF);
  atomicAdd(bins + place + 2, (middle >> 32) + (high >> 32));
}

// The exact sums of the squares of (C - R) · d and of R · r, each square rounded to fp64.
extern "C" __global__ void __launch_bounds__(256)
    squares(const void* C, int narrow, const double* R, s64 count, double d, double r, u64* sums) {
  __shared__ u64 bins[2 * BINS];
  for (int i = threadIdx.x; i < 2 * BINS; i += blockDim.x) bins[i] = 0;
  __syncthreads();
  for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (s64)gridDim.x * blockDim.x) {
    const double y = R[i], x = (entry(C, narrow, i) - y) * d;
    add(bins, x * x);
    add(bins + BINS, (y * r) * (y * r));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * BINS; i += blockDim.x) atomicAdd(sums + i, bins[i]);
}
