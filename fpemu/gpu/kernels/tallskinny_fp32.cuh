// Consumers of tsm2_hopper.cu in fp32: a thread has ROWS rows and a few columns, in registers.
//
// SHARE neighbouring lanes have the same rows and different columns, and so many warps different rows: then a read of
// 16 bytes a lane takes two passes through shared memory, which is the least, and not four.
#pragma once
#include "tallskinny_pipeline.cuh"

constexpr int SHARE = Config::SHARE;
static_assert(SHARE >= 1 && 32 % SHARE == 0 && CONSUMERS % SHARE == 0, "lanes and warps that share rows");
// Columns are dealt out in CONSUMERS groups; the first ones have one more where WIDTH is no multiple.
constexpr int MOST = (WIDTH + CONSUMERS - 1) / CONSUMERS, WIDER = WIDTH - (MOST - 1) * CONSUMERS;
constexpr int QUADS = ROWS / 4, PAIR = ROWS / 2 % 2, SINGLE = ROWS % 2;

FPEMU_FUNCTION int column_of(int group, int j) {
#ifdef B_ROWS  // neighbours, which are read at once
  return group < WIDER ? group * MOST + j : group * (MOST - 1) + WIDER + j;
#else
  return group + j * CONSUMERS;
#endif
}
static_assert(SHARE == 1 || WIDTH % CONSUMERS == 0, "all lanes have as many columns");

// Row number i in the tile of the thread of number `own` among the 32 that have all rows: consecutive ones where it
// reads them at once.
FPEMU_FUNCTION int tile_row(int i, int own) {
#ifdef A_ROWS
  return own + 32 * i;
#else
  if (i < 4 * QUADS) return 128 * (i / 4) + 4 * own + i % 4;
  if (PAIR && i < 4 * QUADS + 2) return 128 * QUADS + 2 * own + i % 2;
  return 128 * QUADS + 64 * PAIR + own;
#endif
}

// Four k of all rows of a thread.
FPEMU_FUNCTION void read_a(const REAL* a, int own, int k, REAL (&x)[4][ROWS]) {
#ifdef A_ROWS
  FPEMU_UNROLL
  for (int i = 0; i < ROWS; i++) {
    const float4 v = *(const float4*)(a + offset_a(tile_row(i, own), k));
    x[0][i] = v.x, x[1][i] = v.y, x[2][i] = v.z, x[3][i] = v.w;
  }
#else
  FPEMU_UNROLL
  for (int q = 0; q < 4; q++) {
    FPEMU_UNROLL
    for (int i = 0; i < 4 * QUADS; i += 4) {
      const float4 v = *(const float4*)(a + offset_a(tile_row(i, own), k + q));
      x[q][i] = v.x, x[q][i + 1] = v.y, x[q][i + 2] = v.z, x[q][i + 3] = v.w;
    }
    if (PAIR) {
      const float2 v = *(const float2*)(a + offset_a(tile_row(4 * QUADS, own), k + q));
      x[q][(4 * QUADS) % ROWS] = v.x, x[q][(4 * QUADS + 1) % ROWS] = v.y;
    }
    if (SINGLE) x[q][ROWS - 1] = a[offset_a(tile_row(ROWS - 1, own), k + q)];
  }
#endif
}

// Four k of the columns of a group.
template <int COLUMNS> FPEMU_FUNCTION void read_b(const REAL* b, int k, int group, REAL (&y)[4][COLUMNS]) {
#ifdef B_ROWS
  FPEMU_UNROLL
  for (int q = 0; q < 4; q++) {
    const REAL* row = b + offset_b(k + q, column_of(group, 0));
    if (COLUMNS % 4 == 0 && WIDTH % 4 == 0 && MOST * CONSUMERS == WIDTH) {
      FPEMU_UNROLL
      for (int j = 0; j < COLUMNS; j += 4) {
        const float4 v = *(const float4*)(row + j);
        y[q][j] = v.x, y[q][(j + 1) % COLUMNS] = v.y, y[q][(j + 2) % COLUMNS] = v.z, y[q][(j + 3) % COLUMNS] = v.w;
      }
    } else {
      FPEMU_UNROLL
      for (int j = 0; j < COLUMNS; j++) y[q][j] = row[j];
    }
  }
#else
  FPEMU_UNROLL
  for (int j = 0; j < COLUMNS; j++) {
    const float4 v = *(const float4*)(b + offset_b(k, column_of(group, j)));
    y[0][j] = v.x, y[1][j] = v.y, y[2][j] = v.z, y[3][j] = v.w;
  }
#endif
}

template <int COLUMNS>
FPEMU_FUNCTION void multiply_four(const REAL (&x)[4][ROWS], const REAL (&y)[4][COLUMNS], REAL (&c)[COLUMNS][ROWS]) {
  FPEMU_UNROLL
  for (int q = 0; q < 4; q++) FPEMU_UNROLL
  for (int j = 0; j < COLUMNS; j++) FPEMU_UNROLL
  for (int i = 0; i < ROWS; i++) c[j][i] = fused(x[q][i], y[q][j], c[j][i]);
}

// What a thread multiplies next: four k, and four more that are read before the sums of those.
template <int COLUMNS> struct Fragments {
  REAL x[2][4][ROWS], y[2][4][COLUMNS];
  FPEMU_FUNCTION void read(int which, const Ring& ring, const Position& stage, int own, int group, int k) {
    read_a(ring.a(stage), own, k, x[which]), read_b<COLUMNS>(ring.b(stage), k, group, y[which]);
  }
};

// All k of the rows from `row` on. The first four k of a stage are read before the last four of the one before are
// summed.
template <int COLUMNS>
FPEMU_FUNCTION void mainloop(const Operands& o, const Ring& ring, Position& stage, s64 row, s64 column, int own,
                             int group, int columns) {
  REAL c[COLUMNS][ROWS] = {};
  Fragments<COLUMNS> ahead;
  s64 left = o.k;
  if (left >= DEPTH) ring.consumer_wait(stage), ahead.read(0, ring, stage, own, group, 0);
  for (; left >= DEPTH; left -= DEPTH) {
    const Position next = stage.next();
    FPEMU_UNROLL
    for (int k = 4; k <= DEPTH; k += 4) {
      const int now = k / 4 % 2;
      if (k < DEPTH) ahead.read(now, ring, stage, own, group, k);
      else if (left >= 2 * DEPTH) {
        ring.consumer_wait(next);
        ahead.read(now, ring, next, own, group, 0);
      }
      multiply_four<COLUMNS>(ahead.x[1 - now], ahead.y[1 - now], c);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring.consumer_release(stage);
    stage = next;
  }
  if (left) {
    ring.consumer_wait(stage);
    const REAL *a = ring.a(stage), *b = ring.b(stage);
    for (int k = 0; k < (int)left; k++) FPEMU_UNROLL
    for (int j = 0; j < COLUMNS; j++) FPEMU_UNROLL
    for (int i = 0; i < ROWS; i++)
      c[j][i] = fused(a[offset_a(tile_row(i, own), k)], b[offset_b(k, column_of(group, j))], c[j][i]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring.consumer_release(stage);
    stage = stage.next();
  }
  FPEMU_UNROLL
  for (int i = 0; i < ROWS; i++) FPEMU_UNROLL
  for (int j = 0; j < COLUMNS; j++)
    if (row + tile_row(i, own) < o.m && column_of(group, j) < columns)
      *at_c(o, row + tile_row(i, own), column + column_of(group, j)) = finished(c[j][i]);
}

template <int COLUMNS>
FPEMU_FUNCTION void consume_rows(const Operands& o, const Ring& ring, s64 column, int own, int group, int columns) {
  Position stage = Position::of_consumer();
  for (s64 row = blockIdx.x * (s64)TILE; row < o.m; row += gridDim.x * (s64)TILE)
    mainloop<COLUMNS>(o, ring, stage, row, column, own, group, columns);
}

FPEMU_FUNCTION void consume(const Operands& o, const Ring& ring, int warp, s64 column, int columns) {
  const int lane = threadIdx.x % 32, own = warp % SHARE * (32 / SHARE) + lane / SHARE;
  const int group = SHARE == 1 ? warp : warp / SHARE * SHARE + lane % SHARE;
  if (SHARE > 1 || group < WIDER) consume_rows<MOST>(o, ring, column, own, group, columns);
  else if (MOST > 1) consume_rows<larger(MOST - 1, 1)>(o, ring, column, own, group, columns);
}
