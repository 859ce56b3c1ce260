// A ring of stages in shared memory, each a tile of A (TILE rows, DEPTH k) and one of B (DEPTH k, WIDTH columns), and
// the warps that fill it. What tiles hold beyond the matrices is not used: k ends exactly, such rows are not stored.
//
// BULK: A comes by TMA, which one thread of the first producer asks for. A tile is made of lines of 128 bytes, swizzled:
// pieces of 16 bytes lie where their number xor the line's number modulo 8 says. A_ROWS: a line is DEPTH elements of a
// row, in one box; else 128 bytes of a column, in a box for each 128 bytes of rows, or ONE_BOX with all of them (the
// copy engine takes about as long for a small box as for one of several KB). Without BULK all producers copy single
// elements to the same places.
// B is copied by the other producers, or by all: by 16 bytes along its columns (B_COLUMNS) or its rows (B_ROWS; rows
// that are not multiples of 16 bytes follow on one another), else by elements.
#pragma once
#include "hopper.cuh"
#include "tallskinny_copies.cuh"

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
constexpr int ARRIVALS = BULK ? 1 + 32 * (PRODUCERS - 1) : 32 * PRODUCERS;

struct Ring {
  unsigned char* stages;
  u32 barriers;
  FPEMU_FUNCTION REAL* a(int slot) const { return (REAL*)(stages + slot * STAGE); }
  FPEMU_FUNCTION REAL* b(int slot) const { return (REAL*)(stages + slot * STAGE + A_BYTES); }
  FPEMU_FUNCTION u32 full(int slot) const { return barriers + 16 * slot; }
  FPEMU_FUNCTION u32 empty(int slot) const { return barriers + 16 * slot + 8; }
};
FPEMU_FUNCTION Ring ring_of(unsigned char* memory) {
  Ring ring;
  ring.stages = memory;
  ring.barriers = shared_address(memory + STAGES * STAGE);
  return ring;
}

// Where in the ring a warp is, and the parity of the round; producers begin with `phase` 1, as all stages are empty.
struct Turn {
  int slot, phase;
  FPEMU_FUNCTION Turn next() const {
    const int after = slot + 1 == STAGES ? 0 : slot + 1;
    return {after, after ? phase : phase ^ 1};
  }
};

// Where an element of a tile of A lies, in elements.
FPEMU_FUNCTION int place(int row, int k) {
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
FPEMU_FUNCTION constexpr int place_b(int k, int column) {
#ifdef B_ROWS
  return k * WIDTH + column;
#else
  return column * B_PITCH + k;
#endif
}

// One thread has TMA bring a tile of A; the tensor has words of 4 bytes.
FPEMU_FUNCTION void bring_a(const TensorMap* map, REAL* a, u32 full, s64 row, s64 k) {
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
    if (lane % DEPTH < depth) copy<1>(a + place(r, lane % DEPTH), at_a(o, row + r, k + lane % DEPTH));
#else
  for (int c = warp; c < depth; c += PRODUCERS)
    for (int r = lane; r < rows; r += 32) copy<1>(a + place(r, c), at_a(o, row + r, k + c));
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
      copy<VECTOR>(b + place_b(e % DEPTH, e / DEPTH), at_b(o, k + e % DEPTH, column + e / DEPTH));
    return;
  }
#endif
  for (int e = own; e < DEPTH * columns; e += count)
    if (e % DEPTH < depth) copy<1>(b + place_b(e % DEPTH, e / DEPTH), at_b(o, k + e % DEPTH, column + e / DEPTH));
}

FPEMU_FUNCTION void produce(const Operands& o, const TensorMap* map, const Ring& ring, int warp, s64 column,
                            int columns) {
  const int lane = threadIdx.x % 32;
  if (BULK && warp == 0 && lane) return;
  Turn turn = {0, 1};
  for (s64 row = blockIdx.x * (s64)TILE; row < o.m; row += gridDim.x * (s64)TILE)
    for (s64 k = 0; k < o.k; k += DEPTH, turn = turn.next()) {
      const int depth = (int)(o.k - k < DEPTH ? o.k - k : DEPTH);
      const u32 full = ring.full(turn.slot);
      barrier_wait(ring.empty(turn.slot), turn.phase);
      if (BULK && warp == 0) {
        bring_a(map, ring.a(turn.slot), full, row, k);
      } else {
        if (!BULK) copy_a(o, ring.a(turn.slot), warp, row, k, depth);
        copy_b(o, ring.b(turn.slot), (warp - BULK) * 32 + lane, 32 * (PRODUCERS - BULK), k, column, depth, columns);
        arrive_copied(full);
      }
    }
}
