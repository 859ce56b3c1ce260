// Tiles of A and C that go through shared memory, for ism2_hopper.cu.
//
// A tile has TILE rows of A_PITCH or C_PITCH elements; the elements that adjacent threads read at once are in different
// banks. LINEAR: the tile is contiguous in memory and in shared memory; else A_VECTOR or C_VECTOR elements of a row are
// moved at a time.
#pragma once
#include "tallskinny_copies.cuh"

constexpr int WIDTH = Config::WIDTH, ROWS = Config::ROWS, DEPTH = Config::DEPTH, THREADS = Config::THREADS;
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps");
static_assert(ROWS >= 1 && WIDTH >= 1 && ROWS * WIDTH * sizeof(REAL) <= 4 * 128,
              "the sums of a thread, at most 128 of its 255 registers");
constexpr int TILE = THREADS * ROWS, PADDED = (WIDTH + VECTOR - 1) / VECTOR * VECTOR;

FPEMU_FUNCTION void copies_made() {
  wait_for_copies();
  __syncthreads();
}

#if defined(A_ROWS) && !defined(FLAT) && !defined(DIRECT)  // A goes through shared memory
// A tile of `rows` rows and `depth` columns into shared memory.
FPEMU_FUNCTION void fetch(const Operands& o, s64 row, s64 k, int rows, int depth, REAL* tile) {
#ifdef A_LINEAR
  const int all = rows * DEPTH;
  const REAL* from = at_a(o, row, 0);
  for (int e = threadIdx.x * VECTOR; e < all; e += THREADS * VECTOR) {
    if (e + VECTOR <= all) copy<VECTOR>(tile + e, from + e);
    else
      for (int i = e; i < all; i++) copy<1>(tile + i, from + i);
  }
#else
  constexpr int EACH = DEPTH / Config::A_VECTOR;
  for (int e = threadIdx.x; e < rows * EACH; e += THREADS) {
    const int r = e / EACH, at = e % EACH * Config::A_VECTOR;
    if (at < depth) copy<Config::A_VECTOR>(tile + r * Config::A_PITCH + at, at_a(o, row + r, k + at));
  }
#endif
}

// Elements side by side in shared memory.
template <int COUNT> FPEMU_FUNCTION void read(const REAL* p, REAL (&x)[COUNT]) {
  struct alignas(COUNT * sizeof(REAL)) Piece {
    REAL of[COUNT];
  };
  const Piece piece = *(const Piece*)p;
  FPEMU_UNROLL
  for (int e = 0; e < COUNT; e++) x[e] = piece.of[e];
}
#endif

#ifdef C_STAGED
// A tile of C from shared memory.
FPEMU_FUNCTION void store_tile(const Operands& o, s64 row, s64 column, int rows, int columns, const REAL* tile) {
#ifdef C_LINEAR
  const int all = rows * WIDTH;
  REAL* to = at_c(o, row, 0);
  for (int e = threadIdx.x * VECTOR; e < all; e += THREADS * VECTOR) {
    if (e + VECTOR <= all) *(Vector*)(to + e) = *(const Vector*)(tile + e);
    else
      for (int i = e; i < all; i++) to[i] = tile[i];
  }
#else
  constexpr int EACH = WIDTH / Config::C_VECTOR;
  struct alignas(Config::C_VECTOR * sizeof(REAL)) Piece {
    REAL of[Config::C_VECTOR];
  };
  for (int e = threadIdx.x; e < rows * EACH; e += THREADS) {
    const int r = e / EACH, at = e % EACH * Config::C_VECTOR;
    if (at < columns) *(Piece*)at_c(o, row + r, column + at) = *(const Piece*)(tile + r * Config::C_PITCH + at);
  }
#endif
}
#endif
