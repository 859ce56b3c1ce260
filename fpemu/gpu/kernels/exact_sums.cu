// Sums of exact products of slices.
#include "block_reduce.cuh"
#include "exact_sums.cuh"

constexpr int MOST = 64;  // products of one launch

struct Pairs {
  int a[MOST], b[MOST];  // slices of A and of B
  int more[MOST];        // to be added to their exponents
  int count, parts;      // a product is the sum of so many T, one after another
};

// total += T 2^(exponents) for some products, in their order; R is the format of the sum. `spare` holds the same sum
// times 2^-back, for entries that overflow on the way; null: none can.
template <class R>
__device__ void add(R* total, R* spare, const void* T, int type, s64 stride, s64 pitch, int M, int N,
                    const Pairs& pairs, const int* rows, int all_rows, const int* columns, int all_columns,
                    const int* back_rows, const int* back_columns, int back_more, int first_row, int first) {
  const s64 j = (s64)blockIdx.x * blockDim.x + threadIdx.x;
  const s64 steps = (s64)gridDim.x * blockDim.x;
  for (s64 i = blockIdx.y; i < M; i += gridDim.y)
    for (s64 c = j; c < N; c += steps) {
      const s64 at = i * N + c;
      R sum = first ? 0 : total[at], below = first || !spare ? 0 : spare[at];
      const int back = spare ? larger(0, back_rows[first_row + i] + back_columns[c] + back_more) : 0;
      for (int t = 0; t < pairs.count; t++) {
        double x = product_at(T, type, (s64)t * pairs.parts * stride + i * pitch + c);
        for (int part = 1; part < pairs.parts; part++)
          x += product_at(T, type, ((s64)t * pairs.parts + part) * stride + i * pitch + c);
        const int s = rows[(s64)pairs.a[t] * all_rows + first_row + i] + columns[(s64)pairs.b[t] * all_columns + c] +
                      pairs.more[t];
        sum = sum + (R)weighted(x, s);
        if (spare) below = below + (R)weighted(x, s - back);
      }
      total[at] = sum;
      if (spare) spare[at] = below;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    add_products(void* total, void* spare, int narrow, const void* T, int type, s64 stride, s64 pitch, int M, int N,
                 Pairs pairs, const int* rows, int all_rows, const int* columns, int all_columns, const int* back_rows,
                 const int* back_columns, int back_more, int first_row, int first) {
  if (narrow)
    add((float*)total, (float*)spare, T, type, stride, pitch, M, N, pairs, rows, all_rows, columns, all_columns,
        back_rows, back_columns, back_more, first_row, first);
  else
    add((double*)total, (double*)spare, T, type, stride, pitch, M, N, pairs, rows, all_rows, columns, all_columns,
        back_rows, back_columns, back_more, first_row, first);
}

// The same where all exponents are within 900 of zero: products times their powers of two are exact in fp64, also
// inside of a fused multiply-add. A thread takes ROWS rows of a column.
constexpr int ROWS = 4;

template <class R, class P>
__device__ void add_tame(R* total, const P* T, s64 stride, s64 pitch, int M, int N, const Pairs& pairs, const int* rows,
                         int all_rows, const int* columns, int all_columns, int first_row, int first) {
  const s64 j = (s64)blockIdx.x * blockDim.x + threadIdx.x, steps = (s64)gridDim.x * blockDim.x;
  for (s64 i = (s64)blockIdx.y * ROWS; i < M; i += (s64)gridDim.y * ROWS)
    for (s64 c = j; c < N; c += steps) {
      R sum[ROWS];
      FPEMU_UNROLL
      for (int r = 0; r < ROWS; r++) sum[r] = first || i + r >= M ? 0 : total[(i + r) * N + c];
      for (int t = 0; t < pairs.count; t++) {
        const int column = columns[(s64)pairs.b[t] * all_columns + c] + pairs.more[t] + 1023;
        const int* row = rows + (s64)pairs.a[t] * all_rows + first_row + i;
        FPEMU_UNROLL
        for (int r = 0; r < ROWS; r++) {
          if (i + r >= M) continue;
          const double x = wide(T[(s64)t * stride + (i + r) * pitch + c]);
          const double factor = fp64_of((u64)(u32)(row[r] + column) << 52);
          sum[r] = accumulated(sum[r], x, factor);
        }
      }
      FPEMU_UNROLL
      for (int r = 0; r < ROWS; r++)
        if (i + r < M) total[(i + r) * N + c] = sum[r];
    }
}

extern "C" __global__ void __launch_bounds__(256)
    add_tame_products(void* total, int narrow, const void* T, int type, s64 stride, s64 pitch, int M, int N,
                      Pairs pairs, const int* rows, int all_rows, const int* columns, int all_columns, int first_row,
                      int first) {
#define FPEMU_ADD(R, P) \
  add_tame((R*)total, (const P*)T, stride, pitch, M, N, pairs, rows, all_rows, columns, all_columns, first_row, first)
  if (narrow) {
    if (type == INT32_PRODUCT) FPEMU_ADD(float, int);
    if (type == FP32_PRODUCT) FPEMU_ADD(float, float);
    return;
  }
  if (type == INT32_PRODUCT) FPEMU_ADD(double, int);
  if (type == FP32_PRODUCT) FPEMU_ADD(double, float);
  if (type == FP64_PRODUCT) FPEMU_ADD(double, double);
#undef FPEMU_ADD
}

// D from the sums of some rows, which are fp64 or, `narrow`, fp32.
extern "C" __global__ void __launch_bounds__(256)
    finish(const void* total, const void* spare, int narrow, int M, int N, const int* back_rows,
           const int* back_columns, int back_more, int first_row, End end) {
  const s64 j = (s64)blockIdx.x * blockDim.x + threadIdx.x, steps = (s64)gridDim.x * blockDim.x;
  for (s64 i = blockIdx.y; i < M; i += gridDim.y)
    for (s64 c = j; c < N; c += steps) {
      const s64 at = i * N + c, row = first_row + i;
      double T = narrow ? (double)((const float*)total)[at] : ((const double*)total)[at];
      if (spare && is_special(fp64_code(T))) {
        const double x = narrow ? (double)((const float*)spare)[at] : ((const double*)spare)[at];
        const int back = larger(0, back_rows[row] + back_columns[c] + back_more);
        T = finite(x) ? scaled(x, back) : x;
        if (narrow) T = (double)(float)T;
      }
      if (end.D.narrow) T = (double)(float)T;
      if (is_reached(end, row, c)) T = reached(end, row, c);
      write(end.D, row, c, finished(end, T, end.has_c ? read(end.C, row, c) : 0));
    }
}

// D from the products of an exact sum, rounded once; the unit's exponent is rows[i] + columns[j] + more.
extern "C" __global__ void __launch_bounds__(256)
    round_products(const void* T, int type, s64 stride, s64 pitch, int M, int N, int count, const int* offsets,
                   int digits, const int* rows, const int* columns, int more, int first_row, int plain, End end) {
  const s64 j = (s64)blockIdx.x * blockDim.x + threadIdx.x, steps = (s64)gridDim.x * blockDim.x;
  for (s64 i = blockIdx.y; i < M; i += gridDim.y)
    for (s64 c = j; c < N; c += steps) {
      Terms terms = {T, stride, i * pitch + c, offsets, type, count, 0, 0, 0};
      const s64 row = first_row + i;
      write(end.D, row, c, round_entry(end, row, c, terms, digits, rows[row] + columns[c] + more, plain));
    }
}
