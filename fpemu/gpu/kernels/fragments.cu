// One matrix instruction on the raw registers of a warp: A is (warps, 32 lanes, A_REGISTERS), and B, C, D alike. The
// macros are those of instruction.cuh (fpemu.gpu.instructions.run.prelude); which element a register holds is not
// assumed.
constexpr int A_REGISTERS = (TILE_M == 8 ? 1 : 2) * ROW_WORDS / 4;
constexpr int B_REGISTERS = ROW_WORDS / 4;
constexpr int C_REGISTERS = (TILE_M == 8 ? 1 : 2) * CD_PAIR * TILE_N / 8;

extern "C" __global__ void __launch_bounds__(32) fragments(const AB_WORD* A, const AB_WORD* B, CD_WORD* D) {
  long long lane = blockIdx.x * 32ll + threadIdx.x;
  AB_WORD a[A_REGISTERS], b[B_REGISTERS];
  CD_WORD c[C_REGISTERS];
#pragma unroll
  for (int i = 0; i < A_REGISTERS; i++) a[i] = A[lane * A_REGISTERS + i];
#pragma unroll
  for (int i = 0; i < B_REGISTERS; i++) b[i] = B[lane * B_REGISTERS + i];
#pragma unroll
  for (int i = 0; i < C_REGISTERS; i++) c[i] = 0;
  ISSUE;
#pragma unroll
  for (int i = 0; i < C_REGISTERS; i++) D[lane * C_REGISTERS + i] = c[i];
}
