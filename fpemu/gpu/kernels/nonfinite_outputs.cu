// Write the outputs that depend on a NaN or an Inf, with SGEMM's values (nonfinite.cuh), and no others.
#include "dependent_launch.cuh"
#include "nonfinite.cuh"

constexpr int SIDE = 16;

struct Side {
  const float* x;
  const s64* of;  // where the matrix of each product begins
  s64 row_step, k_step;
  const u8* special;  // of each row of each matrix
  const s64* index;   // which matrix each product takes
};

// Each block computes several tiles; it skips tiles without a NaN or an Inf in their rows and columns, and returns at
// once if the operands have none.
extern "C" __global__ void __launch_bounds__(256)
    patch(const float* A, const s64* a_of, s64 a_row, s64 a_k, const u8* a_special, const s64* a_index,
          const u64* a_faults, const float* B, const s64* b_of, s64 b_row, s64 b_k, const u8* b_special,
          const s64* b_index, const u64* b_faults, float* D, const s64* d_of, s64 d_row, const float* C,
          const s64* c_of, s64 c_row, s64 c_column, s64 count, s64 M, s64 N, s64 K, float alpha, float beta,
          u64 nan_code) {
  __shared__ float left[SIDE][SIDE + 1], right[SIDE][SIDE + 1];
  wait_for_previous_grid();
  if (!*a_faults && !*b_faults) return;
  const Side a = {A, a_of, a_row, a_k, a_special, a_index}, b = {B, b_of, b_row, b_k, b_special, b_index};
  const Scaling<float> scaling = {alpha, beta, nan_code};
  const s64 high = (M + SIDE - 1) / SIDE, wide = (N + SIDE - 1) / SIDE;
  const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
  for (s64 tile = blockIdx.x; tile < count * high * wide; tile += gridDim.x) {
    const s64 p = tile / (high * wide), row = tile / wide % high * SIDE + y, column = tile % wide * SIDE + x;
    const bool inside = row < M && column < N;
    const bool affected = inside && (a.special[a.index[p] * M + row] || b.special[b.index[p] * N + column]);
    if (!__syncthreads_or(affected)) continue;
    int outcome = 0;
    for (s64 k = 0; k < K; k += SIDE) {
      const s64 other = tile % wide * SIDE + y;  // the column whose entry k + x this thread fetches
      left[y][x] = row < M && k + x < K ? a.x[a.of[p] + row * a.row_step + (k + x) * a.k_step] : 1.0f;
      right[y][x] = other < N && k + x < K ? b.x[b.of[p] + other * b.row_step + (k + x) * b.k_step] : 1.0f;
      __syncthreads();
      if (affected)
        for (int i = 0; i < SIDE; i++) outcome |= product_of(left[y][i], right[x][i]);
      __syncthreads();
    }
    if (!affected) continue;
    const float* c = C ? C + c_of[p] + row * c_row + column * c_column : nullptr;
    D[d_of[p] + row * d_row + column] = finished(fp32_of(code_of(outcome)), scaling, c);
  }
}
