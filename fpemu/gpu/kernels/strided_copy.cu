// Matrices copied from any strides to any others, and beta · C where there is no product. One entry a thread, in turns.
#include "epilogue.cuh"

// (matrix, row, column) of an entry, and its place in a stack: `of` says where each matrix begins.
struct Place {
  s64 matrix, row, column;
};
FPEMU_FUNCTION Place place_of(s64 i, s64 rows, s64 columns) {
  Place p;
  p.column = i % columns, i /= columns;
  p.row = i % rows, p.matrix = i / rows;
  return p;
}
FPEMU_FUNCTION s64 at(const Place& p, const s64* of, s64 row_step, s64 column_step) {
  return of[p.matrix] + p.row * row_step + p.column * column_step;
}

#define COPY(BYTES, T)                                                                                          \
  extern "C" __global__ void copy##BYTES(const T* from, T* to, const s64* from_of, const s64* to_of, s64 count, \
                                         s64 rows, s64 columns, s64 from_row, s64 from_column, s64 to_row,      \
                                         s64 to_column) {                                                       \
    for (s64 i = (s64)blockIdx.x * 256 + threadIdx.x; i < count * rows * columns; i += (s64)gridDim.x * 256) {  \
      const Place p = place_of(i, rows, columns);                                                               \
      to[at(p, to_of, to_row, to_column)] = from[at(p, from_of, from_row, from_column)];                        \
    }                                                                                                           \
  }
COPY(1, u8)
COPY(2, u16)
COPY(4, u32)
COPY(8, u64)
struct Sixteen {
  u64 low, high;
};
COPY(16, Sixteen)

// The parts of complex numbers, `rows` by 2 `columns`; second: of the rows of X and of i X in turns.
#define PARTS(BYTES, T)                                                                                               \
  extern "C" __global__ void parts##BYTES(const T* from, T* to, const s64* from_of, s64 count, s64 rows, s64 columns, \
                                          s64 row_step, s64 column_step, int second) {                                \
    for (s64 i = (s64)blockIdx.x * 256 + threadIdx.x; i < count * rows * columns; i += (s64)gridDim.x * 256) {        \
      const Place p = place_of(i, rows, columns);                                                                     \
      const T* x = from + 2 * at(p, from_of, row_step, column_step);                                                  \
      T* row = to + 2 * ((p.matrix * rows + p.row) * (1 + second) * columns + p.column);                              \
      row[0] = x[0], row[1] = x[1];                                                                                   \
      if (second) row[2 * columns] = -x[1], row[2 * columns + 1] = x[0];                                              \
    }                                                                                                                 \
  }
PARTS(4, float)
PARTS(8, double)

// D = alpha · D + beta · C, or beta · C alone (product = 0), of real or, with two parts, of complex numbers, whose rows and
// columns of D are contiguous. narrow: C is fp32. plus_zero: a zero of C gives +0, as the exact sum of nothing and a zero.
template <class Real>
FPEMU_FUNCTION void combine_all(Real* D, const void* C, const s64* d_of, const s64* c_of, s64 count, s64 rows,
                                s64 columns, s64 d_row, s64 c_row, s64 c_column, int parts, int narrow,
                                const Real (&alpha)[2], const Real (&beta)[2], u64 nan_code, int product,
                                int plus_zero) {
  for (s64 i = (s64)blockIdx.x * 256 + threadIdx.x; i < count * rows * columns; i += (s64)gridDim.x * 256) {
    const Place p = place_of(i, rows, columns);
    Real* d = D + parts * at(p, d_of, d_row, 1);
    const s64 from = C ? parts * at(p, c_of, c_row, c_column) : 0;
    Real c[2] = {0, 0}, t[2];
    for (int part = 0; part < parts && C; part++)
      c[part] = narrow ? (Real)((const float*)C)[from + part] : ((const Real*)C)[from + part];
    const bool zero[2] = {c[0] == 0, c[1] == 0};
    for (int part = 0; part < 2; part++) t[part] = product ? d[part] : c[part];
    if (product) combine(t, alpha, beta, C ? c : nullptr);
    else if (C) scale(t, beta[0], beta[1]);
    for (int part = 0; part < parts; part++) d[part] = plus_zero && zero[part] ? (Real)0 : with_code(t[part], nan_code);
  }
}
#define COMBINE(BYTES, Real)                                                                                      \
  extern "C" __global__ void combine##BYTES(Real* D, const void* C, const s64* d_of, const s64* c_of, s64 count,  \
                                            s64 rows, s64 columns, s64 d_row, s64 c_row, s64 c_column, int parts, \
                                            int narrow, double re, double im, double beta_re, double beta_im,     \
                                            u64 nan_code, int product, int plus_zero) {                           \
    const Real alpha[2] = {(Real)re, (Real)im}, beta[2] = {(Real)beta_re, (Real)beta_im};                         \
    combine_all<Real>(D, C, d_of, c_of, count, rows, columns, d_row, c_row, c_column, parts, narrow, alpha, beta, \
                      nan_code, product, plus_zero);                                                              \
  }
COMBINE(4, float)
COMBINE(8, double)
