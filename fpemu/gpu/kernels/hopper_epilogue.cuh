// The epilogue of a math warpgroup's 64 rows of an output tile: it undoes the operands' powers of two, applies alpha,
// beta and C, gives every NaN its code, and stores.
#pragma once
#include "epilogue.cuh"
#include "hopper.cuh"

struct Result {  // fpemu.gpu.gemm.base.RESULT
  float* d;
  const float* c;              // or null
  s64 d_row, c_row, c_column;  // strides in elements; D's columns are contiguous
  Scaling<float> scaling;
  FPEMU_FUNCTION bool plain() const { return scaling.alpha == 1.f && !c; }
};

struct Where {  // of one product of a batch: which matrices, and where D and C begin, in elements
  s64 a, b, d, c;
};

// A launch's numbers; fpemu.gpu.gemm.base.TASK is the same structure in NumPy.
struct Task {
  Result out;
  const Where* where;           // of each product; null: one product, all zero
  const int* row_exponents;     // (matrices, M), or null: none
  const int* column_exponents;  // (matrices, N), or null
  float* slices;                // if K is split in slices: workspace, a tile of partial sums for each thread block
  int M, N, K, batch;
  int group;        // tile rows in a group of the tile scheduler
  int evict_first;  // words leave the L2 first
};

// t times 2^e for any e that operands have: exact in float64, then one rounding.
FPEMU_FUNCTION float times_power_of_two(float t, int e) {
  return (float)((double)t * __hiloint2double((e + 1023) << 20, 0));
}

FPEMU_FUNCTION bool either_nan(float x, float y) {
  int nan;
  asm("{\n.reg .pred p;\nsetp.nan.f32 p, %1, %2;\nselp.s32 %0, 1, 0, p;\n}" : "=r"(nan) : "f"(x), "f"(y));
  return nan;
}

// A warpgroup's 64 rows of an output tile: row and column of the first element, the product's index and offsets.
struct WarpgroupTile {
  int row, column, batch;
  Where where;
  FPEMU_FUNCTION WarpgroupTile(const Task& task, int row, int column, int batch)
      : row(row), column(column), batch(batch) {
    where = {0, 0, 0, 0};
    if (task.where) where = task.where[batch];
  }
};

// Powers of two of a tile's rows and columns, loaded before the mainloop, so that the epilogue does not wait for them.
template <int COLUMNS> struct Exponents {
  static constexpr int OWN = (COLUMNS + 127) / 128;  // columns that a thread loads for the others
  static constexpr int MODERATE = 63;                // the sum of two such has a power of two in fp32
  int row[2], own[OWN];

  FPEMU_FUNCTION static bool any(const Task& task) { return task.row_exponents || task.column_exponents; }
  FPEMU_FUNCTION void load(const Task& task, const WarpgroupTile& tile, int thread) {
    if (!any(task)) return;
    FPEMU_UNROLL
    for (int g = 0; g < 2; g++) {
      const int r = tile.row + thread / 32 * 16 + thread % 32 / 4 + 8 * g;
      row[g] = task.row_exponents && r < task.M ? __ldcg(task.row_exponents + tile.where.a * task.M + r) : 0;
    }
    FPEMU_UNROLL
    for (int i = 0; i < OWN; i++) {
      const int c = tile.column + thread + 128 * i;
      const int* column = task.column_exponents + tile.where.b * task.N + c;
      own[i] = task.column_exponents && c < task.N ? __ldcg(column) : 0;
    }
  }
  // Write the exponents of all columns to shared memory. Return true if an exponent exceeds MODERATE; all exponents are
  // then unchanged. Otherwise `row` becomes the addend to `column` that gives the code of 2^-(e_row + e_column). `name`
  // is a named barrier of the warpgroup.
  FPEMU_FUNCTION bool share(int* column, int thread, int name) {
    bool far = max(abs(row[0]), abs(row[1])) > MODERATE;
    FPEMU_UNROLL
    for (int i = 0; i < OWN; i++) far |= abs(own[i]) > MODERATE;
    far = named_any(name, 128, far);  // also: the columns of the tile before have been read
    FPEMU_UNROLL
    for (int i = 0; i < OWN; i++)
      if (thread + 128 * i < COLUMNS) column[thread + 128 * i] = far ? own[i] : (127 - own[i]) << 23;
    if (!far) row[0] = -row[0] << 23, row[1] = -row[1] << 23;
    named_sync(name, 128);
    return far;
  }
};

// A tile as wgmma leaves it: register 4 j + 2 g + i of lane 4 r + c of warp w is row 16 w + r + 8 g, column
// 8 j + 2 c + i. Neighbouring lanes swap pairs: a lane then has four columns of a row, an even one of group j and an
// odd one of group j + 1, and a row gets 64 contiguous bytes a store.
FPEMU_FUNCTION float4 swapped(const float* t, int odd) {  // t: columns of j, and four registers on those of j + 1
  const float x = __shfl_xor_sync(~0u, odd ? t[0] : t[4], 1), y = __shfl_xor_sync(~0u, odd ? t[1] : t[5], 1);
  return make_float4(odd ? x : t[0], odd ? y : t[1], odd ? t[4] : x, odd ? t[5] : y);
}
FPEMU_FUNCTION void scale_by(float4& x, const int4& columns, int row) {
  x.x *= __int_as_float(columns.x + row), x.y *= __int_as_float(columns.y + row);
  x.z *= __int_as_float(columns.z + row), x.w *= __int_as_float(columns.w + row);
}

// Stores four columns of a row, those that D has; aligned: all or none, at once.
FPEMU_FUNCTION void store_four(const Task& task, const WarpgroupTile& tile, const float4& x, int r, int c,
                               bool aligned) {
  if (r >= task.M) return;
  float* to = task.out.d + tile.where.d + r * task.out.d_row + c;
  if (aligned) {
    if (c < task.N) __stcs((float4*)to, x);
  } else {
    const float out[4] = {x.x, x.y, x.z, x.w};
    FPEMU_UNROLL
    for (int i = 0; i < 4; i++)
      if (c + i < task.N) to[i] = out[i];
  }
}

// Four columns of a row of C, zeros beyond C; fours: all or none exist, and are read at once.
FPEMU_FUNCTION float4 load_addend(const Task& task, const WarpgroupTile& tile, int r, int c, bool fours) {
  const Result& to = task.out;
  float4 x = make_float4(0, 0, 0, 0);
  if (r >= task.M) return x;
  const float* from = to.c + tile.where.c + r * to.c_row + c * to.c_column;
  if (fours) return c < task.N ? __ldcg((const float4*)from) : x;
  if (c < task.N) x.x = from[0];
  if (c + 1 < task.N) x.y = from[to.c_column];
  if (c + 2 < task.N) x.z = from[2 * to.c_column];
  if (c + 3 < task.N) x.w = from[3 * to.c_column];
  return x;
}

// Applies alpha, beta, C and the code of NaN to four columns of a row.
FPEMU_FUNCTION void finish_four(const Result& to, float4& x, const float4& c) {
  const float* const none = nullptr;
  if (to.c) {
    x.x = finished(x.x, to.scaling, &c.x), x.y = finished(x.y, to.scaling, &c.y);
    x.z = finished(x.z, to.scaling, &c.z), x.w = finished(x.w, to.scaling, &c.w);
  } else {
    x.x = finished(x.x, to.scaling, none), x.y = finished(x.y, to.scaling, none);
    x.z = finished(x.z, to.scaling, none), x.w = finished(x.w, to.scaling, none);
  }
}

// How a tile is stored: four columns at once, without branches, so that many stores are in flight; at the edge of D or
// in rows that are not aligned; or with alpha, C or NaN.
enum Way { INSIDE, EDGE, GENERAL };
template <Way WAY, int COLUMNS>
FPEMU_FUNCTION void store_sums(const Task& task, const WarpgroupTile& tile, const float (&total)[COLUMNS / 2], int r,
                               int c, int odd, const int4* columns, const int (&rows)[2], bool aligned) {
  const int4 none = {127 << 23, 127 << 23, 127 << 23, 127 << 23};  // 2^0
  const Result& out = task.out;
  float* to = out.d + tile.where.d + r * out.d_row + c;
  const bool fours = aligned && out.c_column == 1 && out.c_row % 4 == 0 && ((u64)(out.c + tile.where.c) & 15) == 0;
  FPEMU_UNROLL
  for (int j = 0; j < COLUMNS / 8; j += 2) {
    const int4 of = columns ? columns[2 * j] : none;
    float4 addends[2];
    FPEMU_UNROLL
    for (int g = 0; g < 2; g++)
      if (WAY == GENERAL && out.c) addends[g] = load_addend(task, tile, r + 8 * g, c + 8 * j, fours);
    FPEMU_UNROLL
    for (int g = 0; g < 2; g++) {
      float4 x = swapped(total + 4 * j + 2 * g, odd);
      scale_by(x, of, rows[g]);
      if (WAY == GENERAL) finish_four(out, x, addends[g]);
      if (WAY == INSIDE) __stcs((float4*)(to + 8 * g * out.d_row + 8 * j), x);
      else store_four(task, tile, x, r + 8 * g, c + 8 * j, aligned);
    }
  }
}

// Stores D's elements of a tile, whose powers of two are given: `columns` and `rows` as Exponents::share leaves them.
template <int COLUMNS>
FPEMU_FUNCTION void store(const Task& task, const WarpgroupTile& tile, const float (&total)[COLUMNS / 2], int thread,
                          const int* shared, const int (&rows)[2]) {
  const int lane = thread % 32, odd = lane & 1, four = 8 * odd + 2 * (lane & 2);
  const int r = tile.row + thread / 32 * 16 + lane / 4, c = tile.column + four;
  const int4* columns = shared ? (const int4*)(shared + four) : nullptr;
  bool nan = false;
  FPEMU_UNROLL
  for (int i = 0; i < COLUMNS / 2; i += 2) nan |= either_nan(total[i], total[i + 1]);
  const Result& to = task.out;
  const bool aligned = to.d_row % 4 == 0 && task.N % 4 == 0 && ((u64)(to.d + tile.where.d) & 15) == 0;
  const bool inside = tile.row + 64 <= task.M && tile.column + COLUMNS <= task.N;
  const bool plain = to.plain() && !__any_sync(~0u, nan);
  if (plain && inside && aligned) store_sums<INSIDE, COLUMNS>(task, tile, total, r, c, odd, columns, rows, aligned);
  else if (plain) store_sums<EDGE, COLUMNS>(task, tile, total, r, c, odd, columns, rows, aligned);
  else store_sums<GENERAL, COLUMNS>(task, tile, total, r, c, odd, columns, rows, aligned);
}

// Stores D's elements of a tile. `shared` holds COLUMNS numbers; `name` is a named barrier of the warpgroup.
template <int COLUMNS>
FPEMU_FUNCTION void store(const Task& task, const WarpgroupTile& tile, float (&total)[COLUMNS / 2],
                          Exponents<COLUMNS>& exponents, int thread, int* shared, int name) {
  bool scaled = exponents.any(task);
  if (scaled && exponents.share(shared, thread, name)) {
    FPEMU_UNROLL
    for (int i = 0; i < COLUMNS / 2; i++) {
      const int e = exponents.row[i / 2 % 2] + shared[i / 4 * 8 + thread % 4 * 2 + i % 2];
      total[i] = times_power_of_two(total[i], -e);
    }
    scaled = false;
  }
  if (!scaled) exponents.row[0] = exponents.row[1] = 0;
  store<COLUMNS>(task, tile, total, thread, scaled ? shared : nullptr, exponents.row);
}
