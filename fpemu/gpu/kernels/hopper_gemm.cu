// T = sums of products of fp16 words, D = alpha 2^-(e_row + e_column) T + beta C, for Hopper: wgmma on tiles that TMA
// brings.
//
// A thread block stays on its multiprocessor and works through tiles of TILE_M x TILE_N. Warp 0 is the producer: it
// asks TMA for tiles of the words, 64 of k at a time, into a ring of ENTRIES. One or two warpgroups are the consumers,
// each of 64 rows. Thread blocks in a cluster lie below each other and share the tiles of B: each asks for every
// CLUSTERth one and all get it.
//
// An entry holds one word of A and one of B: entry w of a chunk of 64 has A's word WORDS - 1 - w and B's word w. A
// block is BLOCK chunks; fpemu.gpu.hopper.schedules, which writes the constants in front of this text, says what runs in
// it:
//   Main, Rest   products of words (A's, B's) in the order run, which take turns after TURN instructions: those of the
//                accumulator that is promoted, and those of the corrections, if they have an accumulator of their own
//   PARTS        a block promotes so often, each time after its next share of Main
//   PROMOTE      or every so many blocks; 0: never
//   REST_SCALE   what the corrections are multiplied by before they are added
//   SLICE        so many rounds of PROMOTE blocks make a slice of K, whose sums are added to those of the slices before
#include "hopper.cuh"
#include "hopper_epilogue.cuh"

struct alignas(64) Maps {
    TensorMap a[WORDS], b[WORDS];
};

constexpr int TILE_M = 64 * CONSUMERS, TILE_K = 64;
constexpr int A_BYTES = TILE_M * TILE_K * 2, B_BYTES = TILE_N * TILE_K * 2, ENTRY_BYTES = A_BYTES + B_BYTES;
constexpr int NUMBERS = TILE_N / 2;  // of an accumulator, in each thread
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
constexpr int IN_BLOCK = BLOCK * WORDS;            // entries
constexpr int INSTRUCTIONS = BLOCK * TILE_K / 16;  // along k, of one product
constexpr int MAIN_ALL = Main::COUNT * INSTRUCTIONS, REST_ALL = Rest::COUNT * INSTRUCTIONS;

// The ring: where its entries and barriers are, and which entry comes next.
struct Ring {
    u32 base, full, empty;
    int entry;
    u32 phase;
    FPEMU_FUNCTION u32 tiles() const { return base + entry * ENTRY_BYTES; }
    FPEMU_FUNCTION void next() {
        if (++entry == ENTRIES) entry = 0, phase ^= 1;
    }
};

// Tiles are worked through in groups of rows, each group column by column, so that tiles at the same time share lines
// of A and B in the L2. A row here is one of clusters.
FPEMU_FUNCTION int tile_rows(const Task& task) { return (task.M + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER); }
FPEMU_FUNCTION int tile_columns(const Task& task) { return (task.N + TILE_N - 1) / TILE_N; }
FPEMU_FUNCTION int tiles(const Task& task) { return tile_rows(task) * tile_columns(task) * task.batch; }
struct Place {
    int m, n, batch;
    FPEMU_FUNCTION Place(const Task& task, int tile, int rank) {
        const int rows = tile_rows(task), columns = tile_columns(task);
        batch = tile / (rows * columns);
        tile -= batch * rows * columns;
        const int first = tile / (task.group * columns) * task.group, height = min(rows - first, task.group);
        tile -= first * columns;
        m = ((first + tile % height) * CLUSTER + rank) * TILE_M;
        n = tile / height * TILE_N;
    }
};

// Blocks of k from one promotion to the next, and the number of such rounds. The last round may go on beyond K: TMA
// brings zeros, which leave the accumulators as they are.
constexpr int ROUND = PROMOTE > 1 ? PROMOTE : 1;
FPEMU_FUNCTION int rounds(const Task& task) {
    return (task.K + ROUND * BLOCK * TILE_K - 1) / (ROUND * BLOCK * TILE_K);
}

FPEMU_FUNCTION int slices(const Task& task) { return SLICE > 0 ? (rounds(task) + SLICE - 1) / SLICE : 1; }

FPEMU_FUNCTION void produce(const Maps& maps, const Task& task, Ring ring, u32 rank) {
    ring.phase = 1;
    for (int tile = blockIdx.x / CLUSTER; tile < tiles(task); tile += gridDim.x / CLUSTER) {
        const Place at(task, tile, rank);
        const int a_matrix = task.where ? (int)task.where[at.batch].a : 0;
        const int b_matrix = task.where ? (int)task.where[at.batch].b : 0;
        for (int chunk = 0, turn = 0; chunk < rounds(task) * ROUND * BLOCK; chunk++) {
            FPEMU_UNROLL
            for (int w = 0; w < WORDS; w++, turn++, ring.next()) {
                const u32 full = ring.full + 8 * ring.entry, to = ring.tiles();
                barrier_wait(ring.empty + 8 * ring.entry, ring.phase);
                barrier_expect(full, ENTRY_BYTES);
                tma_fetch(to, &maps.a[WORDS - 1 - w], full, at.m, chunk, a_matrix);
                if (CLUSTER == 1) tma_fetch(to + A_BYTES, &maps.b[w], full, at.n, chunk, b_matrix);
                else if (rank == (WORDS == CLUSTER ? w : turn % CLUSTER))
                    tma_fetch_all(to + A_BYTES, &maps.b[w], full, at.n, chunk, b_matrix, (1 << CLUSTER) - 1);
            }
        }
    }
}

// What a consumer does to the ring.
struct Reader {
    Ring ring;
    int group, lane;
    u32 a[IN_BLOCK], empty[IN_BLOCK];
    // Waits for the entries of the next block.
    FPEMU_FUNCTION void block() {
        FPEMU_UNROLL
        for (int e = 0; e < IN_BLOCK; e++, ring.next()) {
            a[e] = ring.tiles(), empty[e] = ring.empty + 8 * ring.entry;
            barrier_wait(ring.full + 8 * ring.entry, ring.phase);
        }
    }
    FPEMU_FUNCTION void release(const u32 (&barriers)[IN_BLOCK]) const {
        FPEMU_UNROLL
        for (int e = 0; e < IN_BLOCK; e++) {
            if (CLUSTER > 1) {
                if (lane < CLUSTER) barrier_arrive_at(barriers[e], lane);
            } else if (lane == 0) barrier_arrive(barriers[e]);
        }
    }
    // One instruction: words (i, j), instruction k of the block; keep = 0 starts the sum from zero.
    FPEMU_FUNCTION void multiply(float (&sum)[NUMBERS], int i, int j, int k, int keep) const {
        const int chunk = k / 4 * WORDS, step = k % 4 * WGMMA_K;
        const u64 A = wgmma_tile(a[chunk + WORDS - 1 - i] + group * (A_BYTES / CONSUMERS)) + step;
        const u64 B = wgmma_tile(a[chunk + j] + A_BYTES) + step;
        wgmma(sum, A, B, keep);
    }
    // Instructions first <= x < last of the products of an accumulator, which take turns.
    template <class Products>
    FPEMU_FUNCTION void run(float (&sum)[NUMBERS], int first, int last, int keep) const {
        constexpr int COUNT = Products::COUNT ? Products::COUNT : 1, TURN = Products::TURN;
        FPEMU_UNROLL
        for (int x = first; x < last; x++) {
            const int p = x / TURN % COUNT, k = x / (TURN * COUNT) * TURN + x % TURN;
            multiply(sum, Products::of_a(p), Products::of_b(p), k, x > first || keep);
        }
    }
};

// Two warpgroups issue in strict turns: one adds outside while the other's products run.
FPEMU_FUNCTION void take_turn(int group) {
    if (CONSUMERS == 2) named_sync(1 + group, 256);
}
FPEMU_FUNCTION void pass_turn(int group) {
    if (CONSUMERS == 2) named_arrive(2 - group, 256);
}

FPEMU_FUNCTION void add_to(float (&total)[NUMBERS], float (&sum)[NUMBERS]) {
    hold(sum);
    FPEMU_UNROLL
    for (int i = 0; i < NUMBERS; i++) total[i] = __fadd_rn(total[i], sum[i]);
    hold(sum);
}

// All of a tile, everything in one accumulator.
FPEMU_FUNCTION void in_one(Reader& reader, float (&total)[NUMBERS], int rounds) {
    float sum[NUMBERS];
    FPEMU_UNROLL
    for (int i = 0; i < NUMBERS; i++) sum[i] = 0;
    for (int round = 0; round < rounds; round++) {
        FPEMU_UNROLL
        for (int b = 0; b < ROUND; b++) {
            reader.block();
            take_turn(reader.group);
            wgmma_fence();
            reader.run<Main>(sum, 0, MAIN_ALL, PROMOTE == 0 || b > 0);
            wgmma_commit();
            pass_turn(reader.group);
            wgmma_wait<0>();
            hold(sum);
            reader.release(reader.empty);
        }
        if (PROMOTE > 0) add_to(total, sum);
    }
    if (PROMOTE == 0) {
        FPEMU_UNROLL
        for (int i = 0; i < NUMBERS; i++) total[i] = sum[i];
    }
}

// All of a tile, the corrections in an accumulator of their own. They run while the main one is promoted.
FPEMU_FUNCTION void in_two(Reader& reader, float (&total)[NUMBERS], int rounds) {
    float sum[NUMBERS], rest[NUMBERS];
    u32 before[IN_BLOCK];
    FPEMU_UNROLL
    for (int i = 0; i < NUMBERS; i++) sum[i] = rest[i] = 0;
    for (int round = 0; round < rounds; round++) {
        FPEMU_UNROLL
        for (int b = 0; b < ROUND; b++) {
            reader.block();
            FPEMU_UNROLL
            for (int part = 0; part < PARTS; part++) {
                wgmma_fence();
                reader.run<Main>(sum, part * MAIN_ALL / PARTS, (part + 1) * MAIN_ALL / PARTS, PROMOTE == 0 || b > 0);
                wgmma_commit();
                wgmma_wait<1>();  // the corrections issued before have ended
                hold(rest);
                if (part == 0 && round + b > 0) reader.release(before);
                wgmma_fence();
                reader.run<Rest>(rest, part * REST_ALL / PARTS, (part + 1) * REST_ALL / PARTS, 1);
                wgmma_commit();
                if (PROMOTE > 0 && b == ROUND - 1) {
                    wgmma_wait<1>();  // the main products have ended, the corrections run on
                    add_to(total, sum);
                }
            }
            FPEMU_UNROLL
            for (int e = 0; e < IN_BLOCK; e++) before[e] = reader.empty[e];
        }
    }
    wgmma_wait<0>();
    hold(sum), hold(rest);
    reader.release(before);
    FPEMU_UNROLL
    for (int i = 0; i < NUMBERS; i++)
        total[i] = __fadd_rn(__fmul_rn(rest[i], REST_SCALE), PROMOTE == 0 ? sum[i] : total[i]);
}

// Adds a slice's sums to those of the slices before, which wait in memory; each thread reads what it wrote.
FPEMU_FUNCTION void join(float4* before, float (&total)[NUMBERS], bool first, bool last) {
    FPEMU_UNROLL
    for (int i = 0; i < NUMBERS; i += 4) {
        float4* at = before + i / 4 * 128;
        if (!first) {
            const float4 x = __ldcg(at);
            total[i] = __fadd_rn(x.x, total[i]), total[i + 1] = __fadd_rn(x.y, total[i + 1]);
            total[i + 2] = __fadd_rn(x.z, total[i + 2]), total[i + 3] = __fadd_rn(x.w, total[i + 3]);
        }
        if (!last) __stcg(at, make_float4(total[i], total[i + 1], total[i + 2], total[i + 3]));
    }
}

extern "C" __global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
multiply(const __grid_constant__ Maps maps, const __grid_constant__ Task task) {
    extern __shared__ u8 shared[];
    __shared__ alignas(8) u64 barriers[2 * ENTRIES];
    __shared__ alignas(16) int exponents[CONSUMERS][TILE_N];
    const u32 all = shared_address(barriers);
    const Ring ring{(shared_address(shared) + 1023) & ~1023u, all, all + 8 * ENTRIES, 0, 0};
    const int group = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < ENTRIES; i++) {
            barrier_init(ring.full + 8 * i, 1);
            barrier_init(ring.empty + 8 * i, 4 * CONSUMERS * CLUSTER);
        }
        barrier_inits_done();
        for (int w = 0; w < WORDS; w++) tma_prefetch(&maps.a[w]), tma_prefetch(&maps.b[w]);
    }
    if (CLUSTER > 1) cluster_sync();
    else __syncthreads();
    grid_release();
    grid_wait();

    if (group == 0) {
        if (CONSUMERS == 2) lower_registers<PRODUCER_REGISTERS>();
        if (warp == 0 && lane == 0) produce(maps, task, ring, rank);
        __syncwarp();
    } else {
        if (CONSUMERS == 2) raise_registers<CONSUMER_REGISTERS>();
        Reader reader{ring, group - 1, lane};
        const int own = (CONSUMERS * blockIdx.x + reader.group) * (NUMBERS / 4) * 128 + threadIdx.x % 128;
        float4* before = (float4*)task.slices + own;
        if (Rest::COUNT == 0 && reader.group == 1) pass_turn(reader.group);
        for (int tile = blockIdx.x / CLUSTER; tile < tiles(task); tile += gridDim.x / CLUSTER) {
            const Place at(task, tile, rank);
            const Part part(task, at.m + reader.group * 64, at.n, at.batch);
            Exponents<TILE_N> powers;
            powers.load(task, part, threadIdx.x % 128);
            float total[NUMBERS];
            for (int slice = 0; slice < slices(task); slice++) {
                FPEMU_UNROLL
                for (int i = 0; i < NUMBERS; i++) total[i] = 0;
                const int left = rounds(task) - slice * SLICE, some = SLICE > 0 ? min(left, SLICE) : left;
                if (Rest::COUNT == 0) in_one(reader, total, some);
                else in_two(reader, total, some);
                if (SLICE > 0) join(before, total, slice == 0, slice == slices(task) - 1);
            }
            store(task, part, total, powers, threadIdx.x % 128, exponents[reader.group], 3 + reader.group);
        }
    }
    if (CLUSTER > 1) {  // no thread block ends while another may still write to its shared memory
        __syncwarp();
        cluster_sync();
    }
}
