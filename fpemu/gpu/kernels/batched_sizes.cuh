// The sizes of a problem that are compile-time constants.
//
// Config, besides what batched.cuh needs:
//   EXACT        M, N, K are those of the problem
//   CONTIGUOUS   A, B and D are stacks without gaps: all distances follow from M, N and K
//   A_ALONG_K, B_ALONG_K   lines of A and B run along k
#pragma once
#include "batched.cuh"

FPEMU_FUNCTION int rows_of(const Problem& p) { return Config::EXACT ? Config::M : p.M; }
FPEMU_FUNCTION int columns_of(const Problem& p) { return Config::EXACT ? Config::N : p.N; }
FPEMU_FUNCTION int depth_of(const Problem& p) { return Config::EXACT ? Config::K : p.K; }

// A matrix: its address, and the distances of neighbours in a column and in a row; bytes.
struct Place {
  u64 at;
  s64 row, column;
};
template <bool ROWS_ARE_LINES> FPEMU_FUNCTION Place place_of(const Stack& s, int i, int rows, int columns) {
  Place result;
  const s64 line = Config::CONTIGUOUS ? (ROWS_ARE_LINES ? columns : rows) * ELEMENT : s.line;
  result.at = Config::CONTIGUOUS ? s.first + (u64)i * (u32)(rows * columns * ELEMENT) : matrix_of(s, i);
  result.row = ROWS_ARE_LINES ? line : ELEMENT, result.column = ROWS_ARE_LINES ? ELEMENT : line;
  return result;
}
FPEMU_FUNCTION Place place_of_a(const Stack& a, int i) {
  return place_of<Config::A_ALONG_K>(a, i, Config::EXACT ? Config::M : 0, Config::EXACT ? Config::K : 0);
}
FPEMU_FUNCTION Place place_of_b(const Stack& b, int i) {
  return place_of<!Config::B_ALONG_K>(b, i, Config::EXACT ? Config::K : 0, Config::EXACT ? Config::N : 0);
}
FPEMU_FUNCTION Place place_of_d(const Problem& p, int i) { return place_of<true>(p.d, i, rows_of(p), columns_of(p)); }
