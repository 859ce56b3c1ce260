// Algorithm 3 of Mukunoki et al. (2020), the number of slices, with the sums of fpemu.schemes.errorfree.counting to the
// last bit. NumPy sums a row pairwise: leaves of at most 128 terms by eight accumulators, then pairs of partial sums in
// the order of `merges` (pairs of indices, grouped by level) from fpemu.gpu.errorfree.counting.
#include "block_reduce.cuh"
#include "slices.cuh"

struct Plan {  // of a sum of n terms
  const int *starts, *sizes, *merges, *levels;
  int pieces, depth;
};

// Return the sum of term(0) ... term(n - 1) in NumPy's order to every thread; `parts` holds one number per leaf.
template <class Term> __device__ double pairwise(const Plan& plan, double* parts, const Term& term) {
#ifdef __CUDACC__
  const int lane = threadIdx.x % 8, group = threadIdx.x / 8, groups = blockDim.x / 8;
  const int turns = (plan.pieces + groups - 1) / groups;
  for (int turn = 0; turn < turns; turn++) {  // all threads of a warp take all turns: they shuffle
    const int i = turn * groups + group;
    const bool here = i < plan.pieces;
    const int start = here ? plan.starts[i] : 0, size = here ? plan.sizes[i] : 0;
    double sum = 0;
    if (size >= 8) {
      sum = term(start + lane);
      for (int k = 8; k < size - size % 8; k += 8) sum += term(start + k + lane);
    }
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (here && lane == 0) {
      for (int k = size >= 8 ? size - size % 8 : 0; k < size; k++) sum += term(start + k);
      parts[i] = sum;
    }
  }
#else
  for (int i = 0; i < plan.pieces; i++) {
    const int start = plan.starts[i], size = plan.sizes[i];
    double sum = 0, r[8];
    if (size >= 8) {
      for (int j = 0; j < 8; j++) {
        r[j] = term(start + j);
        for (int k = 8; k < size - size % 8; k += 8) r[j] += term(start + k + j);
      }
      sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    }
    for (int k = size >= 8 ? size - size % 8 : 0; k < size; k++) sum += term(start + k);
    parts[i] = sum;
  }
#endif
  __syncthreads();
  for (int level = 0; level < plan.depth; level++) {
    for (int i = plan.levels[level] + threadIdx.x; i < plan.levels[level + 1]; i += blockDim.x)
      parts[plan.merges[2 * i]] += parts[plan.merges[2 * i + 1]];
    __syncthreads();
  }
  const double sum = 0 + parts[0];
  __syncthreads();
  return sum;
}

// |X| e over 2^top, row by row.
extern "C" __global__ void __launch_bounds__(256)
    row_sums(const double* X, s64 pitch, int rows, int top, Plan plan, double* sums) {
  FPEMU_SHARED_BYTES(memory);
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const double* x = X + row * pitch;
    const double sum = pairwise(plan, (double*)memory, [&](int k) {
      const Element y = element(fp64_code(x[k]));
      return weighted((double)size_of(y.m), y.e - top);
    });
    if (threadIdx.x == 0) sums[row] = sum;
  }
}

// For every d below `count` how many rows do not meet the criterion with d slices; d counts from 1.
extern "C" __global__ void __launch_bounds__(256)
    criterion(const double* X, s64 pitch, int rows, int K, const double* weights, int bits, int rule, int room,
              int printed, double factor, int count, Plan plan, u8* scratch, int* failed) {
  FPEMU_SHARED_BYTES(memory);
  const s64 padded = (K + 7) & ~7;
  u8* own = scratch + (s64)blockIdx.x * 18 * padded;
  double* terms = (double*)own;
  s64* m = (s64*)(own + 8 * padded);
  short* e = (short*)(own + 16 * padded);
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    int top = 2 * NOTHING, ceiling = NOTHING;
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
      const Element x = element(fp64_code(X[row * pitch + k]));
      m[k] = x.m;
      e[k] = (short)x.e;
      top = larger(top, key(x.m, x.e, room));
      if (x.m) ceiling = larger(ceiling, x.e + ceil_log2(size_of(x.m)));
    }
    top = block_max(top);
    ceiling = block_max(ceiling);
    if (top == 2 * NOTHING) continue;
    for (int k = threadIdx.x; k < K; k += blockDim.x)
      terms[k] = weighted((double)size_of(m[k]), e[k] - ceiling) * weights[k];
    __syncthreads();
    const double enough = factor * pairwise(plan, (double*)memory, [&](int k) { return terms[k]; });
    for (int d = 1; d < count && top > 2 * NOTHING; d++) {
      const int unit = (top >> 1) + (top & 1) - bits;
      int next = 2 * NOTHING;
      for (int k = threadIdx.x; k < K; k += blockDim.x) {
        s64 rest = m[k];
        const int digit = take(rest, e[k], unit, rule);
        m[k] = rest;
        next = larger(next, key(rest, e[k], room));
        double size = weighted((double)digit, unit - ceiling);
        if (!printed) size = size + weighted((double)rest, e[k] - ceiling);
        terms[k] = (size < 0 ? -size : size) * weights[k];
      }
      top = block_max(next);  // a barrier: the terms are there
      const double lost = (d + 1) * pairwise(plan, (double*)memory, [&](int k) { return terms[k]; });
      if (threadIdx.x == 0 && !(enough > lost || lost == 0)) atomicAdd(&failed[d], 1);
    }
  }
}

// The same criterion in floating point, for the matrices of `cut_doubles` in slices.cu. The numbers are in shared
// memory, with a gap of eight after every 128, so that the leaves of a warp are in different banks.
FPEMU_FUNCTION int apart(int k) { return k + k / 128 * 8; }

extern "C" __global__ void __launch_bounds__(512)
    criterion_doubles(const double* X, s64 pitch, int rows, int K, const double* weights, int bits, int rule, int room,
                      int printed, double factor, int count, Plan plan, int* failed) {
  FPEMU_SHARED_BYTES(memory);
  double *parts = (double*)memory, *left = parts + (plan.pieces + 1) / 2 * 2;
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    u64 largest = 0;
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
      u64 code = fp64_code(X[row * pitch + k]);
      if (is_special(code)) code = 0;
      left[apart(k)] = fp64_of(code);
      code &= ~(1ull << 63);
      if (code > largest) largest = code;
    }
    largest = block_max_code(largest);
    __syncthreads();
    if (!largest) continue;
    const Element first = element(largest);
    const int ceiling = first.e + ceil_log2((u64)first.m);
    int base = 0;
    double enough = 0;
    // the residual before slice d equals the slice plus the residual after it
    for (int d = 1; d < count && largest; d++) {
      const Element x = element(largest);
      const int top = key(x.m, x.e, room), unit = base + (top >> 1) + (top & 1) - bits;
      const double scale = power(base - ceiling), step = power(base - unit), digit_scale = power(unit - ceiling);
      const double sum = pairwise(plan, parts, [&](int k) {
        const bool digits = printed && d > 1;
        const double size = digits ? digit_of(left[apart(k)] * step, rule) * digit_scale : left[apart(k)] * scale;
        return (size < 0 ? -size : size) * weights[k];
      });
      if (d == 1) enough = factor * sum;
      const double lost = (d + 1) * sum;
      if (d > 1 && threadIdx.x == 0 && !(enough > lost || lost == 0)) atomicAdd(&failed[d], 1);
      largest = 0;
      for (int k = threadIdx.x; k < K; k += blockDim.x) {
        const double t = left[apart(k)] * step, rest = t - digit_of(t, rule);
        left[apart(k)] = rest;
        const u64 code = fp64_code(rest) & ~(1ull << 63);
        if (code > largest) largest = code;
      }
      base = unit;
      largest = block_max_code(largest);
      __syncthreads();
    }
    __syncthreads();
  }
}
