// The operands' rows from some row on are split while the first tiles are already multiplied: by a warpgroup of every
// thread block, whose warps take pieces from one queue. TMA asks for a tile only when its rows have been counted as
// done.
//
// A piece is a row that lies contiguous, read twice (the second time from the L2), or some k of 32 neighbouring rows
// that do not: first their largest entries, over all of K, and `lag` panels later the words, while they are in the L2.
#pragma once
#include "hopper_words.cuh"

constexpr int PANEL = 32;
constexpr int FLIGHT = 8;  // times 16 bytes that a lane has on their way: what limits the speed

struct Background {
    Operand operands[2];  // A, B
    int first[2];         // the first row that is split here, a multiple of PANEL; all rows: none
    int piece, lag;       // length in k of a piece, a multiple of 32; panels between the first pass and the second
    u32* queue;           // pieces taken
    u32* done[2];         // of each panel: rows split, or pieces
    u32* surveyed[2];     // of each panel: pieces whose largest entries are known
    u32* largest[2];      // of each row; then, of each row, whether it has NaN or Inf
};

FPEMU_FUNCTION bool contiguous(const Operand& op) { return op.k_stride == 1; }
FPEMU_FUNCTION int pieces_of_k(const Operand& op, int piece) { return (op.pitch + piece - 1) / piece; }
FPEMU_FUNCTION int panels(const Operand& op, int first) { return (op.rows - first + PANEL - 1) / PANEL; }
// Entries of the queue: an operand that is not contiguous has two for each piece, and `lag` panels without one of them.
FPEMU_FUNCTION int queued(const Background& all, int who) {
    const Operand& op = all.operands[who];
    const int first = all.first[who];
    if (first >= op.rows) return 0;
    return contiguous(op) ? op.rows - first : (panels(op, first) + all.lag) * pieces_of_k(op, all.piece) * 2;
}
FPEMU_FUNCTION void wait_for(const u32* count, u32 goal) {
    while (load_acquire(count) < goal) __nanosleep(64);
}
// What the lanes have written is seen by whoever reads the count, through TMA too.
FPEMU_FUNCTION void count(u32* counter, int lane) {
    fence_async();
    __syncwarp();
    if (lane == 0) add_release(counter, 1);
}

FPEMU_FUNCTION void split_row(const Operand& op, int row, int lane, Faults& faults) {
    const float* from = op.X + row * op.row_stride;
    float x[FLIGHT][4];
    Seen seen;
    for (int start = 4 * lane; start < op.K; start += 128 * FLIGHT) {
        FPEMU_UNROLL
        for (int j = 0; j < FLIGHT; j++) four(op, from, start + 128 * j, x[j]);
        FPEMU_UNROLL
        for (int i = 0; i < 4 * FLIGHT; i++) seen.see(x[i / 4][i % 4]);
    }
    const u32 most = __reduce_max_sync(~0u, seen.largest()), bad = __reduce_or_sync(~0u, seen.special());
    const int e = op.exponents ? scaling(most) : 0;
    if (lane == 0) {
        op.special[row] = bad;
        if (op.exponents) op.exponents[row] = e;
    }
    const Way way(op, e, most, bad);
    for (int start = 4 * lane; start < op.pitch; start += 128 * FLIGHT) {
        FPEMU_UNROLL
        for (int j = 0; j < FLIGHT; j++) four(op, from, start + 128 * j, x[j]);
        FPEMU_UNROLL
        for (int j = 0; j < FLIGHT; j++)
            if (start + 128 * j < op.pitch) put(op, x[j], way, (s64)row * op.pitch + start + 128 * j, faults);
    }
}

// Eight neighbours along k of one row, neighbouring lanes on neighbouring rows.
FPEMU_FUNCTION void eight(const Operand& op, int row, int k, float (&x)[8]) {
    const float* from = op.X + row * op.row_stride + k * op.k_stride;
    FPEMU_UNROLL
    for (int i = 0; i < 8; i++) x[i] = row < op.rows && k + i < op.K ? from[i * op.k_stride] : 0;
}

FPEMU_FUNCTION void survey(const Operand& op, u32* largest, int row, int begin, int end) {
    float x[FLIGHT / 2][8];
    Seen seen;
    for (int k = begin; k < min(op.K, end); k += 4 * FLIGHT) {
        FPEMU_UNROLL
        for (int j = 0; j < FLIGHT / 2; j++) eight(op, row, k + 8 * j, x[j]);
        FPEMU_UNROLL
        for (int i = 0; i < 4 * FLIGHT; i++) seen.see(x[i / 8][i % 8]);
    }
    if (row >= op.rows) return;
    if (seen.largest()) atomicMax(largest + row, seen.largest());
    if (seen.special()) atomicOr(largest + op.rows + row, 1);
}

FPEMU_FUNCTION void split_piece(const Operand& op, const u32* largest, int row, int begin, int end, Faults& faults) {
    const bool inside = row < op.rows;
    const u32 most = inside ? __ldcg(largest + row) : 0, bad = inside ? __ldcg(largest + op.rows + row) : 0;
    const int e = op.exponents ? scaling(most) : 0;
    if (inside && begin == 0) {
        op.special[row] = bad;
        if (op.exponents) op.exponents[row] = e;
    }
    const Way way(op, e, most, bad);
    float x[FLIGHT / 2][8];
    for (int k = begin; k < min(op.pitch, end); k += 4 * FLIGHT) {
        FPEMU_UNROLL
        for (int j = 0; j < FLIGHT / 2; j++) eight(op, row, k + 8 * j, x[j]);
        FPEMU_UNROLL
        for (int j = 0; j < FLIGHT / 2; j++)
            if (inside && k + 8 * j < op.pitch) put(op, x[j], way, (s64)row * op.pitch + k + 8 * j, faults);
    }
}

// One entry of the queue of an operand.
FPEMU_FUNCTION void piece_of(const Background& all, int who, int entry, int lane, Faults& faults) {
    const Operand& op = all.operands[who];
    const int first = all.first[who];
    if (contiguous(op)) {
        split_row(op, first + entry, lane, faults);
        count(all.done[who] + (first + entry) / PANEL, lane);
        return;
    }
    const int pieces = pieces_of_k(op, all.piece), turn = entry / (2 * pieces);
    const int panel = turn - (entry % 2 ? all.lag : 0), at = first / PANEL + panel;
    const int begin = entry % (2 * pieces) / 2 * all.piece, end = begin + all.piece;
    if (panel < 0 || panel >= panels(op, first)) return;
    if (entry % 2 == 0) {
        survey(op, all.largest[who], at * PANEL + lane, begin, end);
        count(all.surveyed[who] + at, lane);
    } else {
        wait_for(all.surveyed[who] + at, pieces);
        __syncwarp();
        split_piece(op, all.largest[who], at * PANEL + lane, begin, end, faults);
        count(all.done[who] + at, lane);
    }
}

// A warp's work: pieces until there are none; B's come first, since tiles go through its columns soonest.
FPEMU_FUNCTION void split_in_background(const Background& all, int lane) {
    const int of_b = queued(all, 1), both = of_b + queued(all, 0);
    Faults faults[2];
    for (;;) {
        int entry = 0;
        if (lane == 0) entry = atomicAdd(all.queue, 1);
        entry = uniform(entry);
        if (entry >= both) break;
        const int who = entry < of_b;
        if (who) piece_of(all, 1, entry, lane, faults[1]);
        else piece_of(all, 0, entry - of_b, lane, faults[0]);
    }
    faults[0].report(all.operands[0].faults), faults[1].report(all.operands[1].faults);
}

// By the producer, before it asks for rows begin <= row < end of an operand.
FPEMU_FUNCTION void wait_for_rows(const Background& all, int who, int begin, int end) {
    const Operand& op = all.operands[who];
    const int pieces = pieces_of_k(op, all.piece);
    for (int panel = begin / PANEL; panel * PANEL < min(end, op.rows); panel++)
        if (panel * PANEL >= all.first[who])
            wait_for(all.done[who] + panel, contiguous(op) ? min(PANEL, op.rows - panel * PANEL) : pieces);
    fence_async();
}
