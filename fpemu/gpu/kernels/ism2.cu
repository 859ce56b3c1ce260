// ISM2's two optimisations of TSM2's V3 for a small B (Rivera, Chen, Xiong, Song, Tao 2020, Algorithms 6 and 7).
//
// Fewer threads than A has rows: a thread does the rows r = its number, r + total threads, ... The host's tcf says how
// many, by the size of the grid.
#include "tallskinny_tiles.cuh"

// Algorithm 6: one row after another.
extern "C" __global__ void __launch_bounds__(T1) ism2_1(Operands o) {
  const s64 total = gridDim.x * (s64)T1;
  for (s64 first = blockIdx.x * (s64)T1; first < o.m; first += total) prefetched(o, first + threadIdx.x);
}

// What C has so far of a row; nothing before the first tile of B.
FPEMU_FUNCTION void load_c(const Operands& o, s64 row, s64 j, s64 p, REAL (&c)[T2]) {
  FPEMU_UNROLL
  for (int q = 0; q < T2; q++) c[q] = j && row < o.m && p + q < o.n ? *at_c(o, row, p + q) : (REAL)0;
}

// Algorithm 7: for a tile of B all rows in turn, the next row's part of C loaded ahead; then the next tile.
extern "C" __global__ void __launch_bounds__(T1) ism2_2(Operands o) {
  const s64 total = gridDim.x * (s64)T1, own = blockIdx.x * (s64)T1 + threadIdx.x;
  for (s64 p = 0; p < o.n; p += T2) {
    REAL next_b[T2];
    load_b(o, 0, p, next_b);
    __syncthreads();
    store_b(next_b);
    for (s64 j = 0; j < o.k; j += T1) {
      __syncthreads();
      load_b(o, j + T1, p, next_b);
      REAL c[T2];
      load_c(o, own, j, p, c);
      for (s64 row = own; row < o.m; row += total) {
        REAL next_c[T2], a[T3];
        load_c(o, row + total, j, p, next_c);
        load_a(o, row, j, a);
        tile(o, row, j, a, c);
        store(o, row, p, c);
        FPEMU_UNROLL
        for (int q = 0; q < T2; q++) c[q] = next_c[q];
      }
      __syncthreads();
      store_b(next_b);
    }
  }
}
