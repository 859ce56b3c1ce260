// Around the products of Strassen's algorithm in Winograd's form: the sums of the products and, with two levels, the
// sums of blocks before them, split into words of the scheme `staged`; with one level strassen_split.cu does that.
// fpemu/schemes/strassen.py has the formulas.
//
// Before this text: Config::LEVELS, 1 or 2: 7 products of blocks of half the size, or 49 of a quarter of it;
// Config::BALANCED (high_words.cuh).
//
// An operand is seen as rows along k, rows of A or columns of B. A block has the number 2 (its half of the rows) + (its
// half of k), with two levels 4 (number of the outer block) + (number of the inner block); product 7 i + j is the j-th
// of the i-th. The operands of one side lie one after another, each as hopper_split.cuh has it.
#include "hopper_epilogue.cuh"
#include "range_faults.cuh"
#include "high_words.cuh"
#include "strassen_winograd.cuh"

constexpr int LEVELS = Config::LEVELS;
static_assert(LEVELS == 1 || LEVELS == 2, "fpemu.schemes.strassen has one level or two");
constexpr int PRODUCTS = LEVELS == 1 ? 7 : 49, BLOCKS = LEVELS == 1 ? 4 : 16, SIDE = LEVELS == 1 ? 2 : 4;

// Which row, or k, number i of a block's is; `size` where there is none. `outer`, `inner`: halves the block lies in.
FPEMU_FUNCTION int place(int outer, int inner, int i, int size, int half, int block) {
  const int in = LEVELS == 1 ? i : inner * block + i;
  return i < block & in < half ? smaller(outer * half + in, size) : size;
}
FPEMU_FUNCTION int row_half(int b) { return LEVELS == 1 ? b / 2 : b / 8; }
FPEMU_FUNCTION int k_half(int b) { return LEVELS == 1 ? b % 2 : b / 4 % 2; }

#if FPEMU_TWO_LEVELS  // with one level strassen_split.cu makes the words
constexpr int ROWS = 16, BK = 64, LINE = BK + 1, THREADS = 256, RUN = ROWS * BK / THREADS;

struct Operand {
  const float* x;
  s64 row_stride, k_stride;
  int rows, k, half, half_k, block, block_k;  // half, half_k: of the outer blocks
  u16 *high, *low;                            // (products, chunks, block, 64)
  u32* largest;                               // (products, block): bits of the largest magnitudes, zero before
  int* exponents;                             // (products, block): of the powers of two that bring rows to [2^13, 2^14)
  u8* special;  // (rows): whether there is a NaN or an infinity, which count as zero; zero before
  u64* faults;  // range_faults.cuh
  float limit;  // their size
  int second;   // 0 for A, 1 for B
  int number;   // index of the matrix in its stack
};

FPEMU_FUNCTION bool finite(float x) { return (__float_as_uint(x) & 0x7FFFFFFF) < 0x7F800000; }

// Operands 7 first ... 7 first + 6 of one entry of each block.
FPEMU_FUNCTION void operands(const float (&x)[16], int first, bool second, float (&s)[7]) {
  float of[4];
  FPEMU_UNROLL
  for (int q = 0; q < 4; q++) {
    float outer[7];
    winograd_operands(x[q], x[4 + q], x[8 + q], x[12 + q], second, outer);
    of[q] = outer[first];
  }
  winograd_operands(of[0], of[1], of[2], of[3], second, s);
}

FPEMU_FUNCTION float entry(const Operand& o, int b, int row, int k) {
  const int r = place(row_half(b), b / 2 % 2, row, o.rows, o.half, o.block);
  const int at = place(k_half(b), b % 2, k, o.k, o.half_k, o.block_k);
  const bool inside = r < o.rows & at < o.k;  // no branch, so that many loads are on their way at a time
  const float x = __ldg(inside ? o.x + (r * o.row_stride + at * o.k_stride) : o.x);
  return inside ? x : 0.0f;
}

// Reports the entries (row, k) of some blocks, a bit for each, and returns their number.
FPEMU_FUNCTION u32 report(const Operand& o, Fault fault, u32 blocks, int row, int k) {
  u32 count = 0;
#pragma unroll 1
  for (; blocks; blocks &= blocks - 1, count++) {
    const int b = bit_length(blocks & -blocks) - 1, r = place(row_half(b), b / 2 % 2, row, o.rows, o.half, o.block);
    const int at = place(k_half(b), b % 2, k, o.k, o.half_k, o.block_k);
    report_first(o.faults, fault, entry_index(o.number, r, at, o.rows, o.k, o.second));
  }
  return count;
}

// Blocks of 32 x 16 threads, each for a part of k: 16 rows where these are contiguous, 32 where k's neighbours are
// apart.
extern "C" __global__ void __launch_bounds__(512) strassen_largest(const __grid_constant__ Operand o) {
  __shared__ u32 largest[PRODUCTS][32], nonfinite[SIDE][32];
  const bool along = o.k_stride == 1;
  const int many = along ? 16 : 32, base = blockIdx.x * many, own = along ? threadIdx.y : threadIdx.x;
  const int thread = threadIdx.y * 32 + threadIdx.x, part = (o.block_k + gridDim.y - 1) / gridDim.y;
  const int from = blockIdx.y * part, until = smaller(from + part, o.block_k);
  for (int i = thread; i < PRODUCTS * 32; i += 512) largest[i / 32][i % 32] = 0;
  if (thread < SIDE * 32) nonfinite[thread / 32][thread % 32] = 0;
  __syncthreads();
  u32 most[PRODUCTS] = {}, bad[SIDE] = {}, over = 0;
#pragma unroll 1
  for (int k = from + (along ? threadIdx.x : threadIdx.y); k < until; k += along ? 32 : 16) {
    float x[BLOCKS];
    u32 nonfinite_blocks = 0, large = 0;  // a bit for each block
    FPEMU_UNROLL
    for (int b = 0; b < BLOCKS; b++) {
      x[b] = entry(o, b, base + own, k);
      if (!finite(x[b])) bad[b / 8 * 2 + b / 2 % 2]++, nonfinite_blocks |= 1 << b, x[b] = 0;
      large |= (fabsf(x[b]) >= o.limit) << b;
    }
    if (nonfinite_blocks) report(o, NONFINITE_ENTRY, nonfinite_blocks, base + own, k);
    if (large) over += report(o, OVERFLOWING_ENTRY, large, base + own, k);
    FPEMU_UNROLL
    for (int first = 0; first < PRODUCTS / 7; first++) {
      float s[7];
      operands(x, first, o.second, s);
      FPEMU_UNROLL
      for (int j = 0; j < 7; j++) most[7 * first + j] = max(most[7 * first + j], __float_as_uint(s[j]) & 0x7FFFFFFF);
    }
  }
  FPEMU_UNROLL
  for (int i = 0; i < PRODUCTS; i++) {
    const u32 row = along ? __reduce_max_sync(~0u, most[i]) : most[i];
    if (!along || threadIdx.x == 0) atomicMax(&largest[i][own], row);
  }
  FPEMU_UNROLL
  for (int h = 0; h < SIDE; h++)
    if (bad[h]) atomicAdd(&nonfinite[h][own], bad[h]);
  if (over) atomicAdd(o.faults + 1, (u64)over);
  __syncthreads();
  for (int i = thread; i < PRODUCTS * many; i += 512) {
    const int row = base + i % many;
    const u32 top = largest[i / many][i % many];
    if (row < o.block && top) atomicMax(&o.largest[i / many * o.block + row], top);
  }
  if (thread < SIDE * many) {
    const int h = thread / many, n = thread % many,
              row = place(h / (SIDE / 2), h % 2, base + n, o.rows, o.half, o.block);
    if (row < o.rows && nonfinite[h][n]) o.special[row] = 1, atomicAdd(o.faults, (u64)nonfinite[h][n]);
  }
}

// ROWS rows by 64 k of every block; each thread makes RUN consecutive k of a row of all operands.
extern "C" __global__ void __launch_bounds__(THREADS, 2) strassen_split(const __grid_constant__ Operand o) {
  extern __shared__ float tile[];  // (BLOCKS, ROWS, LINE)
  __shared__ float2 scales[PRODUCTS][ROWS];
  const int k0 = blockIdx.x * BK, row0 = blockIdx.y * ROWS, t = threadIdx.x;
  const bool along = o.k_stride == 1;
#pragma unroll 4
  for (int b = 0; b < BLOCKS; b++) FPEMU_UNROLL
  for (int i = 0; i < RUN; i++) {
    const int n = i * THREADS + t, r = along ? n / BK : n % ROWS, k = along ? n % BK : n / ROWS;
    const float v = entry(o, b, row0 + r, k0 + k);
    tile[(b * ROWS + r) * LINE + k] = finite(v) ? v : 0.0f;
  }
  for (int n = t; n < PRODUCTS * ROWS; n += THREADS) {
    const int row = row0 + n % ROWS, at = n / ROWS * o.block + row;
    const u32 top = row < o.block ? o.largest[at] : 0;
    const int e = !top ? 0 : top >> 23 ? 140 - (int)(top >> 23) : 163 - bit_length(top), e1 = smaller(e, 100);
    scales[n / ROWS][n % ROWS] = {__uint_as_float((u32)(e1 + 127) << 23), __uint_as_float((u32)(e - e1 + 127) << 23)};
    if (blockIdx.x == 0 && row < o.block) o.exponents[at] = e;
  }
  __syncthreads();
  const int r = t / (BK / RUN), k = t % (BK / RUN) * RUN, row = row0 + r;
  if (row >= o.block) return;
  float x[RUN][BLOCKS];
  FPEMU_UNROLL
  for (int b = 0; b < BLOCKS; b++) FPEMU_UNROLL
  for (int i = 0; i < RUN; i++) x[i][b] = tile[(b * ROWS + r) * LINE + k + i];
  s64 to = ((s64)blockIdx.x * o.block + row) * BK + k;
  FPEMU_UNROLL
  for (int first = 0; first < PRODUCTS / 7; first++) {
    float s[RUN][7];
    FPEMU_UNROLL
    for (int i = 0; i < RUN; i++) operands(x[i], first, o.second, s[i]);
    FPEMU_UNROLL
    for (int j = 0; j < 7; j++, to += (s64)gridDim.x * o.block * BK) {
      const float2 up = scales[7 * first + j][r];
      u32 h[RUN / 2], l[RUN / 2];
      FPEMU_UNROLL
      for (int i = 0; i < RUN; i += 2) {
        const float y = s[i][j] * up.x * up.y, z = s[i + 1][j] * up.x * up.y;
        float g, f;
        h[i / 2] = high_words<Config::BALANCED>(y, z, o.second);
        of_halves(h[i / 2], g, f);
        l[i / 2] = to_halves(y - g, z - f);
      }
      *(uint2*)(o.high + to) = make_uint2(h[0], h[1]);
      *(uint2*)(o.low + to) = make_uint2(l[0], l[1]);
    }
  }
}

#endif

struct Join {
  const float* products;  // (products, block_m, block_n)
  Result out;
  int m, n, half_m, half_n, block_m, block_n;
};

FPEMU_FUNCTION void winograd_results(const float (&p)[7], float (&out)[4]) {
  const float u2 = p[0] + p[5], u3 = u2 + p[6], u4 = u2 + p[4];
  out[0] = p[0] + p[1], out[1] = u4 + p[2], out[2] = u3 - p[3], out[3] = u3 + p[4];
}

// One entry of every block of the result a thread and turn, two where everything is even.
template <int WIDE> FPEMU_FUNCTION void join(const Join& j) {
  const s64 size = (s64)j.block_m * j.block_n;
  const int per_row = j.block_n / WIDE;
  const s64 all = (s64)j.block_m * per_row, step = (s64)gridDim.x * blockDim.x;
  for (s64 at = blockIdx.x * (s64)blockDim.x + threadIdx.x; at < all; at += step) {
    const int row = (int)(at / per_row), column = (int)(at % per_row) * WIDE;
    float out[WIDE][BLOCKS], inner[WIDE][4][7];
    FPEMU_UNROLL
    for (int i = 0; i < PRODUCTS / 7; i++) {
      float p[WIDE][7];
      FPEMU_UNROLL
      for (int n = 0; n < 7; n++) {
        const float* from = j.products + (7 * i + n) * size + (s64)row * j.block_n + column;
        if constexpr (WIDE == 2) {
          const float2 v = __ldcs((const float2*)from);
          p[0][n] = v.x, p[1][n] = v.y;
        } else p[0][n] = *from;
      }
      FPEMU_UNROLL
      for (int w = 0; w < WIDE; w++) {
        float blocks[4];
        winograd_results(p[w], blocks);
        FPEMU_UNROLL
        for (int q = 0; q < 4; q++) inner[w][q][i] = blocks[q];
      }
    }
    FPEMU_UNROLL
    for (int w = 0; w < WIDE; w++) FPEMU_UNROLL
    for (int q = 0; q < 4; q++) {
      float blocks[4];
      if (LEVELS == 1) out[w][q] = inner[w][q][0];
      else winograd_results(inner[w][q], blocks);
      FPEMU_UNROLL
      for (int i = 0; i < 4 && LEVELS == 2; i++) out[w][(4 * i + q) % BLOCKS] = blocks[i];
    }
    FPEMU_UNROLL
    for (int b = 0; b < BLOCKS; b++) {
      const int r = place(row_half(b), b / 2 % 2, row, j.m, j.half_m, j.block_m);
      const int c = place(k_half(b), b % 2, column, j.n, j.half_n, j.block_n);
      if (r >= j.m || c >= j.n) continue;
      FPEMU_UNROLL
      for (int w = 0; w < WIDE; w++) {
        const float* added = j.out.c ? j.out.c + r * j.out.c_row + (c + w) * j.out.c_column : nullptr;
        out[w][b] = finished(out[w][b], j.out.scaling, added);
      }
      float* to = j.out.d + r * j.out.d_row + c;
      if constexpr (WIDE == 2) __stcs((float2*)to, make_float2(out[0][b], out[1][b]));
      else *to = out[0][b];
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) strassen_join(const __grid_constant__ Join j) {
  if (j.n % (2 * SIDE) == 0 && j.out.d_row % 2 == 0 && ((u64)j.out.d & 7) == 0) join<2>(j);
  else join<1>(j);
}
