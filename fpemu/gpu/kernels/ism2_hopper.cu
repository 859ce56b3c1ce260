// ISM2 for GPUs that sustain many outstanding loads: a thread computes ROWS rows and WIDTH columns of C at once.
//
// B lies in shared memory as a whole, so that a thread that has ROWS rows reads it once for all of them; B_KEPT: it is
// so small that every thread has it in registers. Of A, DEPTH elements of every row are under way at a time, from one
// of these places: A_COLUMNS, VECTORS: 16 bytes are neighbouring rows of a column. A_ROWS, FLAT: k divides 16 bytes,
// rows follow on one another; 16 bytes are one row or several. A_ROWS, DIRECT: a row is several times 16 bytes, which a
// thread loads by itself. A_ROWS, neither: a tile of TILE rows goes through shared memory, see ism2_tile.cuh. Else
// single elements, rows a block's width apart.
#include "ism2_tile.cuh"

// A thread's row number i in its tile: those of 16 bytes are neighbours, and so are threads.
#if defined(A_COLUMNS) && defined(VECTORS)
#define NEIGHBOURS
constexpr int TOGETHER = VECTOR;
#elif defined(FLAT)
constexpr int TOGETHER = VECTOR / DEPTH;
#else
constexpr int TOGETHER = 1;
#endif
static_assert(ROWS % TOGETHER == 0, "whole vectors");
FPEMU_FUNCTION int tile_row(int i) { return (i / TOGETHER * THREADS + threadIdx.x) * TOGETHER + i % TOGETHER; }

// One k for all rows and columns of a thread.
FPEMU_FUNCTION void step(const REAL (&x)[ROWS], const REAL (&y)[PADDED], REAL (&c)[WIDTH][ROWS]) {
  FPEMU_UNROLL
  for (int j = 0; j < WIDTH; j++) FPEMU_UNROLL
  for (int i = 0; i < ROWS; i++) c[j][i] = fused(x[i], y[j], c[j][i]);
}
FPEMU_FUNCTION void step(const REAL (&x)[ROWS], const REAL* b, REAL (&c)[WIDTH][ROWS]) {
  REAL y[PADDED];
  FPEMU_UNROLL
  for (int j = 0; j < PADDED; j += VECTOR) {
    const Vector v = *(const Vector*)(b + j);
    FPEMU_UNROLL
    for (int e = 0; e < VECTOR; e++) y[j + e] = v.of[e];
  }
  step(x, y, c);
}

#if defined(A_ROWS) && !defined(FLAT) && !defined(DIRECT)
#define STAGED
template <bool WHOLE>
FPEMU_FUNCTION void mainloop(const Operands& o, s64 row, const REAL* b, REAL* tile, REAL (&c)[WIDTH][ROWS]) {
  const int rows = (int)(o.m - row < TILE ? o.m - row : TILE);
  for (s64 k = 0; k < o.k; k += DEPTH) {
    const int depth = (int)(o.k - k < DEPTH ? o.k - k : DEPTH);
    if (k) __syncthreads();
    fetch(o, row, k, rows, depth, tile);
    copies_made();
    FPEMU_UNROLL
    for (int q = 0; q < DEPTH; q += Config::A_READ) {
      if (q >= depth) break;
      REAL x[ROWS][Config::A_READ];
      FPEMU_UNROLL
      for (int i = 0; i < ROWS; i++) read(tile + tile_row(i) * Config::A_PITCH + q, x[i]);
      FPEMU_UNROLL
      for (int s = 0; s < Config::A_READ; s++) {
        REAL one[ROWS];
        FPEMU_UNROLL
        for (int i = 0; i < ROWS; i++) one[i] = x[i][s];
        if (q + s < depth) step(one, b + (k + q + s) * PADDED, c);
      }
    }
  }
}
#else
// All loads of a thread, before the first is used.
template <bool WHOLE> FPEMU_FUNCTION void load(const Operands& o, s64 row, s64 k, REAL (&x)[DEPTH][ROWS]) {
#if defined(NEIGHBOURS) || defined(FLAT)
  FPEMU_UNROLL
  for (int i = 0; i < ROWS; i += TOGETHER) {
    const s64 own = row + tile_row(i);
#ifdef FLAT
    if (WHOLE || own + TOGETHER <= o.m) {
      const Vector v = load_once(at_a(o, own, 0));
      FPEMU_UNROLL
      for (int e = 0; e < VECTOR; e++) x[e % DEPTH][i + e / DEPTH] = v.of[e];
      continue;
    }
#else
    if ((WHOLE || own + TOGETHER <= o.m) && k + DEPTH <= o.k) {
      FPEMU_UNROLL
      for (int q = 0; q < DEPTH; q++) {
        const Vector v = load_once(at_a(o, own, k + q));
        FPEMU_UNROLL
        for (int e = 0; e < VECTOR; e++) x[q][i + e] = v.of[e];
      }
      continue;
    }
#endif
    FPEMU_UNROLL
    for (int e = 0; e < TOGETHER; e++) FPEMU_UNROLL
    for (int q = 0; q < DEPTH; q++)
      x[q][i + e] = (WHOLE || own + e < o.m) && k + q < o.k ? *at_a(o, own + e, k + q) : (REAL)0;
  }
#else
  FPEMU_UNROLL
  for (int i = 0; i < ROWS; i++) {
    const s64 own = row + tile_row(i);
#ifdef DIRECT
    FPEMU_UNROLL
    for (int q = 0; q < DEPTH; q += VECTOR) {
      const Vector v = WHOLE || own < o.m ? *(const Vector*)at_a(o, own, q) : Vector();
      FPEMU_UNROLL
      for (int e = 0; e < VECTOR; e++) x[q + e][i] = v.of[e];
    }
#else
    FPEMU_UNROLL
    for (int q = 0; q < DEPTH; q++) x[q][i] = (WHOLE || own < o.m) && k + q < o.k ? *at_a(o, own, k + q) : (REAL)0;
#endif
  }
#endif
}

template <bool WHOLE>
FPEMU_FUNCTION void mainloop(const Operands& o, s64 row, const REAL* b, REAL*, REAL (&c)[WIDTH][ROWS]) {
#ifdef B_KEPT
  REAL x[DEPTH][ROWS], y[DEPTH][PADDED];
  load<WHOLE>(o, row, 0, x);
  FPEMU_UNROLL
  for (int q = 0; q < DEPTH; q++) FPEMU_UNROLL
  for (int j = 0; j < PADDED; j++) y[q][j] = j < WIDTH ? __ldg(at_b(o, q, j)) : (REAL)0;
  FPEMU_UNROLL
  for (int q = 0; q < DEPTH; q++) step(x[q], y[q], c);
#else
  for (s64 k = 0; k < o.k; k += DEPTH) {
    REAL x[DEPTH][ROWS];
    load<WHOLE>(o, row, k, x);
    if (k == 0) copies_made();  // B is there
    FPEMU_UNROLL
    for (int q = 0; q < DEPTH; q++)
      if (k + q < o.k) step(x[q], b + (k + q) * PADDED, c);
  }
#endif
}
#endif

template <bool WHOLE>
FPEMU_FUNCTION void store(const Operands& o, s64 row, s64 column, int columns, REAL* tile, REAL (&c)[WIDTH][ROWS]) {
#ifdef C_STAGED
  __syncthreads();  // the tile of A has been read
  FPEMU_UNROLL
  for (int i = 0; i < ROWS; i++) FPEMU_UNROLL
  for (int j = 0; j < WIDTH; j++) tile[tile_row(i) * Config::C_PITCH + j] = finished(c[j][i]);
  __syncthreads();
  store_tile(o, row, column, (int)(o.m - row < TILE ? o.m - row : TILE), columns, tile);
#else
  FPEMU_UNROLL
  for (int i = 0; i < ROWS; i += TOGETHER) {
    const s64 own = row + tile_row(i);
#if defined(NEIGHBOURS) && defined(C_COLUMNS)
    if (WHOLE || own + TOGETHER <= o.m) {
      FPEMU_UNROLL
      for (int j = 0; j < WIDTH; j++) {
        Vector v;
        FPEMU_UNROLL
        for (int e = 0; e < VECTOR; e++) v.of[e] = finished(c[j][i + e]);
        if (j < columns) store_once(at_c(o, own, column + j), v);
      }
      continue;
    }
#elif defined(FLAT) && defined(C_FLAT)
    if (WHOLE || own + TOGETHER <= o.m) {
      Vector v;
      FPEMU_UNROLL
      for (int e = 0; e < VECTOR; e++) v.of[e] = finished(c[e % WIDTH][i + e / WIDTH]);
      store_once(at_c(o, own, 0), v);
      continue;
    }
#elif defined(C_DIRECT)
    FPEMU_UNROLL
    for (int e = 0; e < TOGETHER; e++) FPEMU_UNROLL
    for (int j = 0; j < WIDTH; j += VECTOR) {
      Vector v;
      FPEMU_UNROLL
      for (int s = 0; s < VECTOR; s++) v.of[s] = finished(c[(j + s) % WIDTH][i + e]);
      if ((WHOLE || own + e < o.m) && j < columns) *(Vector*)at_c(o, own + e, column + j) = v;
    }
    continue;
#endif
    FPEMU_UNROLL
    for (int e = 0; e < TOGETHER; e++) FPEMU_UNROLL
    for (int j = 0; j < WIDTH; j++)
      if ((WHOLE || own + e < o.m) && j < columns) *at_c(o, own + e, column + j) = finished(c[j][i + e]);
  }
#endif
}

// A tile of rows; WHOLE: A has them all.
template <bool WHOLE>
FPEMU_FUNCTION void multiply(const Operands& o, s64 row, s64 column, int columns, const REAL* b, REAL* tile) {
  REAL c[WIDTH][ROWS] = {};
  mainloop<WHOLE>(o, row, b, tile, c);
  store<WHOLE>(o, row, column, columns, tile, c);
}

extern "C" __global__ void __launch_bounds__(THREADS, Config::BLOCKS) ism2_hopper(Operands o) {
  extern __shared__ __align__(16) REAL memory[];  // B in rows of PADDED elements, then the tile
  const s64 column = blockIdx.y * (s64)WIDTH;
  const int columns = (int)(o.n - column < WIDTH ? o.n - column : WIDTH);
#ifndef B_KEPT
  for (int e = threadIdx.x; e < (int)o.k * PADDED; e += THREADS) {
    const int k = e / PADDED, j = e % PADDED;
    if (j < columns) copy<1>(memory + e, at_b(o, k, column + j));
    else memory[e] = 0;
  }
#endif
  REAL* tile = memory + o.k * PADDED;
  for (s64 row = blockIdx.x * (s64)TILE; row < o.m; row += gridDim.x * (s64)TILE) {
    if (row + TILE <= o.m) multiply<true>(o, row, column, columns, memory, tile);
    else multiply<false>(o, row, column, columns, memory, tile);
#if defined(STAGED) || defined(C_STAGED)
    __syncthreads();
#endif
  }
}
