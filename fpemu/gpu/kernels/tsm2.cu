// TSM2's four versions (Rivera, Chen, Xiong, Song, Tao 2020, Algorithms 1 to 4): a thread for each row of A.
//
// T1 threads a block and rows of B in a tile, T2 columns of C at a time, T3 elements of A at a time; V0 and V1 have T1
// alone, V1 keeps T2 columns of C in registers. Tiles that reach beyond a matrix are cut, not padded: c + 0 is not c if
// c is -0.
#include "tallskinny_tiles.cuh"

FPEMU_FUNCTION s64 own_row() { return blockIdx.x * (s64)T1 + threadIdx.x; }

// Algorithm 1: inner products; a row of A is read once for every column of B.
extern "C" __global__ void __launch_bounds__(T1) tsm2_v0(Operands o) {
  const s64 row = own_row();
  if (row >= o.m) return;
  for (s64 i = 0; i < o.n; i++) {
    REAL c = 0;
    for (s64 j = 0; j < o.k; j++) c = fused(*at_a(o, row, j), *at_b(o, j, i), c);
    *at_c(o, row, i) = finished(c);
  }
}

// Algorithm 2: outer products; a row of C in registers, and each element of A read once for all of them.
extern "C" __global__ void __launch_bounds__(T1) tsm2_v1(Operands o) {
  const s64 row = own_row();
  if (row >= o.m) return;
  for (s64 p = 0; p < o.n; p += T2) {
    REAL c[T2] = {};
    for (s64 i = 0; i < o.k; i++) {
      const REAL a = *at_a(o, row, i);
      FPEMU_UNROLL
      for (int q = 0; q < T2; q++)
        if (p + q < o.n) c[q] = fused(a, *at_b(o, i, p + q), c[q]);
    }
    store(o, row, p, c);
  }
}

// Algorithm 3: tiles of B in shared memory.
extern "C" __global__ void __launch_bounds__(T1) tsm2_v2(Operands o) {
  const s64 row = own_row();
  for (s64 p = 0; p < o.n; p += T2) {
    REAL c[T2] = {};
    for (s64 j = 0; j < o.k; j += T1) {
      REAL next[T2];
      __syncthreads();
      load_b(o, j, p, next);
      store_b(next);
      __syncthreads();
      for (s64 l = j; l < j + T1 && l < o.k; l += T3) {
        REAL a[T3];
        load_a(o, row, l, a);
        add(o, l, (int)(l - j), a, c);
      }
    }
    store(o, row, p, c);
  }
}

// Algorithm 4: the next tiles of B and of A are loaded before the sums of this one.
extern "C" __global__ void __launch_bounds__(T1) tsm2_v3(Operands o) { prefetched(o, own_row()); }
