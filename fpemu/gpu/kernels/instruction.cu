// One matrix instruction on many tiles. A is (stack of A, tiles_m, TILE_M, ROW_WORDS) and B alike, stored transposed;
// C and D are (products, tiles_m, tiles_n, TILE_M, CD_ROW). Product p of a batch takes A number a_of[p], B number
// b_of[p]; one warp (mma.sync) or block of four (wgmma) does one tile.
#include "instruction.cuh"

extern "C" __global__ void __launch_bounds__(128)
    execute(const AB_WORD* A, const AB_WORD* B, const CD_WORD* C, CD_WORD* D, const int* a_of, const int* b_of,
            int tiles_m, int tiles_n, long long tiles) {
  long long tile = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / THREADS;
  if (tile >= tiles) return;  // all threads of an instruction have the same tile
  long long product = tile / (tiles_m * tiles_n);
  int i = tile / tiles_n % tiles_m, j = tile % tiles_n;
  instruction(A + (a_of[product] * (long long)tiles_m + i) * A_TILE,
              B + (b_of[product] * (long long)tiles_n + j) * B_TILE, C + tile * CD_TILE, D + tile * CD_TILE);
}
