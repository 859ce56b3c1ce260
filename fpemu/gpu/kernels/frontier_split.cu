// Operands of the scheme `staged-int8` for frontier_gemm.cu: the rows' scales, h in fp16, and the words of 8 bits.
//
// A row is one of A or a column of B; k runs along it. Strides are in elements and may be anything.
#include "frontier_words.cuh"

constexpr int BK = 64, ROWS = 64;

struct Operand {
  const float* x;
  s64 row_stride, k_stride;
  int rows, k;
  u16* h;           // (rows, pitch)
  u8* q;            // (rows, 2 pitch)
  int* scales;      // (rows)
  u8* special;      // (rows): whether there is a NaN or an infinity
  u64* faults;      // how many of these there are
  int pitch;        // a multiple of 64
  int second;       // 0: A, with qr before qh; 1: B, with qh before qr
  int exact;        // of so many stages one has r in fp16; 0: none
  int per;          // pieces of 64 k in a stage
};

// 32 rows a block of 32 x 32 threads; `x` runs along what is contiguous.
extern "C" __global__ void __launch_bounds__(1024) frontier_scales(const Operand o) {
  __shared__ u32 found[32][33], bad[32][33];
  const bool along = o.k_stride == 1;
  const int row = blockIdx.x * 32 + (along ? threadIdx.y : threadIdx.x), from = along ? threadIdx.x : threadIdx.y;
  u32 largest = 0, wrong = 0;
  if (row < o.rows) {
    const float* x = o.x + row * o.row_stride;
#pragma unroll 8
    for (int k = from; k < o.k; k += 32) {
      const float v = x[k * o.k_stride];
      const u32 size = __float_as_uint(v) & 0x7FFFFFFF;
      if (size < 0x7F800000) largest = largest > size ? largest : size; else wrong++;
    }
  }
  found[threadIdx.y][threadIdx.x] = largest, bad[threadIdx.y][threadIdx.x] = wrong;
  __syncthreads();
  largest = along ? found[threadIdx.y][threadIdx.x] : found[threadIdx.x][threadIdx.y];
  wrong = along ? bad[threadIdx.y][threadIdx.x] : bad[threadIdx.x][threadIdx.y];
  for (int d = 16; d; d >>= 1) {
    const u32 other = __shfl_xor_sync(~0u, largest, d);
    largest = largest > other ? largest : other;
    wrong += __shfl_xor_sync(~0u, wrong, d);
  }
  const int at = blockIdx.x * 32 + threadIdx.y;
  if (threadIdx.x == 0 && at < o.rows) {
    o.scales[at] = scale_for(largest);
    o.special[at] = wrong != 0;
    if (wrong) atomicAdd(o.faults, (u64)wrong);
  }
}

// 64 rows by 64 k a block of 256 threads: each splits 16 consecutive k of a row.
extern "C" __global__ void __launch_bounds__(256) frontier_split(const Operand o) {
  __shared__ float tile[ROWS][BK + 1];
  const int k0 = blockIdx.x * BK, row0 = blockIdx.y * ROWS, t = threadIdx.x;
  const bool along = o.k_stride == 1;
#pragma unroll
  for (int i = 0; i < ROWS * BK / 256; i++) {
    const int slow = i * 4 + t / 64, fast = t % 64, r = along ? slow : fast, k = along ? fast : slow;
    float v = 0;
    if (row0 + r < o.rows && k0 + k < o.k) v = __ldcs(o.x + (row0 + r) * o.row_stride + (k0 + k) * o.k_stride);
    tile[r][k] = is_finite(v) ? v : 0.0f;
  }
  __syncthreads();
  const int r = t / 4, part = t % 4, row = row0 + r;
  if (row >= o.rows) return;
  const Scale scale(o.scales[row]);
  const bool exact = o.exact && blockIdx.x / o.per % o.exact == 0;
  u32 h[8], low[4], high[4], rest[8];
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const Numbers n = split(tile[r][part * 16 + i], scale);
    h[i / 2] = i % 2 ? h[i / 2] | (u32)n.h << 16 : n.h;
    rest[i / 2] = i % 2 ? rest[i / 2] | (u32)n.r << 16 : n.r;
    low[i / 4] = i % 4 ? low[i / 4] | n.low << 8 * (i % 4) : n.low;
    high[i / 4] = i % 4 ? high[i / 4] | n.high << 8 * (i % 4) : n.high;
  }
  uint4* to = (uint4*)(o.h + (s64)row * o.pitch + k0 + part * 16);
  to[0] = make_uint4(h[0], h[1], h[2], h[3]), to[1] = make_uint4(h[4], h[5], h[6], h[7]);
  u8* q = o.q + ((s64)row * o.pitch + k0) * 2;
  if (exact) {
    uint4* words = (uint4*)(q + part * 32);
    words[0] = make_uint4(rest[0], rest[1], rest[2], rest[3]), words[1] = make_uint4(rest[4], rest[5], rest[6], rest[7]);
  } else {
    *(uint4*)(q + part * 16 + (o.second ? 64 : 0)) = make_uint4(low[0], low[1], low[2], low[3]);
    *(uint4*)(q + part * 16 + (o.second ? 0 : 64)) = make_uint4(high[0], high[1], high[2], high[3]);
  }
}

// Rows that are contiguous, one a block of 512 threads, in one pass: what a thread holds of a row is not read again.
constexpr int THREADS = 512, HELD = 4;

FPEMU_FUNCTION float4 four(const Operand& o, const float* x, int k, bool wide) {
  if (wide && k + 4 <= o.k) return __ldcs((const float4*)(x + k));
  float v[4];
  FPEMU_UNROLL
  for (int i = 0; i < 4; i++) v[i] = k + i < o.k ? x[k + i] : 0.0f;
  return make_float4(v[0], v[1], v[2], v[3]);
}

FPEMU_FUNCTION void put(const Operand& o, int row, int k, const Scale& scale, float4 v) {
  const float x[4] = {v.x, v.y, v.z, v.w};
  u32 h[2], rest[2], low = 0, high = 0;
  FPEMU_UNROLL
  for (int i = 0; i < 4; i++) {
    const Numbers n = split(is_finite(x[i]) ? x[i] : 0.0f, scale);
    h[i / 2] = i % 2 ? h[i / 2] | (u32)n.h << 16 : n.h;
    rest[i / 2] = i % 2 ? rest[i / 2] | (u32)n.r << 16 : n.r;
    low |= n.low << 8 * i, high |= n.high << 8 * i;
  }
  const s64 at = (s64)row * o.pitch + k;
  *(uint2*)(o.h + at) = make_uint2(h[0], h[1]);
  u8* q = o.q + 2 * (at - k % BK);
  if (o.exact && k / BK / o.per % o.exact == 0) *(uint2*)(q + 2 * (k % BK)) = make_uint2(rest[0], rest[1]);
  else {
    *(u32*)(q + k % BK + (o.second ? 64 : 0)) = low;
    *(u32*)(q + k % BK + (o.second ? 0 : 64)) = high;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) frontier_rows(const Operand o) {
  __shared__ u32 found[THREADS / 32], bad[THREADS / 32];
  const int row = blockIdx.x, t = threadIdx.x;
  const float* x = o.x + row * o.row_stride;
  const bool wide = ((u64)x & 15) == 0;
  float4 held[HELD];
  u32 largest = 0, wrong = 0;
  auto see = [&](float4 v) {
    const float y[4] = {v.x, v.y, v.z, v.w};
    FPEMU_UNROLL
    for (int i = 0; i < 4; i++) {
      const u32 size = __float_as_uint(y[i]) & 0x7FFFFFFF;
      if (size < 0x7F800000) largest = max(largest, size); else wrong++;
    }
  };
  FPEMU_UNROLL
  for (int i = 0; i < HELD; i++) held[i] = four(o, x, 4 * (t + i * THREADS), wide), see(held[i]);
  for (int k = 4 * (t + HELD * THREADS); k < o.k; k += 4 * THREADS) see(four(o, x, k, wide));
  largest = __reduce_max_sync(~0u, largest), wrong = __reduce_add_sync(~0u, wrong);
  if (t % 32 == 0) found[t / 32] = largest, bad[t / 32] = wrong;
  __syncthreads();
  largest = __reduce_max_sync(~0u, found[t % (THREADS / 32)]);
  const Scale scale(scale_for(largest));
  if (t == 0) {
    wrong = 0;
    for (int i = 0; i < THREADS / 32; i++) wrong += bad[i];
    o.scales[row] = scale_for(largest), o.special[row] = wrong != 0;
    if (wrong) atomicAdd(o.faults, (u64)wrong);
  }
  FPEMU_UNROLL
  for (int i = 0; i < HELD; i++) {
    const int k = 4 * (t + i * THREADS);
    if (k < o.pitch) put(o, row, k, scale, held[i]);
  }
  for (int k = 4 * (t + HELD * THREADS); k < o.pitch; k += 4 * THREADS) put(o, row, k, scale, four(o, x, k, wide));
}
