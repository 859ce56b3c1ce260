// The pipeline of tsm2_hopper.cu: its stages, each a tile of A (TILE rows, DEPTH k) and one of B (DEPTH k, WIDTH
// columns), and its producer warps. Elements of tiles outside of the matrices are not used: k ends exactly, such rows
// are not stored.
//
// BULK: one thread of the first producer warp loads A by TMA. A tile has lines of 128 bytes, swizzled: unit u of 16
// bytes of line l is stored at unit u xor l % 8. A_ROWS: a line is DEPTH elements of a row, in one box; else 128 bytes
// of a column, in a box for each 128 bytes of rows, or ONE_BOX with all of them (the copy engine takes about as long
// for a small box as for one of several KB). Without BULK all producers copy single elements to the same places. B is
// copied by the other producers, or by all: by 16 bytes along its columns (B_COLUMNS) or its rows (B_ROWS; rows that
// are not multiples of 16 bytes follow on one another), else by elements.
#pragma once
#include "hopper.cuh"
#include "pipeline.cuh"
#include "tallskinny_copies.cuh"

constexpr int WIDTH = Config::WIDTH, ROWS = Config::ROWS, DEPTH = Config::DEPTH, STAGES = Config::STAGES;
constexpr int CONSUMERS = Config::CONSUMERS, PRODUCERS = Config::PRODUCERS;  // warps
constexpr bool BULK = Config::BULK;
constexpr int BYTES = sizeof(REAL), LINE = 128 / BYTES, TILE = 32 * ROWS;
#ifdef A_ROWS
static_assert(DEPTH == LINE, "a line of a tile");
constexpr int BOXES = 1;
#else
constexpr int BOXES = TILE / LINE;
#endif
constexpr int B_PITCH = DEPTH + 4;  // columns: what lanes read at once, of several columns, lies in different banks
constexpr int A_BYTES = TILE * DEPTH * BYTES;
constexpr int B_BYTES = WIDTH * B_PITCH * BYTES, STAGE = (A_BYTES + B_BYTES + 1023) / 1024 * 1024;
static_assert(DEPTH % 4 == 0, "consumers multiply four k at a time");
static_assert(A_BYTES % 1024 == 0, "the 128-byte swizzle of a tile of A repeats every 1024 bytes");
static_assert(BULK ? PRODUCERS >= 2 : PRODUCERS >= 1, "one producer warp issues TMA, the others copy B");
static_assert(32 * (CONSUMERS + PRODUCERS) <= 1024, "threads of a thread block");
static_assert(STAGES * (STAGE + 16) <= 227 * 1024, "shared memory of a thread block: the stages and their barriers");
constexpr int ARRIVALS = BULK ? 1 + 32 * (PRODUCERS - 1) : 32 * PRODUCERS;

// The stages of the pipeline, a tile of A and one of B each, and after them their barriers.
struct Ring : Pipeline<STAGES, STAGE, 16> {
  typedef Pipeline<STAGES, STAGE, 16> Base;
  unsigned char* memory;
  FPEMU_FUNCTION REAL* a(const Position& stage) const { return (REAL*)(memory + stage.index * STAGE); }
  FPEMU_FUNCTION REAL* b(const Position& stage) const { return (REAL*)(memory + stage.index * STAGE + A_BYTES); }
};
typedef Ring::Position Position;
FPEMU_FUNCTION Ring ring_of(unsigned char* memory) {
  Ring ring;
  (Ring::Base&)ring = Ring::Base::at(0, shared_address(memory + STAGES * STAGE));
  ring.memory = memory;
  return ring;
}

// Where an element of a tile of A lies, in elements.
FPEMU_FUNCTION int offset_a(int row, int k) {
#ifdef A_ROWS
  return row * LINE + ((k / VECTOR) ^ (row & 7)) * VECTOR + k % VECTOR;
#else
#ifdef ONE_BOX
  const int line = k * BOXES + row / LINE, first = k % 8 * BOXES + row / LINE;  // alike where k is modulo 8
#else
  const int line = row / LINE * DEPTH + k, first = k;
#endif
  return line * LINE + ((row % LINE / VECTOR) ^ (first & 7)) * VECTOR + row % VECTOR;
#endif
}
// and one of B.
FPEMU_FUNCTION constexpr int offset_b(int k, int column) {
#ifdef B_ROWS
  return k * WIDTH + column;
#else
  return column * B_PITCH + k;
#endif
}

// One thread loads a tile of A by TMA; the tensor has elements of 4 bytes.
FPEMU_FUNCTION void load_a_by_tma(const TensorMap* map, REAL* a, u32 full, s64 row, s64 k) {
  barrier_expect(full, A_BYTES);
#if defined(A_ROWS)
  tma_load(shared_address(a), map, full, (int)k * (BYTES / 4), (int)row, 0);
#elif defined(ONE_BOX)
  tma_load(shared_address(a), map, full, 0, (int)(row / LINE), (int)k);
#else
  FPEMU_UNROLL
  for (int box = 0; box < BOXES; box++)
    tma_load(shared_address(a + box * DEPTH * LINE), map, full, ((int)row + box * LINE) * (BYTES / 4), (int)k, 0);
#endif
}

// Single elements of A, by all producers.
FPEMU_FUNCTION void copy_a(const Operands& o, REAL* a, int warp, s64 row, s64 k, int depth) {
  const int lane = threadIdx.x % 32, rows = (int)(o.m - row < TILE ? o.m - row : TILE);
#ifdef A_ROWS
  for (int r = warp * (32 / DEPTH) + lane / DEPTH; r < rows; r += PRODUCERS * (32 / DEPTH))
    if (lane % DEPTH < depth) copy<1>(a + offset_a(r, lane % DEPTH), at_a(o, row + r, k + lane % DEPTH));
#else
  for (int c = warp; c < depth; c += PRODUCERS)
    for (int r = lane; r < rows; r += 32) copy<1>(a + offset_a(r, c), at_a(o, row + r, k + c));
#endif
}

// B, by `count` threads of which this is number `own`.
FPEMU_FUNCTION void copy_b(const Operands& o, REAL* b, int own, int count, s64 k, s64 column, int depth, int columns) {
#if defined(B_ROWS)
  if (depth == DEPTH && columns == WIDTH) {
    if (WIDTH % VECTOR || o.b_k == WIDTH) {
      for (int e = own * VECTOR; e < DEPTH * WIDTH; e += count * VECTOR) copy<VECTOR>(b + e, at_b(o, k, column) + e);
    } else {
      for (int e = own * VECTOR; e < DEPTH * WIDTH; e += count * VECTOR)
        copy<VECTOR>(b + e, at_b(o, k + e / WIDTH, column + e % WIDTH));
    }
    return;
  }
#elif defined(B_COLUMNS)
  if (depth == DEPTH) {
    for (int e = own * VECTOR; e < DEPTH * columns; e += count * VECTOR)
      copy<VECTOR>(b + offset_b(e % DEPTH, e / DEPTH), at_b(o, k + e % DEPTH, column + e / DEPTH));
    return;
  }
#endif
  for (int e = own; e < DEPTH * columns; e += count)
    if (e % DEPTH < depth) copy<1>(b + offset_b(e % DEPTH, e / DEPTH), at_b(o, k + e % DEPTH, column + e / DEPTH));
}

FPEMU_FUNCTION void produce(const Operands& o, const TensorMap* map, const Ring& ring, int warp, s64 column,
                            int columns) {
  const int lane = threadIdx.x % 32;
  if (BULK && warp == 0 && lane) return;
  Position stage = Position::of_producer();
  for (s64 row = blockIdx.x * (s64)TILE; row < o.m; row += gridDim.x * (s64)TILE)
    for (s64 k = 0; k < o.k; k += DEPTH, stage = stage.next()) {
      const int depth = (int)(o.k - k < DEPTH ? o.k - k : DEPTH);
      const u32 full = ring.full(stage);
      ring.producer_acquire(stage);
      if (BULK && warp == 0) {
        load_a_by_tma(map, ring.a(stage), full, row, k);
      } else {
        if (!BULK) copy_a(o, ring.a(stage), warp, row, k, depth);
        copy_b(o, ring.b(stage), (warp - BULK) * 32 + lane, 32 * (PRODUCERS - BULK), k, column, depth, columns);
        arrive_copied(full);
      }
    }
}
