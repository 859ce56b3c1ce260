// Consumers of tsm2_hopper.cu in fp64: tiles of 8 rows and 8 columns by DMMA, four k at a time.
//
// Where k ends within the four, products of -0 and +0 take the place of those that are not there: c + (-0) is c for
// every c. The eight rows of an instruction are no neighbours: as A is swizzled, sixteen lanes then read from all
// banks.
#pragma once
#include "tallskinny_dmma.cuh"
#include "tallskinny_pipeline.cuh"

constexpr int ROW_TILES = TILE / 8 / CONSUMERS, COLUMN_TILES = (WIDTH + 7) / 8;
static_assert(TILE / 8 % CONSUMERS == 0, "a warp has whole tiles");

// Row number `across` of a tile of the thread block.
FPEMU_FUNCTION int tile_row(int tile, int across) {
#ifdef A_ROWS
  return 8 * tile + (across < 4 ? 2 * across : 2 * across - 7);
#elif defined(ONE_BOX)
  return 8 * tile + across;
#else
  return tile / 2 * 16 + tile % 2 * 4 + across / 4 * 2 + across % 4 / 2 * 8 + across % 2;
#endif
}

template <bool WHOLE>
FPEMU_FUNCTION void multiply_four(const REAL* a, const REAL* b, int first, int k, int left,
                                  REAL (&c)[ROW_TILES][COLUMN_TILES][2]) {
  const int lane = threadIdx.x % 32, across = lane / 4, along = lane % 4;
  REAL y[COLUMN_TILES], x[ROW_TILES];
  FPEMU_UNROLL
  for (int j = 0; j < COLUMN_TILES; j++)
    y[j] = 8 * j + across < WIDTH ? b[offset_b(k + along, 8 * j + across)] : (REAL)0;
  FPEMU_UNROLL
  for (int i = 0; i < ROW_TILES; i++) x[i] = a[offset_a(tile_row(first + i, across), k + along)];
  if (!WHOLE && along >= left) {
    FPEMU_UNROLL
    for (int j = 0; j < COLUMN_TILES; j++) y[j] = 0;
    FPEMU_UNROLL
    for (int i = 0; i < ROW_TILES; i++) x[i] = -(REAL)0;
  }
  FPEMU_UNROLL
  for (int i = 0; i < ROW_TILES; i++) FPEMU_UNROLL
  for (int j = 0; j < COLUMN_TILES; j++) dmma(c[i][j], x[i], y[j]);
}

// All k of the rows from `row` on.
FPEMU_FUNCTION void mainloop(const Operands& o, const Ring& ring, Position& stage, s64 row, s64 column, int first,
                             int columns) {
  const int lane = threadIdx.x % 32;
  REAL c[ROW_TILES][COLUMN_TILES][2] = {};
  for (s64 k = 0; k < o.k; k += DEPTH, stage = stage.next()) {
    const int depth = (int)(o.k - k < DEPTH ? o.k - k : DEPTH);
    ring.consumer_wait(stage);
    const REAL *a = ring.a(stage), *b = ring.b(stage);
    if (depth == DEPTH) {
      FPEMU_UNROLL
      for (int kk = 0; kk < DEPTH; kk += 4) multiply_four<true>(a, b, first, kk, 4, c);
    } else {
      for (int kk = 0; kk < depth; kk += 4) multiply_four<false>(a, b, first, kk, depth - kk, c);
    }
    __syncwarp();
    if (lane == 0) ring.consumer_release(stage);
  }
  FPEMU_UNROLL
  for (int i = 0; i < ROW_TILES; i++) {
    const s64 r = row + tile_row(first + i, lane / 4);
    FPEMU_UNROLL
    for (int j = 0; j < COLUMN_TILES; j++) FPEMU_UNROLL
    for (int e = 0; e < 2; e++) {
      const int q = 8 * j + 2 * (lane % 4) + e;
      if (r < o.m && q < columns) *at_c(o, r, column + q) = finished(c[i][j][e]);
    }
  }
}

FPEMU_FUNCTION void consume(const Operands& o, const Ring& ring, int warp, s64 column, int columns) {
  Position stage = Position::of_consumer();
  for (s64 row = blockIdx.x * (s64)TILE; row < o.m; row += gridDim.x * (s64)TILE)
    mainloop(o, ring, stage, row, column, warp * ROW_TILES, columns);
}
