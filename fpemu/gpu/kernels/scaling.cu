// The powers of two of Ozaki scheme II, by the rules of fpemu.schemes.errorfree.scaling, to the same integers.
#include "block_reduce.cuh"
#include "powers_of_two.cuh"

// Where a row is read more than once it is kept in shared memory (`kept`: there is room for it). The first reading
// finds floor(log2 max|x|), NOTHING for zeros, and NaN and infinities.
struct First {
  int top, special;
};
__device__ First read_row(const double* row, int K, u64* memory, bool kept) {
  u64 largest = 0;
  int odd = 0;
  for (int k = 4 * threadIdx.x; k < K; k += 4 * blockDim.x) {
    u64 codes[4];
    read_four(codes, row, k, K);
    FPEMU_UNROLL
    for (int v = 0; v < 4; v++) {
      const u64 code = codes[v] & ~(1ull << 63);
      const bool special = is_special(code);
      odd |= special;
      if (!special && code > largest) largest = code;
      if (kept && k + v < K) memory[k + v] = code;
    }
  }
  const Element x = element(largest);
  First found;
  found.top = block_max(x.m ? x.e + bit_length((u64)x.m) - 1 : NOTHING);
  found.special = block_max(odd);
  return found;
}

// |x| 2^shift rounded up to an integer, below 2^32; x by its code without the sign.
FPEMU_FUNCTION u64 rounded_up(u64 code, int shift) {
  const u64 H = size_of(element(code).m) << 11;  // |x| 2^shift = H 2^-right
  const int right = larger((int)(code >> 52), 1);
  const int places = 1086 - shift - right;
  if (places <= 0) return H << -places;  // subnormal numbers alone
  return places > 64 ? H != 0 : (H >> 1 >> (places - 1)) + (H << (64 - places) != 0);
}

// abar = |x| 2^(5 - floor(log2 max|x|)) rounded up, at least 1 where x is not zero; `first` is that exponent, and NOTHING
// for a row of zeros.
extern "C" __global__ void __launch_bounds__(512)
    leading(const double* X, s64 pitch, int rows, int all_rows, int K, int kept, signed char* out, s64 width,
            int* first, int* special) {
  FPEMU_SHARED_BYTES(memory);
  const u64* row_codes = (const u64*)memory;
  for (int row = blockIdx.x; row < all_rows; row += gridDim.x) {
    const double* x_row = X + row * pitch;
    const First found = read_row(x_row, row < rows ? K : 0, (u64*)memory, kept);
    const int shift = 5 - (found.top == NOTHING ? 0 : found.top);
    for (int start = 4 * threadIdx.x; start < width; start += 4 * blockDim.x) {
      u32 packed = 0;
      FPEMU_UNROLL
      for (int v = 0; v < 4; v++) {
        const int k = start + v;
        const u64 code = row >= rows || k >= K ? 0 : kept ? row_codes[k] : fp64_code(x_row[k]) & ~(1ull << 63);
        packed |= (u32)rounded_up(code, shift) << (8 * v);
      }
      *(u32*)(out + (s64)row * width + start) = packed;
    }
    __syncthreads();
    if (threadIdx.x == 0 && row < rows) {
      first[row] = found.top == NOTHING ? NOTHING : shift;
      special[row] = found.special;
    }
  }
}

// The largest of every row and column of the product of leading bits, the sum of `parts` that lie `stride` apart; both
// arrays begin as zeros.
template <class Sum>
FPEMU_FUNCTION void largest_of(const int* T, int parts, s64 stride, s64 pitch, int M, int N, Sum* rows, Sum* columns) {
  const int band = (M + gridDim.y - 1) / gridDim.y, first = blockIdx.y * band, last = smaller(first + band, M);
  for (s64 start = (s64)blockIdx.x * blockDim.x; start < N; start += (s64)gridDim.x * blockDim.x) {
    const s64 j = start + threadIdx.x;
    Sum most = 0;
    for (int i = first; i < last; i++) {
      Sum x = 0;
      for (int part = 0; part < parts && j < N; part++) x += T[part * stride + i * pitch + j];
      most = x > most ? x : most;
#ifdef __CUDACC__
      for (int step = 16; step; step >>= 1) {
        const Sum other = __shfl_xor_sync(~0u, x, step);
        x = other > x ? other : x;
      }
      if (threadIdx.x % 32 == 0 && x > rows[i]) atomicMax(&rows[i], x);
#else
      atomicMax(&rows[i], x);
#endif
    }
    if (j < N && most) atomicMax(&columns[j], most);
  }
}
extern "C" __global__ void __launch_bounds__(256)
    largest_sums(const int* T, s64 pitch, int M, int N, int* rows, int* columns) {
  largest_of(T, 1, 0, pitch, M, N, rows, columns);
}
extern "C" __global__ void __launch_bounds__(256)
    largest_long_sums(const int* T, int parts, s64 stride, s64 pitch, int M, int N, u64* rows, u64* columns) {
  largest_of(T, parts, stride, pitch, M, N, rows, columns);
}

// Upper bounds of the sums of squares of |x| 2^-e with e = floor(log2 max|x|), and `first` = -e, as in `leading`.
extern "C" __global__ void __launch_bounds__(512)
    squares(const double* X, s64 pitch, int rows, int K, int kept, double* sums, int* first, int* special) {
  FPEMU_SHARED_BYTES(memory);
  const u64* row_codes = (const u64*)memory;
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const double* x_row = X + row * pitch;
    const First found = read_row(x_row, K, (u64*)memory, kept);
    const int e = found.top == NOTHING ? 0 : found.top;
    if (kept) __syncthreads();
    s64 high = 0, low = 0;
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
      const u64 code = (kept ? row_codes[k] : fp64_code(x_row[k])) & ~(1ull << 63);
      u64 units = rounded_up(code, 30 - e);
      if (units == 1) {  // what rounds to zero in fp64 counts as zero
        const Element x = element(code);
        const int tiny = -1075 - (x.e + 30 - e);
        if (tiny >= 0 && (tiny >= 53 || (u64)x.m <= 1ull << tiny)) units = 0;
      }
      const u64 square = units * units;
      high += (s64)(square >> 31);
      low += (s64)(square & 0x7fffffff);
    }
    high = block_sum(high);
    low = block_sum(low);
    if (threadIdx.x) continue;
    sums[row] = sum_of_squares(high, low);
    first[row] = found.top == NOTHING ? NOTHING : -e;
    special[row] = found.special;
  }
}

// Powers of two of rows from their sums S, of one of three types: mu = first + room(S), 0 for rows of zeros; fast: the
// room is at most h - 1, for sums of 4, and `first` counts twice. paired: rows 2i and 2i + 1 have the larger of both sums.
//
// *norm, if not null, becomes the largest bound on the sum of squares of a row of integers |trunc(x 2^mu)|, as a code of
// fp64: S 4^t with t = mu - first. It does not overflow, since S 4^t <= g 4^h or t <= h - 1. Where it is subnormal and
// loses bits, all of the row's integers are zero.
enum Sums { INT_SUMS, LONG_SUMS, DOUBLE_SUMS };
extern "C" __global__ void __launch_bounds__(256) powers(int rows, const int* first, const void* sums, int type, int h,
                                                         double g, int fast, int paired, int* mu, u64* norm) {
  auto sum = [&](int i) {
    return type == INT_SUMS    ? (double)((const int*)sums)[i]
           : type == LONG_SUMS ? (double)((const u64*)sums)[i]
                               : ((const double*)sums)[i];
  };
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += gridDim.x * blockDim.x) {
    double S = sum(i);
    if (paired && sum(i ^ 1) > S) S = sum(i ^ 1);
    const bool zero = first[i] == NOTHING;
    const int t = room(S, h, g), scaled_by = fast && !zero ? smaller(h - 1, t + first[i]) : t;
    const u64 bound = fp64_code(weighted(S, 2 * scaled_by));
    mu[i] = zero ? 0 : first[i] + scaled_by;
    if (norm && !zero && bound > *norm) atomicMax(norm, bound);
  }
}

// |trunc(x 2^mu)| as doubles.
extern "C" __global__ void __launch_bounds__(256)
    sizes(const double* X, s64 pitch, int rows, int K, const int* mu, double* out, s64 width) {
  for (s64 row = blockIdx.x; row < rows; row += gridDim.x)
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
      const Element x = element(fp64_code(X[row * pitch + k]));
      const u64 m = size_of(x.m);
      const int s = x.e + mu[row];
      out[row * width + k] = s >= 0 ? weighted((double)m, s) : s <= -64 ? 0.0 : (double)(m >> -s);
    }
}

// The largest of some numbers that are not negative, and the place of the first of them, counted from the end and 1.
extern "C" __global__ void __launch_bounds__(256) largest_double(const double* x, s64 count, u64* most, u64*) {
  u64 found = 0;
  for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (s64)gridDim.x * blockDim.x)
    if (fp64_code(x[i]) > found) found = fp64_code(x[i]);
  atomicMax(most, found);
}
extern "C" __global__ void __launch_bounds__(256) where_double(const double* x, s64 count, u64* most, u64* place) {
  for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (s64)gridDim.x * blockDim.x)
    if (fp64_code(x[i]) == *most) atomicMax(place, (u64)(count - i));
}
