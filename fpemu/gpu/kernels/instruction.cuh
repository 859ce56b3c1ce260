// One matrix instruction on one tile, bit patterns in and out.
//
// fpemu.gpu.instructions.run.prelude defines, from a row of the catalog:
//   IS_WGMMA        1: wgmma of a warpgroup, A from registers and B from shared memory; 0: mma.sync of a warp
//   TILE_M, TILE_N  rows and columns of the tile
//   AB_WORD         what a register of A and B holds: 4 bytes of a row (unsigned), or 8 for fp64 (double)
//   ROW_WORDS       such words in a row of A: 4, 8 or 16
//   CD_WORD         what a register of C and D holds: float, double, or unsigned (int32, and two fp16)
//   CD_PAIR         words that hold two neighbours of C: 2, or 1 for fp16
//   ISSUE           the instruction as inline PTX on a[], b[] (or the descriptor `b_shared`) and c[]
//
// The fragments of every shape are one layout in words. With g = lane / 4 and t = lane % 4, a lane holds of A the words
// t, t + 4, ... of rows g and g + 8, of B (stored transposed) those of row g, and of C the columns 2t and 2t + 1 of
// rows g and g + 8, in every group of eight columns. A tile of eight rows lacks the row g + 8.
#pragma once

constexpr int THREADS = IS_WGMMA ? 128 : 32;  // that run one instruction together
constexpr int HALVES = TILE_M == 8 ? 1 : 2;   // rows of A and C that a lane holds: g, g + 8
constexpr int STEPS = ROW_WORDS / 4;          // words of a row that a lane holds
constexpr int GROUPS = TILE_N / 8;
constexpr int CD_ROW = TILE_N / 2 * CD_PAIR;  // words of a row of C
constexpr int A_TILE = TILE_M * ROW_WORDS;    // words of a tile
constexpr int B_TILE = TILE_N * ROW_WORDS;
constexpr int CD_TILE = TILE_M * CD_ROW;

#if IS_WGMMA
// B for wgmma without swizzle: core matrices of 8 columns of B by 16 bytes of k, 128 bytes each, the two of one group
// of columns side by side. The descriptor counts 16 bytes: 8 from one core matrix to the next in k, 16 in columns.
__device__ unsigned long long lay_out(const AB_WORD* B, AB_WORD* shared) {
  for (int i = threadIdx.x; i < B_TILE; i += THREADS) {
    int column = i / ROW_WORDS, word = i % ROW_WORDS;
    shared[(column / 8) * 64 + (word / 4) * 32 + (column % 8) * 4 + word % 4] = B[i];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what each thread wrote, seen by the tensor core
  __syncthreads();
  unsigned address = (unsigned)__cvta_generic_to_shared(shared);
  return (unsigned long long)((address & 0x3FFFF) >> 4) | (8ull << 16) | (16ull << 32);
}
#endif

// D = A B + C for one tile, by all THREADS threads: A (TILE_M, ROW_WORDS), B (TILE_N, ROW_WORDS), C and D
// (TILE_M, CD_ROW).
__device__ void instruction(const AB_WORD* A, const AB_WORD* B, const CD_WORD* C, CD_WORD* D) {
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int top = IS_WGMMA ? threadIdx.x / 32 * 16 : 0;  // the first row of this warp
  AB_WORD a[HALVES * STEPS];
  CD_WORD c[GROUPS * HALVES * CD_PAIR];
#pragma unroll
  for (int i = 0; i < HALVES * STEPS; i++) a[i] = A[(top + g + 8 * (i % HALVES)) * ROW_WORDS + t + 4 * (i / HALVES)];
#pragma unroll
  for (int i = 0; i < GROUPS * HALVES * CD_PAIR; i++) {
    int row = top + g + 8 * (i / CD_PAIR % HALVES), group = i / (CD_PAIR * HALVES);
    c[i] = C[row * CD_ROW + group * 4 * CD_PAIR + t * CD_PAIR + i % CD_PAIR];
  }
#if IS_WGMMA
  __shared__ __align__(128) AB_WORD shared[B_TILE];
  __syncthreads();  // a tile before this one has been read
  unsigned long long b_shared = lay_out(B, shared);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  ISSUE;
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  AWAIT;  // wait_group, with every register of c as an operand: none is read before
#else
  AB_WORD b[STEPS];
#pragma unroll
  for (int i = 0; i < STEPS; i++) b[i] = B[g * ROW_WORDS + t + 4 * i];
  ISSUE;
#endif
#pragma unroll
  for (int i = 0; i < GROUPS * HALVES * CD_PAIR; i++) {
    int row = top + g + 8 * (i / CD_PAIR % HALVES), group = i / (CD_PAIR * HALVES);
    D[row * CD_ROW + group * 4 * CD_PAIR + t * CD_PAIR + i % CD_PAIR] = c[i];
  }
}
