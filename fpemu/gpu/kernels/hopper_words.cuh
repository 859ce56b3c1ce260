// One entry of fp32 to one or two words of fp16: h = RNE16(x s) and r = RNE16((x s - h) 2^shift), s a power of two.
//
// fp32 is enough: x s is exact or below 2^-126, where both words are zeros of x's sign whatever it is rounded to;
// x s - h is a multiple of the last place of x s and no larger; the scales are powers of two.
#pragma once
#include "hopper.cuh"

struct Operand {  // fpemu.gpu.hopper.splits.OPERAND
    const float* X;
    const s64* offsets;        // of each matrix in X, in elements; null: one matrix
    u16 *high, *low;           // (matrices, rows, pitch); low may be null
    int* exponents;            // (matrices, rows), or null: no scaling
    u8* special;               // (matrices, rows)
    u64* faults;               // entries NaN or infinite, entries with a word that overflows
    const u32* largest;        // of each matrix, as bits of fp32, if one exponent is for all of its rows; else null
    s64 row_stride, k_stride;  // in elements
    float shift;               // 2^shift
    int rows, K, pitch, wide;  // wide: 16 bytes may be loaded at once
};

constexpr int TOP = 14;  // the largest entry of a scaled row is brought to [2^13, 2^14)

// TOP minus the binary exponent e of 2^(e-1) <= x < 2^e.
FPEMU_FUNCTION int scaling(u32 bits) {
    return bits == 0 ? 0 : bits < 1u << 23 ? TOP + 149 - bit_length(bits) : TOP + 126 - (int)(bits >> 23);
}
FPEMU_FUNCTION float scale(int e) { return __int_as_float((e + 127) << 23); }

// The largest finite magnitude of some entries, and whether any is NaN or infinite: bits without the sign, plus the
// exponent's unit, are negative as an int for these.
struct Seen {
    static constexpr int UNIT = 0x00800000;
    int finite = UNIT;
    u32 any = UNIT;
    FPEMU_FUNCTION void see(float x) {
        const u32 u = (__float_as_uint(x) & 0x7fffffff) + UNIT;
        finite = max(finite, (int)u), any = max(any, u);
    }
    FPEMU_FUNCTION u32 largest() const { return finite - UNIT; }
    FPEMU_FUNCTION u32 special() const { return any >> 31; }
};

struct Faults {
    int infinite = 0, over = 0;
    FPEMU_FUNCTION void report(u64* counts) const {
        const int a = __reduce_add_sync(~0u, infinite), b = __reduce_add_sync(~0u, over);
        if (threadIdx.x % 32 == 0 && a) atomicAdd(counts, (u64)a);
        if (threadIdx.x % 32 == 0 && b) atomicAdd(counts + 1, (u64)b);
    }
};

// How a row is split: by its scale 2^e, which may be beyond fp32, and whether nothing can go wrong on the way: all
// entries finite, none scaled down, no word that overflows.
struct Way {
    float first, second;
    bool plain;
    FPEMU_FUNCTION Way(const Operand& op, int e, u32 largest, bool special)
        : first(scale(min(e, 100))), second(scale(max(e - 100, 0))) {
        const float top = __uint_as_float(largest) * first;
        plain = !special && e >= 0 && e <= 100 && top < 65504.f && top * op.shift < 65504.f * 2048;
    }
};

FPEMU_FUNCTION u32 to_halves(float x, float y) {  // x in the lower half
    u32 h;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(y), "f"(x));
    return h;
}
FPEMU_FUNCTION void of_halves(u32 h, float& x, float& y) {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}"
        : "=f"(x), "=f"(y) : "r"(h));
}

// Two entries, where something may go wrong. Each that has a word that overflows counts once.
FPEMU_FUNCTION void split_with_care(float x, float y, const Way& way, float shift, u32& high, u32& low,
                                    Faults& faults) {
    float v[2] = {x, y}, w[2], h[2];
    FPEMU_UNROLL
    for (int i = 0; i < 2; i++) {
        if ((__float_as_uint(v[i]) & 0x7f800000) == 0x7f800000) v[i] = 0, faults.infinite++;
        w[i] = v[i] * way.first * way.second;
    }
    high = to_halves(w[0], w[1]);
    of_halves(high, h[0], h[1]);
    low = to_halves((w[0] - h[0]) * shift, (w[1] - h[1]) * shift);
    FPEMU_UNROLL
    for (int i = 0; i < 2; i++)  // too small for fp32: both words are zeros of its sign
        if (w[i] == 0 && v[i] != 0) low |= (__float_as_uint(v[i]) >> 31 ? 0x8000 : 0) << 16 * i;
    FPEMU_UNROLL
    for (int i = 0; i < 2; i++) {
        const u32 top = 0x7c00u << 16 * i;
        faults.over += (high & top) == top || (low & top) == top;
    }
}

// Words of N neighbours along k from element `at` on; N = 2, 4 or 8.
template <int N> struct Words;
template <> struct Words<1> { typedef u32 type; };
template <> struct Words<2> { typedef uint2 type; };
template <> struct Words<4> { typedef uint4 type; };
template <int N>
FPEMU_FUNCTION void put(const Operand& op, const float (&x)[N], const Way& way, s64 at, Faults& faults) {
    typedef typename Words<N / 2>::type Pack;
    union { u32 words[N / 2]; Pack pack; } high, low;
    FPEMU_UNROLL
    for (int i = 0; i < N / 2; i++) {
        const float u = x[2 * i] * way.first, v = x[2 * i + 1] * way.first;
        float h, g;
        high.words[i] = to_halves(u, v);
        of_halves(high.words[i], h, g);
        low.words[i] = to_halves((u - h) * op.shift, (v - g) * op.shift);
    }
    if (!way.plain) {
        FPEMU_UNROLL
        for (int i = 0; i < N / 2; i++)
            split_with_care(x[2 * i], x[2 * i + 1], way, op.shift, high.words[i], low.words[i], faults);
    }
    *(Pack*)(op.high + at) = high.pack;
    if (op.low) *(Pack*)(op.low + at) = low.pack;
}

// Four neighbours of a row that lies contiguous.
FPEMU_FUNCTION void four(const Operand& op, const float* row, int k, float (&x)[4]) {
    if (op.wide && k + 4 <= op.K) {
        const float4 v = __ldcs((const float4*)(row + k));
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        FPEMU_UNROLL
        for (int i = 0; i < 4; i++) x[i] = k + i < op.K ? row[k + i] : 0;
    }
}
