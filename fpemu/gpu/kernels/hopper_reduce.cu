// D from the partial sums of slices of K, which hopper_gemm.cu has stored: added in ascending order, then its epilogue.
//
// Before this text, struct Config: TILE_M and TILE_N of hopper_gemm.cu. Its partial sums lie tile after tile, slice after
// slice, in the order of the registers that wgmma leaves them in.
#include "hopper.cuh"
#include "hopper_nonfinite.cuh"
#include "pipeline.cuh"

constexpr int TILE_M = Config::TILE_M, TILE_N = Config::TILE_N, TILE = TILE_M * TILE_N, AHEAD = 16;

// One thread for each entry of each tile.
extern "C" __global__ void __launch_bounds__(256)
    hopper_reduce(const __grid_constant__ Task task, const __grid_constant__ Nonfinite nonfinite, const int slices) {
  grid_release();
  grid_wait();
  const int number = blockIdx.x / (TILE / 256), place = blockIdx.x % (TILE / 256) * 256 + threadIdx.x;
  const float* from = task.slices + (s64)number * slices * TILE + place;
  float total = -0.f;  // -0 + x is x for every x
  for (int slice = 0; slice < slices; slice += AHEAD) {
    float x[AHEAD];
    FPEMU_UNROLL
    for (int i = 0; i < AHEAD; i++) x[i] = slice + i < slices ? __ldcg(from + (slice + i) * (s64)TILE) : -0.f;
    FPEMU_UNROLL
    for (int i = 0; i < AHEAD; i++) total = __fadd_rn(total, x[i]);
  }
  // register 4 j + 2 g + i of lane 4 r + c of warp w is row 16 w + r + 8 g, column 8 j + 2 c + i
  const int held = place % 4, thread = place / 4 % 128, j = place / 512 % (TILE_N / 8),
            warpgroup = place / (64 * TILE_N);
  const TileScheduler<TILE_M, TILE_N, 1>::Tile at =
      TileScheduler<TILE_M, TILE_N, 1>(task.M, task.N, task.group).in_batch(number, 0);
  const int row = at.m + 64 * warpgroup + thread / 32 * 16 + thread % 32 / 4 + 8 * (held / 2);
  const int column = at.n + 8 * j + thread % 4 * 2 + held % 2;
  if (row >= task.M || column >= task.N) return;
  const WarpgroupTile tile(task, row, column, at.batch);
  int exponent = 0;
  if (task.row_exponents) exponent += task.row_exponents[tile.where.a * task.M + row];
  if (task.column_exponents) exponent += task.column_exponents[tile.where.b * task.N + column];
  total = times_power_of_two(total, -exponent);
  if (nonfinite.any()) nonfinite_sum(task, nonfinite, tile.where, row, column, total);
  store_output(task, tile.where, row, column, total);
}
