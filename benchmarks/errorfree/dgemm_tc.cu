// What DGEMM-TC needs beside the package's kernels, and the range of its inputs.
//
// NearSum: the sum of all products of slices, rounded once to the nearest fp64 number (S. M. Rump, T. Ogita, S. Oishi,
// "Accurate floating-point summation, part II", SIAM J. Sci. Comput. 31 (2008), Algorithms 3.3 and 7.1).
//
// The summands of an entry stay in memory as the products' fp32 or fp64 sums. Every pass over them computes what earlier
// extractions left of a summand again, so that no thread needs memory for their number. All exponents are within 900 of
// zero, so that no step underflows and scaling by a power of two is exact.
#include "block_reduce.cuh"
#include "exact_sums.cuh"

constexpr int MOST_EXTRACTIONS = 48;  // each takes at least 43 bits of at most 1800

struct Split {  // slices of A or of B
  const int* exponents;  // (count, stride) of the units
  int stride, count;
};

struct Summands {
  const void* T;
  int type;
  s64 at, stride;
  Split a, b;
  s64 row, column;
  int log_count;  // ceil(log2(count + 2))
  double sigmas[MOST_EXTRACTIONS];
  int extractions;

  FPEMU_FUNCTION int count() const { return a.count * b.count; }
  // What the extractions left of summand t; slices of A run fastest.
  FPEMU_FUNCTION double operator()(int t) const {
    const int p = t % a.count, q = t / a.count;
    const int exponent = a.exponents[(s64)p * a.stride + row] + b.exponents[(s64)q * b.stride + column];
    double x = product_at(T, type, at + t * stride) * power(exponent);
    for (int i = 0; i < extractions; i++) x = x - ((sigmas[i] + x) - sigmas[i]);
    return x;
  }
  // ExtractVector: the exact sum of the parts that are multiples of 2^-53 sigma.
  FPEMU_FUNCTION double extract(double sigma) {
    double tau = 0;
    for (int t = 0; t < count(); t++) {
      const double x = (*this)(t);
      tau += (sigma + x) - sigma;
    }
    sigmas[extractions++] = sigma;
    return tau;
  }
  FPEMU_FUNCTION double largest() const {
    double largest = 0;
    for (int t = 0; t < count(); t++) {
      const double x = (*this)(t), size = x < 0 ? -x : x;
      if (size > largest) largest = size;
    }
    return largest;
  }
  FPEMU_FUNCTION double rest() const {
    double sum = 0;
    for (int t = 0; t < count(); t++) sum += (*this)(t);
    return sum;
  }
};

struct Transformed {
  double high, low, sigma;  // high + low + the summands left is the sum
};

// Transform: rho + the summands as high + low + small summands; `high` has the sum's sign. sigma = 0: from the summands.
FPEMU_FUNCTION Transformed transform(Summands& p, double rho, double sigma) {
  const double shrink = power(p.log_count - 53), enough = power(2 * p.log_count + 1 - 53);
  for (double total = rho;;) {
    if (sigma == 0) {
      const double largest = p.largest();
      if (largest == 0) return {total, 0, 0};
      const Element x = element(fp64_code(largest));
      sigma = power(p.log_count + x.e + ceil_log2((u64)x.m));
    }
    const double tau = p.extract(sigma), next = total + tau, size = next < 0 ? -next : next;
    if (next == 0) {
      total = 0, sigma = 0;
      continue;
    }
    if (size >= enough * sigma) return {next, tau - (next - total), sigma};
    total = next, sigma *= shrink;
  }
}

FPEMU_FUNCTION double near_sum_of(Summands& p) {
  const Transformed sum = transform(p, 0, 0);
  if (sum.sigma == 0) return 0;
  const double low = sum.low + p.rest(), result = sum.high + low, delta = low - (result - sum.high);
  if (delta == 0) return result;
  const double remainder = sum.low - (result - sum.high);  // the sum is result + remainder + the summands left
  const bool away = (delta > 0) == (result > 0);
  const double neighbour = fp64_of(fp64_code(result) + (away ? 1 : -1)), half = (neighbour - result) / 2;
  const double beyond = transform(p, remainder - half, sum.sigma * power(p.log_count - 53)).high;
  if (beyond == 0) return result + half;  // a tie: to even
  return (beyond > 0) == (delta > 0) ? neighbour : result;
}

// D[i, j] = NearSum of T[t, i, j] 2^(exponents of its slices).
extern "C" __global__ void __launch_bounds__(256)
    near_sum(const void* T, int type, s64 stride, s64 pitch, int M, int N, const int* rows, int row_stride, int slices_a,
             const int* columns, int column_stride, int slices_b, int log_count, double* D, s64 row_step) {
  const s64 j = (s64)blockIdx.x * blockDim.x + threadIdx.x, steps = (s64)gridDim.x * blockDim.x;
  for (s64 i = blockIdx.y; i < M; i += gridDim.y)
    for (s64 c = j; c < N; c += steps) {
      Summands p = {T, type, i * pitch + c, stride, {rows, row_stride, slices_a}, {columns, column_stride, slices_b},
                    i, c, log_count, {}, 0};
      D[i * row_step + c] = near_sum_of(p);
    }
}

// The largest code of |x| of all numbers that are not zero, and of its complement: the largest and the smallest |x|.
extern "C" __global__ void __launch_bounds__(256) extremes(const u64* X, s64 count, u64* ends) {
  u64 largest = 0, smallest = 0;
  for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (s64)gridDim.x * blockDim.x) {
    const u64 code = X[i] << 1;
    if (code > largest) largest = code;
    if (code && ~code > smallest) smallest = ~code;
  }
  largest = block_max_code(largest);
  __syncthreads();
  smallest = block_max_code(smallest);
  if (threadIdx.x) return;
  atomicMax(&ends[0], largest);
  atomicMax(&ends[1], smallest);
}
