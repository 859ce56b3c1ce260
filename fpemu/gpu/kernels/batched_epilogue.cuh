// D of a block: sums from the fragments of warps, finished, and to memory straight, by way of shared memory, or as it
// lies in memory (FLAT).
#pragma once
#include "batched_contiguous.cuh"

// Calls `each(x, y, sums)` for every two neighbours y and y + 1 of a fragment, x and y in the block.
template <class F> FPEMU_FUNCTION void for_pairs(const Accumulators& sums, int warp, F each) {
  const int lane = threadIdx.x % 32;
  FPEMU_UNROLL
  for (int i = 0; i < UNITS_X; i++) FPEMU_UNROLL
  for (int j = 0; j < UNITS_Y; j++) FPEMU_UNROLL
  for (int half = 0; half < 2; half++) {
    Sums two[2];
    FPEMU_UNROLL
    for (int e = 0; e < 2; e++) FPEMU_UNROLL
    for (int t = 0; t < TERMS; t++) two[e].part[t] = entry(sums[i][j][t], 2 * half + e);
    each(row_of(warp, i) + lane / 4 + 8 * half, column_of(warp, j) + lane % 4 * 2, two);
  }
}

// Neighbours of D are finished by one conversion.
constexpr bool PAIRS = !Config::TURNED && PARTS == 1 && Config::PLAIN;

// The finished block to D; `stage`: shared memory for it.
FPEMU_FUNCTION void epilogue(const Problem& p, const Accumulators& sums, int product, int m0, int n0, bool absent,
                             u8* stage, int group, int thread) {
  const int warp = thread / 32;
  const int rows = absent ? 0 : smaller(rows_of(p) - m0, Config::BLK_M);
  const int columns = smaller(columns_of(p) - n0, Config::BLK_N);
  const Place whole = place_of_d(p, product);
  const u64 c = Config::PLAIN ? 0 : matrix_of(p.c, product), d = whole.at + m0 * whole.row + (s64)n0 * ELEMENT;
  const bool computes = COMPUTING * 32 == GROUP || warp < COMPUTING;
  const auto value = [&](int x, int y, const Sums& s) {
    const int m = m0 + (Config::TURNED ? y : x), n = n0 + (Config::TURNED ? x : y);
    return finished(p, s, place_in_c(p, c, m, n));
  };
  // A and B were there
  if (!STAGE_APART && (Config::STAGED || (Config::FLAT && (Config::BULK || !Config::APART)))) sync_group(group);
  if (Config::FLAT) {
    u8* flat = stage + (d & 15);
    if (computes)
      for_pairs(sums, warp, [&](int line, int y, const Sums(&two)[2]) {
        const int x = row_of_line(line);
        if (PAIRS) {
          if (x >= rows || y >= columns) return;
          const u32 both = to_halves(two[0].part[0], two[1].part[0]);
          u8* at = flat + (x * Config::N + y) * ELEMENT;
          if (Config::WIDTH >= 4) *(u32*)at = both;
          else {
            *(u16*)at = (u16)both;
            if (y + 1 < columns) *(u16*)(at + 2) = (u16)(both >> 16);
          }
          return;
        }
        FPEMU_UNROLL
        for (int e = 0; e < 2; e++) {
          const int m = Config::TURNED ? y + e : x, n = Config::TURNED ? x : y + e;
          if (m >= rows || n >= columns) continue;
          const u32 v = value(x, y + e, two[e]);
          u8* at = flat + (m * Config::N + n) * ELEMENT;
          if (SPLIT) *(u32*)at = v;
          else *(u16*)at = (u16)v;
        }
      });
    sync_group(group);
    if (!absent) store_flat(d, thread, stage);
    return;
  }
  if (Config::STAGED) {
    if (computes)
      for_pairs(sums, warp, [&](int x, int y, const Sums(&two)[2]) {
        if (PAIRS) {
          *(u32*)(stage + x * D_PITCH + 2 * y) = to_halves(two[0].part[0], two[1].part[0]);
          return;
        }
        u32 v[2] = {0, 0};
        FPEMU_UNROLL
        for (int e = 0; e < 2; e++)
          if (Config::PLAIN || ((Config::TURNED ? y + e : x) < rows && (Config::TURNED ? x : y + e) < columns))
            v[e] = value(x, y + e, two[e]);
        FPEMU_UNROLL
        for (int part = 0; part < PARTS; part++) {
          u8* plane = stage + part * D_BYTES;
          if (Config::TURNED) {
            FPEMU_UNROLL
            for (int e = 0; e < 2; e++) *(u16*)(plane + (y + e) * D_PITCH + 2 * x) = (u16)(v[e] >> 16 * part);
          } else *(u32*)(plane + x * D_PITCH + 2 * y) = pick(v[0], v[1], part ? HIGHS : LOWS);
        }
      });
    sync_group(group);
    // Threads of a power of two share a row, so that its number takes no division.
    constexpr int LENGTH = Config::EXACT ? smaller(Config::N, Config::BLK_N) : Config::BLK_N;
    constexpr int PIECES = pieces_of_row(Config::WIDTH, LENGTH), ALONG = smaller(32, power_of_two(PIECES));
    FPEMU_UNROLL
    for (int i = 0; i < Config::BLK_M; i += GROUP / ALONG) {
      const int line = i + thread / ALONG;
      if (line >= rows) break;
      FPEMU_UNROLL
      for (int part = 0; part < PARTS; part++) FPEMU_UNROLL
      for (int j = 0; j < PIECES; j += ALONG)
        store_piece<Config::WIDTH>(d + line * whole.row + part * p.d.plane, stage + part * D_BYTES + line * D_PITCH,
                                   j + thread % ALONG, columns);
    }
    return;
  }
  if (!computes) return;
  for_pairs(sums, warp, [&](int x, int y, const Sums(&two)[2]) {
    const int m = Config::TURNED ? y : x, n = Config::TURNED ? x : y;
    if (m >= rows || n >= columns) return;
    const u32 first = value(x, y, two[0]);
    const bool both = Config::TURNED ? m + 1 < rows : n + 1 < columns;
    const u32 second = both ? value(x, y + 1, two[1]) : 0;
    const u64 at = d + m * whole.row + (s64)n * ELEMENT;
    if (!Config::TURNED) store_two(p, at, first, second, both);
    else {
      store_one(p, at, first);
      if (both) store_one(p, at + whole.row, second);
    }
  });
}
