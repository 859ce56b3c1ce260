// ISM2 in fp64: a warp multiplies tiles of 8 rows with all of B, which it keeps in registers, by DMMA.
//
// A warp has TILES tiles of 8 rows at a time and loads DEPTH (a multiple of 4) elements of each row ahead. VECTORS,
// where columns lie side by side: 16 bytes are two neighbouring rows, of which one belongs to an even tile and one to
// the next. Where k ends within the four of an instruction, products of -0 and +0 take the place of those that are not
// there: c + (-0) is c for every c.
#include "tallskinny_copies.cuh"
#include "tallskinny_dmma.cuh"

constexpr int WIDTH = Config::WIDTH, TILES = Config::TILES, THREADS = Config::THREADS, DEPTH = Config::DEPTH;
static_assert(DEPTH % 4 == 0, "an instruction multiplies four k");
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps");
#ifdef VECTORS
static_assert(TILES % 2 == 0, "16 bytes are rows of two tiles");
#endif
constexpr int COLUMN_TILES = (WIDTH + 7) / 8, STEPS = DEPTH / 4, SPAN = 8 * TILES;

// Row number `across` of tile i among the SPAN of a warp.
FPEMU_FUNCTION int tile_row(int i, int across) {
#ifdef VECTORS
  return i / 2 * 16 + 2 * across + i % 2;
#else
  return 8 * i + across;
#endif
}

// What a lane has of A: for each four k and each tile one element.
FPEMU_FUNCTION void load(const Operands& o, s64 row, s64 k, REAL (&x)[STEPS][TILES]) {
  const int across = threadIdx.x % 32 / 4, along = threadIdx.x % 4;
  FPEMU_UNROLL
  for (int s = 0; s < STEPS; s++) {
    const s64 at = k + 4 * s + along;
#ifdef VECTORS
    FPEMU_UNROLL
    for (int i = 0; i < TILES; i += 2) {
      const s64 r = row + tile_row(i, across);
      if (at >= o.k || r >= o.m) x[s][i] = x[s][i + 1] = -(REAL)0;
      else if (r + 1 == o.m) x[s][i] = __ldg(at_a(o, r, at)), x[s][i + 1] = -(REAL)0;
      else {
        const Vector v = load_once(at_a(o, r, at));
        x[s][i] = v.of[0], x[s][i + 1] = v.of[1];
      }
    }
#else
    FPEMU_UNROLL
    for (int i = 0; i < TILES; i++) {
      const s64 r = row + tile_row(i, across);
      x[s][i] = at < o.k && r < o.m ? __ldg(at_a(o, r, at)) : -(REAL)0;
    }
#endif
  }
}

FPEMU_FUNCTION void load_b(const Operands& o, s64 k, s64 column, int columns, REAL (&y)[STEPS][COLUMN_TILES]) {
  const int across = threadIdx.x % 32 / 4, along = threadIdx.x % 4;
  FPEMU_UNROLL
  for (int s = 0; s < STEPS; s++) FPEMU_UNROLL
  for (int j = 0; j < COLUMN_TILES; j++) {
    const s64 at = k + 4 * s + along;
    y[s][j] = at < o.k && 8 * j + across < columns ? __ldg(at_b(o, at, column + 8 * j + across)) : (REAL)0;
  }
}

FPEMU_FUNCTION void store(const Operands& o, s64 row, s64 column, int columns, REAL (&c)[TILES][COLUMN_TILES][2]) {
  const int across = threadIdx.x % 32 / 4, along = threadIdx.x % 4;
  FPEMU_UNROLL
  for (int j = 0; j < COLUMN_TILES; j++) {
    const int q = 8 * j + 2 * along;
#if defined(VECTORS) && defined(C_COLUMNS)
    FPEMU_UNROLL
    for (int i = 0; i < TILES; i += 2) FPEMU_UNROLL
    for (int e = 0; e < 2; e++) {
      const s64 r = row + tile_row(i, across);
      if (q + e >= columns || r >= o.m) continue;
      const Vector v = {finished(c[i][j][e]), finished(c[i + 1][j][e])};
      if (r + 1 < o.m) store_once(at_c(o, r, column + q + e), v);
      else *at_c(o, r, column + q + e) = v.of[0];
    }
#else
    FPEMU_UNROLL
    for (int i = 0; i < TILES; i++) {
      const s64 r = row + tile_row(i, across);
      if (r >= o.m) continue;
      const Vector v = {finished(c[i][j][0]), finished(c[i][j][1])};
#ifdef C_PAIRS
      if (q < columns) store_once(at_c(o, r, column + q), v);
#else
      if (q < columns) *at_c(o, r, column + q) = v.of[0];
      if (q + 1 < columns) *at_c(o, r, column + q + 1) = v.of[1];
#endif
    }
#endif
  }
}

FPEMU_FUNCTION void multiply(const REAL (&x)[STEPS][TILES], const REAL (&y)[STEPS][COLUMN_TILES],
                             REAL (&c)[TILES][COLUMN_TILES][2]) {
  FPEMU_UNROLL
  for (int s = 0; s < STEPS; s++) FPEMU_UNROLL
  for (int i = 0; i < TILES; i++) FPEMU_UNROLL
  for (int j = 0; j < COLUMN_TILES; j++) dmma(c[i][j], x[s][i], y[s][j]);
}

extern "C" __global__ void __launch_bounds__(THREADS) ism2_fp64(Operands o) {
  const s64 column = blockIdx.y * (s64)WIDTH, warps = gridDim.x * (s64)(THREADS / 32);
  const s64 warp = blockIdx.x * (s64)(THREADS / 32) + threadIdx.x / 32;
  const int columns = (int)(o.n - column < WIDTH ? o.n - column : WIDTH);
  REAL x[STEPS][TILES], y[STEPS][COLUMN_TILES];
#ifdef WHOLE_K
  load_b(o, 0, column, columns, y);
#endif
  for (s64 row = warp * SPAN; row < o.m; row += warps * SPAN) {
    REAL c[TILES][COLUMN_TILES][2] = {};
    for (s64 k = 0; k < o.k; k += DEPTH) {
      load(o, row, k, x);
#ifndef WHOLE_K
      load_b(o, k, column, columns, y);
#endif
      multiply(x, y, c);
    }
    store(o, row, column, columns, c);
  }
}
