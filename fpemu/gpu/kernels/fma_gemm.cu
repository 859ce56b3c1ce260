// SGEMM and DGEMM as fpemu defines them: every output a chain of fused multiply-adds over k in a stated order.
//
// `ks` lists the positions of K in the order in which they are added, `ends` says after which a chain ends (its sum is
// added outside, and the next begins at zero) and after which a slice ends (slices are joined). REAL is float or
// double; JOIN_PAIRS: slices are joined pairwise, on a stack of sums over 2^n of them.
#include "epilogue.cuh"

constexpr int TILE = 64, DEPTH = 16, THREADS = 256, SIDE = 4;
constexpr int LEVELS = 32;
enum { CHAIN_ENDS = 1, SLICE_ENDS = 2 };

#ifdef __CUDACC__
FPEMU_FUNCTION float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
FPEMU_FUNCTION double fused(double x, double y, double z) { return __fma_rn(x, y, z); }
#else
FPEMU_FUNCTION float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
FPEMU_FUNCTION double fused(double x, double y, double z) { return __builtin_fma(x, y, z); }
#endif

// The sum of the slices so far, one after another.
struct InTurn {
  REAL total;
  int number;
  FPEMU_FUNCTION void begin() { number = 0, total = 0; }
  FPEMU_FUNCTION void add(REAL part) { total = number++ ? total + part : part; }
  FPEMU_FUNCTION REAL sum() { return total; }
};
struct InPairs {
  REAL waiting[LEVELS];
  int number, height;
  FPEMU_FUNCTION void begin() { number = height = 0; }
  FPEMU_FUNCTION void add(REAL part) {
    for (int n = number++; n & 1; n >>= 1) part = waiting[--height] + part;
    waiting[height++] = part;
  }
  FPEMU_FUNCTION REAL sum() {
    REAL total = waiting[--height];
    while (height) total = waiting[--height] + total;
    return total;
  }
};
#ifdef JOIN_PAIRS
typedef InPairs Join;
#else
typedef InTurn Join;
#endif

extern "C" __global__ void __launch_bounds__(256)
    ordinary(const REAL* A, const s64* a_of, s64 a_row, s64 a_k, const REAL* B, const s64* b_of, s64 b_k, s64 b_column,
             REAL* D, const s64* d_of, s64 d_row, const REAL* C, const s64* c_of, s64 c_row, s64 c_column, s64 M, s64 N,
             s64 K, const int* ks, const u8* ends, REAL alpha, REAL beta, u64 nan_code) {
  __shared__ REAL a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
  const s64 high = (M + TILE - 1) / TILE, wide = (N + TILE - 1) / TILE, p = blockIdx.x / (high * wide);
  const s64 top = blockIdx.x / wide % high * TILE, side = blockIdx.x % wide * TILE;
  const int y = threadIdx.x / (TILE / SIDE),
            x = threadIdx.x % (TILE / SIDE);  // its rows y + 16 i, its columns x + 16 j
  const bool a_by_k = a_k <= a_row, b_by_k = b_k <= b_column;
  const REAL *from_a = A + a_of[p], *from_b = B + b_of[p];
  REAL acc[SIDE][SIDE] = {}, outer[SIDE][SIDE] = {};
  Join join[SIDE][SIDE];
  for (int i = 0; i < SIDE; i++)
    for (int j = 0; j < SIDE; j++) join[i][j].begin();
  for (s64 k = 0; k < K; k += DEPTH) {
    for (int n = threadIdx.x; n < DEPTH * TILE; n += THREADS) {
      const int q = a_by_k ? n % DEPTH : n / TILE, row = a_by_k ? n / DEPTH : n % TILE;
      a[q][row] = top + row < M && k + q < K ? from_a[(top + row) * a_row + ks[k + q] * a_k] : (REAL)0;
      const int r = b_by_k ? n % DEPTH : n / TILE, column = b_by_k ? n / DEPTH : n % TILE;
      b[r][column] = side + column < N && k + r < K ? from_b[ks[k + r] * b_k + (side + column) * b_column] : (REAL)0;
    }
    __syncthreads();
    for (int q = 0; q < DEPTH && k + q < K; q++) {
      const u8 end = ends[k + q];
      FPEMU_UNROLL
      for (int i = 0; i < SIDE; i++) FPEMU_UNROLL
      for (int j = 0; j < SIDE; j++) acc[i][j] = fused(a[q][y + 16 * i], b[q][x + 16 * j], acc[i][j]);
      if (!end) continue;
      FPEMU_UNROLL
      for (int i = 0; i < SIDE; i++) FPEMU_UNROLL
      for (int j = 0; j < SIDE; j++) {
        if (end & CHAIN_ENDS) outer[i][j] = outer[i][j] + acc[i][j], acc[i][j] = 0;
        if (end & SLICE_ENDS) join[i][j].add(PROMOTED ? outer[i][j] : acc[i][j]), outer[i][j] = acc[i][j] = 0;
      }
    }
    __syncthreads();
  }
  const Scaling<REAL> scaling = {alpha, beta, nan_code};
  for (int i = 0; i < SIDE; i++)
    for (int j = 0; j < SIDE; j++) {
      const s64 row = top + y + 16 * i, column = side + x + 16 * j;
      if (row >= M || column >= N) continue;
      const REAL* c = C ? C + c_of[p] + row * c_row + column * c_column : nullptr;
      D[d_of[p] + row * d_row + column] = finished(join[i][j].sum(), scaling, c);
    }
}
