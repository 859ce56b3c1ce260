// An fp32 operand to fp16 words, in one pass over it: the exponent that a row is scaled by, the words
// h = RNE16(x s) and r = RNE16((x s - h) 2^shift), rows with NaN or Inf, and how many entries are beyond the words.
//
// A "row" is what a product runs along: a row of A, a column of B. rows_split takes operands whose rows are contiguous,
// a thread block a row; columns_split any other, fast where neighbouring rows are contiguous: a cluster of thread
// blocks has a panel of 16 rows in its shared memory, each a part of K, and they tell each other their rows' largest
// entries.
#include "hopper_words.cuh"

// --- rows contiguous: grid (rows, matrices)
constexpr int HELD = 4;  // groups of four entries that a thread keeps; what is more is read twice

extern "C" __global__ void __launch_bounds__(512, 3) rows_split(const __grid_constant__ Operand op) {
    __shared__ u32 largest[16], special[16];
    const int row = blockIdx.x, matrix = blockIdx.y, step = 4 * blockDim.x;
    const float* from = op.X + (op.offsets ? op.offsets[matrix] : 0) + row * op.row_stride;
    float x[HELD][4];
    Seen seen;
    FPEMU_UNROLL
    for (int j = 0; j < HELD; j++) four(op, from, 4 * threadIdx.x + j * step, x[j]);
    FPEMU_UNROLL
    for (int i = 0; i < 4 * HELD; i++) seen.see(x[i / 4][i % 4]);
    for (int k = 4 * threadIdx.x + HELD * step; k < op.K; k += step) {
        float y[4];
        four(op, from, k, y);
        FPEMU_UNROLL
        for (int i = 0; i < 4; i++) seen.see(y[i]);
    }
    u32 most = __reduce_max_sync(~0u, seen.largest()), bad = __reduce_or_sync(~0u, seen.special());
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most, special[threadIdx.x / 32] = bad;
    __syncthreads();
    most = bad = 0;
    for (int w = 0; w < blockDim.x / 32; w++) most = max(most, largest[w]), bad |= special[w];
    const s64 out = (s64)matrix * op.rows + row;
    const int e = !op.exponents ? 0 : scaling(op.largest ? op.largest[matrix] : most);
    const Way way(op, e, most, bad);
    if (threadIdx.x == 0) {
        op.special[out] = bad;
        if (op.exponents) op.exponents[out] = e;
    }
    Faults faults;
    FPEMU_UNROLL
    for (int j = 0; j < HELD; j++) {
        const int k = 4 * threadIdx.x + j * step;
        if (k < op.pitch) put(op, x[j], way, out * op.pitch + k, faults);
    }
    for (int k = 4 * threadIdx.x + HELD * step; k < op.pitch; k += step) {
        float y[4];
        four(op, from, k, y);
        put(op, y, way, out * op.pitch + k, faults);
    }
    faults.report(op.faults);
}

// --- rows with any stride: grid (panels times cluster, matrices), clusters of thread blocks along k
constexpr int WIDTH = 16, PART = 1024, LINE = PART + 2, COLUMN_THREADS = 256;
// LINE: eight k of four rows each are stored, and 32 pairs of k of a row read, by the lanes of a warp to or from
// different banks.

// Four neighbouring rows of one k.
FPEMU_FUNCTION void across(const Operand& op, const float* X, int row, int k, float (&x)[4]) {
    const float* from = X + row * op.row_stride + k * op.k_stride;
    if (op.wide && row + 4 <= op.rows && k < op.K) {
        const float4 v = __ldcs((const float4*)from);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        FPEMU_UNROLL
        for (int i = 0; i < 4; i++) x[i] = row + i < op.rows && k < op.K ? from[i * op.row_stride] : 0;
    }
}

extern "C" __global__ void __launch_bounds__(COLUMN_THREADS, 3)
columns_split(const __grid_constant__ Operand op, int parts) {
    extern __shared__ float held[];  // (WIDTH, LINE)
    __shared__ u32 largest[WIDTH], special[WIDTH], tops[WIDTH], wrongs[WIDTH];
    const int part = blockIdx.x % parts, first = blockIdx.x / parts * WIDTH, matrix = blockIdx.y;
    const int per = ((op.pitch + parts - 1) / parts + 7) / 8 * 8, start = part * per, stop = min(start + per, op.pitch);
    const int kept = min(stop, start + PART), group = threadIdx.x % 4 * 4, lane = threadIdx.x % 32;
    const float* X = op.X + (op.offsets ? op.offsets[matrix] : 0);
    if (threadIdx.x < WIDTH) largest[threadIdx.x] = special[threadIdx.x] = 0;
    __syncthreads();
    Seen seen[4];
#pragma unroll 8
    for (int k = start + threadIdx.x / 4; k < stop; k += COLUMN_THREADS / 4) {
        float x[4];
        across(op, X, first + group, k, x);
        FPEMU_UNROLL
        for (int i = 0; i < 4; i++) {
            seen[i].see(x[i]);
            if (k < kept) held[(group + i) * LINE + k - start] = x[i];
        }
    }
    FPEMU_UNROLL
    for (int i = 0; i < 4; i++) {
        u32 most = seen[i].largest(), bad = seen[i].special();
        FPEMU_UNROLL
        for (int other = 4; other < 32; other *= 2) {  // the lanes of the same rows
            most = max(most, __shfl_xor_sync(~0u, most, other));
            bad |= __shfl_xor_sync(~0u, bad, other);
        }
        if (lane < 4) atomicMax(&largest[group + i], most), atomicOr(&special[group + i], bad);
    }
    if (parts > 1) cluster_sync();
    else __syncthreads();
    // Eight lanes a row ask the parts for what they have seen.
    const int asked = threadIdx.x / 8, peer = threadIdx.x % 8;
    if (asked < WIDTH) {
        u32 top = 0, wrong = 0;
        if (peer < parts) top = parts > 1 ? load_from(&largest[asked], peer) : largest[asked];
        if (peer < parts) wrong = parts > 1 ? load_from(&special[asked], peer) : special[asked];
        FPEMU_UNROLL
        for (int other = 1; other < 8; other *= 2) {
            top = max(top, __shfl_xor_sync(~0u, top, other)), wrong |= __shfl_xor_sync(~0u, wrong, other);
        }
        if (peer == 0) tops[asked] = top, wrongs[asked] = wrong;
    }
    __syncthreads();
    if (parts > 1) cluster_arrive();  // nobody's shared memory is read by others any more

    Faults faults;
    for (int r = threadIdx.x / 32; r < WIDTH && first + r < op.rows; r += COLUMN_THREADS / 32) {
        const s64 out = (s64)matrix * op.rows + first + r;
        const int e = !op.exponents ? 0 : scaling(op.largest ? op.largest[matrix] : tops[r]);
        if (lane == 0 && part == 0) {
            op.special[out] = wrongs[r];
            if (op.exponents) op.exponents[out] = e;
        }
        const Way way(op, e, tops[r], wrongs[r]);
#pragma unroll 4
        for (int k = start + 2 * lane; k < stop; k += 64) {
            float x[2];
            FPEMU_UNROLL
            for (int i = 0; i < 2; i++) {
                if (k < kept) x[i] = held[r * LINE + k + i - start];
                else x[i] = k + i < op.K ? X[(first + r) * op.row_stride + (k + i) * op.k_stride] : 0;
            }
            put(op, x, way, out * op.pitch + k, faults);
        }
    }
    faults.report(op.faults);
    if (parts > 1) cluster_wait();
}

// --- the largest entry of each matrix: grid (any, matrices)
extern "C" __global__ void __launch_bounds__(256) largest_entry(const __grid_constant__ Operand op, u32* largest) {
    const float* X = op.X + (op.offsets ? op.offsets[blockIdx.y] : 0);
    Seen seen;
    const s64 all = (s64)op.rows * op.K, step = (s64)gridDim.x * blockDim.x;
    const bool along_k = op.k_stride <= op.row_stride;
    for (s64 i = blockIdx.x * (s64)blockDim.x + threadIdx.x; i < all; i += step) {
        const s64 row = along_k ? i / op.K : i % op.rows, k = along_k ? i % op.K : i / op.rows;
        seen.see(X[row * op.row_stride + k * op.k_stride]);
    }
    const u32 most = __reduce_max_sync(~0u, seen.largest());
    if (threadIdx.x % 32 == 0 && most) atomicMax(&largest[blockIdx.y], most);
}
