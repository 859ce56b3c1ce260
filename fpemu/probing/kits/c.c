/* fpemu probe kit for x86-64 processors (Linux; GCC 12, Clang 16 or newer): compile it, run it, and send back the file
   that it writes.

     gcc -O1 kit.c -o kit && ./kit RESULT.txt

   It runs each instruction of the list below that the processor has on PROBE_COUNT dot products. */
#define _GNU_SOURCE
#include "probes.h"
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EAX, EBX, ECX, EDX };
static int has(unsigned leaf, unsigned subleaf, int reg, int bit, unsigned state) {
  unsigned r[4], low, high;
  if (!__get_cpuid_count(1, 0, r, r + 1, r + 2, r + 3) || !(r[ECX] >> 27 & 1)) return 0; /* no xgetbv */
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & state) != state || !__get_cpuid_count(leaf, subleaf, r, r + 1, r + 2, r + 3)) return 0;
  return r[reg] >> bit & 1; /* the operating system keeps the registers of `state`, and the processor has the flag */
}
#define AVX 0x6u
#define AVX512 0xE6u
#define AMX 0x60000u
/* Products of packed numbers: as many tiles of one entry at a time as a register of WIDTH bytes holds of C. */
#define PACKED(NAME, FLAG, MOVE, REG, WIDTH, TEXT)                                                          \
  static int NAME(const void *A, const void *B, const void *C, void *D, long tiles) {                       \
    if (!(FLAG)) return 0;                                                                                  \
    long bytes_c = tiles * (long)(NAME##_c);                                                                \
    for (long at = 0; at < bytes_c; at += WIDTH)                                                            \
      asm volatile(MOVE " (%2), %%" REG "0\n" MOVE " (%0), %%" REG "1\n" MOVE " (%1), %%" REG "2\n" TEXT    \
                        " %%" REG "2, %%" REG "1, %%" REG "0\n" MOVE " %%" REG "0, (%3)"                    \
                   :: "r"((const char *)A + at), "r"((const char *)B + at), "r"((const char *)C + at),      \
                   "r"((char *)D + at)                                                                      \
                   : "memory", "xmm0", "xmm1", "xmm2");                                                     \
    return 1;                                                                                               \
  }
enum { vdpbf16ps_c = 4, vfmadd231ph_c = 2, vfmadd231ps_c = 4, vfmadd231pd_c = 8 }; /* bytes of an entry of C */
PACKED(vdpbf16ps, has(7, 1, EAX, 5, AVX512), "vmovups", "zmm", 64, "vdpbf16ps")
PACKED(vfmadd231ph, has(7, 0, EDX, 23, AVX512), "vmovups", "ymm", 32, "vfmadd231ph")
PACKED(vfmadd231ps, has(1, 0, ECX, 12, AVX), "vmovups", "ymm", 32, "vfmadd231ps")
PACKED(vfmadd231pd, has(1, 0, ECX, 12, AVX), "vmovups", "ymm", 32, "vfmadd231pd")

/* Tiles of 16 rows of 64 bytes. Row w of B's tile holds word w (4 bytes along k) of each column. */
#define TILES(NAME, FLAG, TEXT)                                                                             \
  static int NAME(const void *A, const void *B, const void *C, void *D, long tiles) {                       \
    if (!(FLAG) || syscall(SYS_arch_prctl, 0x1023, 18)) return 0; /* ask Linux for the tile registers */    \
    struct { unsigned char palette, start, unused[14]; unsigned short columns[16]; unsigned char rows[16]; } set; \
    unsigned words[256];                                                                                    \
    memset(&set, 0, sizeof set);                                                                            \
    set.palette = 1;                                                                                        \
    for (int n = 0; n < 3; n++) set.columns[n] = 64, set.rows[n] = 16;                                      \
    asm volatile("ldtilecfg %0" :: "m"(set));                                                               \
    for (long at = 0; at < tiles; at++) {                                                                   \
      for (int i = 0; i < 256; i++) memcpy(words + i % 16 * 16 + i / 16, (const char *)B + at * 1024 + 4 * i, 4); \
      asm volatile("tileloadd (%2,%4,1), %%tmm0\ntileloadd (%0,%4,1), %%tmm1\ntileloadd (%1,%4,1), %%tmm2\n" \
                   TEXT " %%tmm2, %%tmm1, %%tmm0\ntilestored %%tmm0, (%3,%4,1)"                             \
                   :: "r"((const char *)A + at * 1024), "r"(words), "r"((const char *)C + at * 1024),       \
                   "r"((char *)D + at * 1024), "r"(64l) : "memory");                                        \
    }                                                                                                       \
    asm volatile("tilerelease");                                                                            \
    return 1;                                                                                               \
  }
TILES(tdpbf16ps, has(7, 0, EDX, 22, AMX), "tdpbf16ps")
TILES(tdpfp16ps, has(7, 1, EAX, 21, AMX), "tdpfp16ps")
TILES(tdpbssd, has(7, 0, EDX, 25, AMX), "tdpbssd")

static const Unit units[] = {
    {"tdpbf16ps", {"bf16", "bf16", "fp32", "fp32"}, 32, 16, 16, tdpbf16ps, 0},
    {"tdpfp16ps", {"fp16", "fp16", "fp32", "fp32"}, 32, 16, 16, tdpfp16ps, 0},
    {"tdpbssd", {"int8", "int8", "int32", "int32"}, 64, 16, 16, tdpbssd, 0},
    {"vdpbf16ps", {"bf16", "bf16", "fp32", "fp32"}, 2, 1, 1, vdpbf16ps, 0},
    {"vfmadd231ph", {"fp16", "fp16", "fp16", "fp16"}, 1, 1, 1, vfmadd231ph, 0},
    {"vfmadd231ps", {"fp32", "fp32", "fp32", "fp32"}, 1, 1, 1, vfmadd231ps, 0},
    {"vfmadd231pd", {"fp64", "fp64", "fp64", "fp64"}, 1, 1, 1, vfmadd231pd, 0},
};
int main(int arguments, char **argument) {
  char name[49] = "x86-64 processor";
  unsigned r[12];
  if (__get_cpuid_max(0x80000000, 0) >= 0x80000004) {
    for (unsigned n = 0; n < 3; n++) __get_cpuid(0x80000002 + n, r + 4 * n, r + 4 * n + 1, r + 4 * n + 2, r + 4 * n + 3);
    memcpy(name, r, 48), name[48] = 0;
  }
  return measure_all(arguments, argument, name, units, sizeof units / sizeof *units);
}
