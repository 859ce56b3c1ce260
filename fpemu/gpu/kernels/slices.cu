// Matrices made ready for exact products: rows with K contiguous, what their exponents are, and their digits.
//
// A row is a row of A or a column of B. Digits of slice p of a row stand from ((row · slices) + place) · pitch on, so
// that slices lie side by side along K; A's run forwards, B's backwards (`backwards`): slices whose numbers add up to
// the same are then products of one stretch of K, however many. Rows and columns beyond the matrix are zeros.
#include "block_reduce.cuh"
#include "slices.cuh"

// What a survey of all rows finds: maxima, so that it may begin with any numbers far below zero.
struct Summary {
  int width;    // bits from the highest of a row to its lowest, the most of any row
  int high;     // the largest ceil(log2 max|x|)
  int low;      // minus the least exponent of a last place
  int special;  // 1 if there is a NaN or an infinity
  int norm;     // ceil(log2 of the sum of squares) of a row in units of its lowest place, at most
};

// X as doubles, K contiguous: out[r · pitch + k] = X[r · row_step + k · step], by tiles.
extern "C" __global__ void __launch_bounds__(256)
    gather(const void* X, int narrow, s64 row_step, s64 step, int rows, int K, double* out, s64 pitch) {
  __shared__ double tile[32][33];
  const int across = (K + 31) / 32, k0 = blockIdx.x % across * 32, r0 = blockIdx.x / across * 32;
  const bool turned = row_step < step;  // neighbours in memory are those of a column
  for (int y = threadIdx.y; y < 32; y += blockDim.y)
    for (int x = threadIdx.x; x < 32; x += blockDim.x) {
      const int r = r0 + (turned ? x : y), k = k0 + (turned ? y : x);
      if (r >= rows || k >= K) continue;
      const s64 at = r * row_step + k * step;
      tile[turned ? x : y][turned ? y : x] = narrow ? (double)((const float*)X)[at] : ((const double*)X)[at];
    }
  __syncthreads();
  for (int y = threadIdx.y; y < 32; y += blockDim.y)
    for (int x = threadIdx.x; x < 32; x += blockDim.x)
      if (r0 + y < rows && k0 + x < K) out[(r0 + y) * pitch + k0 + x] = tile[y][x];
}

extern "C" __global__ void __launch_bounds__(256)
    survey(const double* X, s64 pitch, int rows, int K, int* high, int* low, int* special, Summary* all) {
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    u64 largest = 0;
    int bottom = NOTHING, odd = 0;
    double squares = 0;
    for (int k = 4 * threadIdx.x; k < K; k += 4 * blockDim.x) {
      u64 codes[4];
      read_four(codes, X + row * pitch, k, K);
      FPEMU_UNROLL
      for (int v = 0; v < 4; v++) {
        const u64 code = codes[v] & ~(1ull << 63);
        const Element x = element(code);
        odd |= is_special(code);
        if (!x.m) continue;
        if (code > largest) largest = code;
        squares += fp64_of(code) * fp64_of(code);
        bottom = larger(bottom, -(x.e + trailing_zeros_64((u64)x.m)));
      }
    }
    const Element x = element(largest);
    const int top = block_max(x.m ? x.e + ceil_log2((u64)x.m) : NOTHING);
    bottom = block_max(bottom);
    odd = block_max(odd);
    squares = block_sum(squares);
    if (threadIdx.x) continue;
    const bool zero = top == NOTHING;
    high[row] = zero ? 0 : top;
    low[row] = zero ? 0 : -bottom;
    special[row] = odd;
    if (odd) atomicMax(&all->special, 1);
    if (zero) continue;
    atomicMax(&all->width, top + bottom);
    atomicMax(&all->high, top);
    atomicMax(&all->low, bottom);
    // fewer than K roundings of a part in 2^53 on the way of each; good while squares are normal numbers
    const Element sum = element(fp64_code(squares * (1 + (K + 8) * 2.220446049250313e-16)));
    if (sum.m) atomicMax(&all->norm, sum.e + ceil_log2((u64)sum.m) + 2 * bottom);
  }
}

constexpr int MOST_FILLED = 2176;  // slices of one bit span all of fp64

// What `cut` finds besides the digits: all but the counters are maxima.
struct Cut {
  int slices, incomplete, largest, deepest;  // deepest: the largest |exponent| of a slice
  u64 filled[MOST_FILLED];                   // digits that are not zero, slice by slice
};

// The first `count` slices of every row; digits may be null. `exponents` (count, all rows): of the unit digit; `tops`:
// tau. `scratch` holds blocks · K numbers where a row does not fit into shared memory, else it is null.
extern "C" __global__ void __launch_bounds__(512)
    cut(const double* X, s64 pitch, int rows, int all_rows, int K, int bits, int rule, int room, int headroom,
        int count, int carrier, int backwards, s64 width, void* digits, int* exponents, int* tops, u8* scratch,
        Cut* found) {
  FPEMU_SHARED_BYTES(memory);
  u8* own = scratch ? scratch + (s64)blockIdx.x * 10 * ((K + 7) & ~7) : memory;
  s64* m = (s64*)own;
  short* e = (short*)(own + 8 * (s64)((K + 7) & ~7));
  const bool adaptive = rule == PUBLISHED || rule == BALANCED;
  for (int row = blockIdx.x; row < all_rows; row += gridDim.x) {
    int top = 2 * NOTHING;
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
      const Element x = row < rows ? element(fp64_code(X[row * pitch + k])) : Element{0, 0};
      m[k] = x.m;
      e[k] = (short)x.e;
      top = larger(top, key(x.m, x.e, room));
    }
    top = block_max(top);
    int unit = 0, largest = 0, used = 0, deepest = 0;
    for (int p = 0; p < count; p++) {
      const bool there = top > 2 * NOTHING;
      if (there) {
        const int tau = adaptive || p == 0 ? (top >> 1) + (top & 1) + headroom : unit;
        unit = tau - bits;
        used = p + 1;
      }
      if (threadIdx.x == 0) {
        exponents[(s64)p * all_rows + row] = unit;
        if (p == 0) tops[row] = unit + bits;
      }
      deepest = larger(deepest, unit < 0 ? -unit : unit);
      const s64 base = ((s64)row * count + (backwards ? count - 1 - p : p)) * width;
      int next = 2 * NOTHING;
      s64 filled = 0;
      for (int k = threadIdx.x; k < width; k += blockDim.x) {
        int digit = 0;
        if (k < K && there) {
          s64 rest = m[k];
          digit = take(rest, e[k], unit, rule);
          if (digit) m[k] = rest;
          next = larger(next, key(rest, e[k], room));
          filled += digit != 0;
          largest = larger(largest, digit < 0 ? -digit : digit);
        }
        if (digits) store(digits, base + k, digit, carrier);
      }
      top = block_max(next);
      filled = there ? block_sum(filled) : 0;
      if (threadIdx.x == 0 && filled) atomicAdd(&found->filled[smaller(p, MOST_FILLED - 1)], (u64)filled);
    }
    largest = block_max(largest);
    if (threadIdx.x == 0 && row < rows) {
      atomicMax(&found->slices, used);
      atomicMax(&found->incomplete, (int)(top > 2 * NOTHING));
      atomicMax(&found->largest, largest);
      atomicMax(&found->deepest, deepest);
    }
  }
}

// The same in floating point, for matrices whose entries lie between 2^-900 and 2^900 and within 900 bits of their
// row's largest: the residual is kept in units of the last slice, so that nothing underflows and only the rounding to
// the slice is inexact.
extern "C" __global__ void __launch_bounds__(512)
    cut_doubles(const double* X, s64 pitch, int rows, int all_rows, int K, int bits, int rule, int room, int headroom,
                int count, int carrier, int backwards, s64 width, void* digits, int* exponents, int* tops, Cut* found) {
  FPEMU_SHARED_BYTES(memory);
  double* left = (double*)memory;  // number k at (k % 4) · quarter + k / 4
  const int quarter = (int)width / 4;
  const bool adaptive = rule == PUBLISHED || rule == BALANCED;
  int most = 0, deepest = 0, longest = 0, incomplete = 0;
  for (int row = blockIdx.x; row < all_rows; row += gridDim.x) {
    u64 largest = 0;
    for (int i = threadIdx.x; i < quarter; i += blockDim.x) {
      u64 codes[4];
      read_four(codes, X + row * pitch, 4 * i, row < rows ? K : 0);
      FPEMU_UNROLL
      for (int v = 0; v < 4; v++) {
        if (is_special(codes[v])) codes[v] = 0;
        left[v * quarter + i] = fp64_of(codes[v]);
        codes[v] &= ~(1ull << 63);
        if (codes[v] > largest) largest = codes[v];
      }
    }
    largest = block_max_code(largest);
    int unit = 0, base = 0, used = 0;
    for (int p = 0; p < count; p++) {
      const bool there = largest != 0;
      if (there) {
        const Element x = element(largest);
        const int top = key(x.m, x.e, room);
        const int tau = adaptive || p == 0 ? base + (top >> 1) + (top & 1) + headroom : unit;
        unit = tau - bits;
        used = p + 1;
      }
      if (threadIdx.x == 0) {
        exponents[(s64)p * all_rows + row] = unit;
        if (p == 0) tops[row] = unit + bits;
      }
      deepest = larger(deepest, unit < 0 ? -unit : unit);
      const double factor = power(there ? base - unit : 0);
      const s64 start = ((s64)row * count + (backwards ? count - 1 - p : p)) * width;
      int filled = 0;
      largest = 0;
      __syncthreads();  // all have read the largest of before
      for (int i = threadIdx.x; i < quarter; i += blockDim.x) {
        int four[4];
        FPEMU_UNROLL
        for (int v = 0; v < 4; v++) {
          const double t = left[v * quarter + i] * factor, digit = there ? digit_of(t, rule) : 0;
          const double rest = t - digit;
          left[v * quarter + i] = rest;
          const u64 code = fp64_code(rest) & ~(1ull << 63);
          if (code > largest) largest = code;
          four[v] = integer_of(digit);
          filled += four[v] != 0;
          most = larger(most, four[v] < 0 ? -four[v] : four[v]);
        }
        if (!digits) continue;
        if (carrier == INT8_DIGITS) {
          *(u32*)((u8*)digits + start + 4 * i) =
              (u32)(four[0] & 255) | (u32)(four[1] & 255) << 8 | (u32)(four[2] & 255) << 16 | (u32)four[3] << 24;
        } else if (carrier == FP16_DIGITS) {
          u32* out = (u32*)((u16*)digits + start + 4 * i);
          out[0] = half_code(four[0]) | (u32)half_code(four[1]) << 16;
          out[1] = half_code(four[2]) | (u32)half_code(four[3]) << 16;
        } else {
          for (int v = 0; v < 4; v++) store(digits, start + 4 * i + v, four[v], carrier);
        }
      }
      if (there) base = unit;
      largest = block_max_code(largest);
      const s64 sum = there ? block_sum(filled) : 0;
      if (threadIdx.x == 0 && sum) atomicAdd(&found->filled[smaller(p, MOST_FILLED - 1)], (u64)sum);
    }
    if (row < rows) {
      incomplete |= largest != 0;
      longest = larger(longest, used);
    }
    __syncthreads();
  }
  most = block_max(most);
  if (threadIdx.x == 0) {
    atomicMax(&found->slices, longest);
    atomicMax(&found->incomplete, incomplete);
    atomicMax(&found->largest, most);
    atomicMax(&found->deepest, deepest);
  }
}

// How many numbers need so many bits below the top of their row, zeros none: counts[4096].
extern "C" __global__ void __launch_bounds__(256)
    bits_needed(const double* X, s64 pitch, int rows, int K, int room, int headroom, int precision, u64* counts) {
  __shared__ u32 own[4096];
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) own[i] = 0;
  __syncthreads();
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    int top = 2 * NOTHING;
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
      const Element x = element(fp64_code(X[row * pitch + k]));
      top = larger(top, key(x.m, x.e, room));
    }
    top = block_max(top);
    const int tau = (top >> 1) + (top & 1) + headroom;
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
      const Element x = element(fp64_code(X[row * pitch + k]));
      const int bits = x.m ? tau - (x.e + bit_length(size_of(x.m))) + precision : 0;
      atomicAdd(&own[smaller(larger(bits, 0), 4095)], 1u);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 4096; i += blockDim.x)
    if (own[i]) atomicAdd(&counts[i], (u64)own[i]);
}
