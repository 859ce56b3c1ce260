// Operands of the scheme `staged-int8` for staged_int8_gemm.cu: the rows' scales, h in fp16, and the words of 8 bits.
//
// Of a row's chunk of 64 k there are 128 bytes of h, and 128 of the integers: 64 qr and 64 qh of A, 64 qh and 64 qr of
// B; or 64 r in fp16, in an exact stage.
#include "hopper_split.cuh"
#include "staged_int8_words.cuh"

struct Int8Words {
  typedef Scale Row;
  FPEMU_FUNCTION static Scale row(const Operand& op, u32 largest, bool, int& exponent) {
    exponent = scale_for(largest);
    return scale_of(exponent);
  }
  FPEMU_FUNCTION static void split_eight(const Operand& op, const Scale& scale, const float (&x)[8], int chunk,
                                         int octet, s64 to) {
    Numbers n[8];
    u32 h[4], r[4];
    FPEMU_UNROLL
    for (int i = 0; i < 8; i++) n[i] = split(is_special(x[i]) ? 0.0f : x[i], scale);
    FPEMU_UNROLL
    for (int i = 0; i < 4; i++) {
      h[i] = n[2 * i].h | (u32)n[2 * i + 1].h << 16;
      r[i] = n[2 * i].r | (u32)n[2 * i + 1].r << 16;
    }
    *(uint4*)(op.high + to + 16 * octet) = make_uint4(h[0], h[1], h[2], h[3]);
    u8* q = op.low + to;
    if (op.exact && chunk / op.per % op.exact == 0) {
      *(uint4*)(q + 16 * octet) = make_uint4(r[0], r[1], r[2], r[3]);
      return;
    }
    u32 low[2], high[2];
    FPEMU_UNROLL
    for (int i = 0; i < 2; i++) {
      const Numbers* m = n + 4 * i;
      low[i] = last_bytes(m[0].low, m[1].low, m[2].low, m[3].low);
      high[i] = last_bytes(m[0].high, m[1].high, m[2].high, m[3].high);
    }
    *(uint2*)(q + 8 * octet + (op.second ? 64 : 0)) = make_uint2(low[0], low[1]);
    *(uint2*)(q + 8 * octet + (op.second ? 0 : 64)) = make_uint2(high[0], high[1]);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) split_bytes(const __grid_constant__ Operands all) {
  run<Rows<Int8Words>>(all);
}
