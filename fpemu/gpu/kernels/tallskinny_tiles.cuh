// The steps of TSM2's and ISM2's algorithms on tiles: currB in shared memory, t3 elements of A and t2 of C in
// registers.
#pragma once
#include "tallskinny.cuh"

constexpr int T1 = Config::T1, T2 = Config::T2, T3 = Config::T3;  // as the papers name them
static_assert(T1 >= 1 && T1 <= 1024, "threads of a thread block");
static_assert(T2 * T1 * sizeof(REAL) <= 227 * 1024, "currB in the shared memory of a thread block");

// [column of the tile][row of the tile]: threads that store a column side by side use all banks.
extern __shared__ __align__(16) REAL curr_b[];

// A thread's row of the tile of B whose first element is (j, p); 0 beyond B, which no sum takes.
FPEMU_FUNCTION void load_b(const Operands& o, s64 j, s64 p, REAL (&b)[T2]) {
  const s64 k = j + threadIdx.x;
  FPEMU_UNROLL
  for (int q = 0; q < T2; q++) b[q] = k < o.k && p + q < o.n ? *at_b(o, k, p + q) : (REAL)0;
}
FPEMU_FUNCTION void store_b(const REAL (&b)[T2]) {
  FPEMU_UNROLL
  for (int q = 0; q < T2; q++) curr_b[q * T1 + threadIdx.x] = b[q];
}

FPEMU_FUNCTION void load_a(const Operands& o, s64 row, s64 l, REAL (&a)[T3]) {
  if (row < o.m && l + T3 <= o.k) {
    FPEMU_UNROLL
    for (int s = 0; s < T3; s++) a[s] = *at_a(o, row, l + s);
  } else {
    FPEMU_UNROLL
    for (int s = 0; s < T3; s++) a[s] = row < o.m && l + s < o.k ? *at_a(o, row, l + s) : (REAL)0;
  }
}

// C_q += A_1 currB[at, q] + ... + A_t3 currB[at + t3 - 1, q], as far as k reaches.
FPEMU_FUNCTION void add(const Operands& o, s64 l, int at, const REAL (&a)[T3], REAL (&c)[T2]) {
  if (l + T3 <= o.k) {
    FPEMU_UNROLL
    for (int s = 0; s < T3; s++) FPEMU_UNROLL
    for (int q = 0; q < T2; q++) c[q] = fused(a[s], curr_b[q * T1 + at + s], c[q]);
  } else {
    FPEMU_UNROLL
    for (int s = 0; s < T3; s++)
      if (l + s < o.k) FPEMU_UNROLL
    for (int q = 0; q < T2; q++) c[q] = fused(a[s], curr_b[q * T1 + at + s], c[q]);
  }
}

FPEMU_FUNCTION void store(const Operands& o, s64 row, s64 p, const REAL (&c)[T2]) {
  if (row >= o.m) return;
  FPEMU_UNROLL
  for (int q = 0; q < T2; q++)
    if (p + q < o.n) *at_c(o, row, p + q) = finished(c[q]);
}

// Sums over a tile of B, the elements of A loaded T3 ahead; at the end `curr` is what the next tile begins with.
FPEMU_FUNCTION void tile(const Operands& o, s64 row, s64 j, REAL (&curr)[T3], REAL (&c)[T2]) {
  for (s64 l = j; l < j + T1 && l < o.k; l += T3) {
    REAL next[T3];
    load_a(o, row, l + T3, next);
    add(o, l, (int)(l - j), curr, c);
    FPEMU_UNROLL
    for (int s = 0; s < T3; s++) curr[s] = next[s];
  }
}

// Algorithm 4 for one row a thread; all threads of a block take part in every tile of B.
FPEMU_FUNCTION void prefetched(const Operands& o, s64 row) {
  for (s64 p = 0; p < o.n; p += T2) {
    REAL c[T2] = {}, next[T2], a[T3];
    load_b(o, 0, p, next);
    __syncthreads();  // the last tile of the columns before has been read
    store_b(next);
    load_a(o, row, 0, a);
    for (s64 j = 0; j < o.k; j += T1) {
      __syncthreads();
      load_b(o, j + T1, p, next);
      tile(o, row, j, a, c);
      __syncthreads();
      store_b(next);
    }
    store(o, row, p, c);
  }
}
