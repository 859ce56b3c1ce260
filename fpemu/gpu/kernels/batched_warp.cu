// A warp for each tile of D, with fragments straight from memory: no shared memory, no barrier.
//
// Config, besides what batched_sizes.cuh needs:
//   WARPS          of a thread block
//   ROWS, COLUMNS  of the tile in units of the instruction: 16 rows, 8 columns
//   STEPS          instructions along k whose operands are under way together
//   ONCE           K is not longer than that
//   ONE_TILE       a product is one tile
#include "batched_warp.cuh"

constexpr int TILE_M = 16 * Config::ROWS, TILE_N = 8 * Config::COLUMNS, TILE_K = 16 * Config::STEPS;

struct Fragments {
  u32 x[Config::STEPS][Config::ROWS][TERMS][4], y[Config::STEPS][Config::COLUMNS][TERMS][2];
};

// One operand's register of 8 by 8 elements, k from `k` on and rows of A or columns of B from `first` on: the lane's
// are k + 2t and k + 2t + 1 of `first` + g. Where lines do not run along k but are aligned, neighbours in a line are
// read.
template <bool ALONG_K, int WIDTH>
FPEMU_FUNCTION void load(u32 (&term)[TERMS], u64 at, s64 step, s64 k_step, s64 plane, int first, int k, int count,
                         int K, u32 signs) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = 2 * (lane % 4);
  u32 part[PARTS];
  if (!ALONG_K && !SPLIT && WIDTH >= 4) {
    const u64 own = at + (first + t) * step + (k + g) * k_step;
    FPEMU_UNROLL
    for (int i = 0; i < PARTS; i++) {
      const int left = k + g < K ? count - first - t : 0;
      part[i] = left > 1 ? load4(own + i * plane) : left > 0 ? load2(own + i * plane) : 0;
    }
    FPEMU_UNROLL
    for (int i = 0; i < PARTS; i++) part[i] = transposed(part[i]);
  } else {
    const int left = first + g < count ? K - k - t : 0;
    load_pair<ALONG_K, WIDTH>(part, at + (first + g) * step + (k + t) * k_step, k_step, plane, left);
  }
  terms_of(term, part, signs);
}

// The fragments of a tile from k on.
FPEMU_FUNCTION void load_all(Fragments& f, const Problem& p, const Place& a, const Place& b, int m0, int n0, int k0) {
  const int M = rows_of(p), N = columns_of(p), K = depth_of(p);
  FPEMU_UNROLL
  for (int s = 0; s < Config::STEPS; s++) {
    const int k = k0 + 16 * s;
    FPEMU_UNROLL
    for (int i = 0; i < Config::ROWS; i++) FPEMU_UNROLL
    for (int r = 0; r < 4; r++) {
      const int m = m0 + 16 * i + r % 2 * 8;
      u32 term[TERMS] = {};
      if (m < M && k + r / 2 * 8 < K)
        load<Config::A_ALONG_K, Config::WIDTH>(term, a.at, a.row, a.column, p.a.plane, m, k + r / 2 * 8, M, K, SIGNS_A);
      FPEMU_UNROLL
      for (int n = 0; n < TERMS; n++) f.x[s][i][n][r] = term[n];
    }
    FPEMU_UNROLL
    for (int j = 0; j < Config::COLUMNS; j++) FPEMU_UNROLL
    for (int r = 0; r < 2; r++) {
      const int n = n0 + 8 * j;
      u32 term[TERMS] = {};
      if (n < N && k + r * 8 < K)
        load<Config::B_ALONG_K, Config::WIDTH>(term, b.at, b.column, b.row, p.b.plane, n, k + r * 8, N, K, SIGNS_B);
      FPEMU_UNROLL
      for (int i = 0; i < TERMS; i++) f.y[s][j][i][r] = term[i];
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * Config::WARPS) batched_warp(Problem p) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int product = blockIdx.x * Config::WARPS + warp, m0 = 0, n0 = 0;
  if (!Config::ONE_TILE) {
    const int tiles = p.tiles_m * p.tiles_n, tile = product % tiles;
    product /= tiles, m0 = tile / p.tiles_n * TILE_M, n0 = tile % p.tiles_n * TILE_N;
  }
  wait_for_previous_grid();
  if (product >= p.batch) return;
  const Place a = place_of_a(p.a, product), b = place_of_b(p.b, product), d = place_of_d(p, product);
  const int M = rows_of(p), N = columns_of(p), K = depth_of(p);
  Sum sums[Config::ROWS][Config::COLUMNS][TERMS];
  FPEMU_UNROLL
  for (auto& row : sums) FPEMU_UNROLL
  for (auto& unit : row) FPEMU_UNROLL
  for (auto& s : unit) s = zero();
  Fragments f;
  for (int k = 0;;) {
    load_all(f, p, a, b, m0, n0, k);
    FPEMU_UNROLL
    for (int s = 0; s < Config::STEPS; s++) FPEMU_UNROLL
    for (int i = 0; i < Config::ROWS; i++) FPEMU_UNROLL
    for (int j = 0; j < Config::COLUMNS; j++) multiply_step<false>(sums[i][j], f.x[s][i], f.y[s][j]);
    k += TILE_K;
    if (Config::ONCE || k >= K) break;
  }
  const u64 c = Config::PLAIN ? 0 : matrix_of(p.c, product);
  FPEMU_UNROLL
  for (int i = 0; i < Config::ROWS; i++) FPEMU_UNROLL
  for (int j = 0; j < Config::COLUMNS; j++) FPEMU_UNROLL
  for (int half = 0; half < 2; half++) {
    const int m = m0 + 16 * i + lane / 4 + 8 * half, n = n0 + 8 * j + lane % 4 * 2;
    if (m >= M || n >= N) continue;
    const bool both = n + 1 < N;
    u32 v[2] = {0, 0};
    FPEMU_UNROLL
    for (int e = 0; e < 2; e++) {
      Sums s;
      FPEMU_UNROLL
      for (int t = 0; t < TERMS; t++) s.part[t] = entry(sums[i][j][t], 2 * half + e);
      if (!e || both) v[e] = finished(p, s, place_in_c(p, c, m, n + e));
    }
    store_two(p, d.at + m * d.row + (s64)n * ELEMENT, v[0], v[1], both);
  }
}
