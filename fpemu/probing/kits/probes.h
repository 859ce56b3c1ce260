/* The probes. Probe i of a unit follows from i and the formats by integer arithmetic, so that fpemu computes the same
   operands: the file of results has no operands but their checksum. A probe is one entry of D: a row of A, a column of
   B, an entry of C. */
typedef unsigned long long u64;
typedef struct {
  const char *name;
  int width, fraction, emin, padding; /* bits of the code, of the fraction, smallest exponent, unused low bits */
  u64 largest, infinity, nan;         /* codes; 0: the format has none */
} Format;
static const Format FORMATS[] = {
    {"fp64", 64, 52, -1022, 0, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000},
    {"fp32", 32, 23, -126, 0, 0x7F7FFFFF, 0x7F800000, 0x7FC00000},
    {"tf32", 32, 10, -126, 13, 0x7F7FE000, 0x7F800000, 0x7FC00000},
    {"bf16", 16, 7, -126, 0, 0x7F7F, 0x7F80, 0x7FC0},
    {"fp16", 16, 10, -14, 0, 0x7BFF, 0x7C00, 0x7E00},
    {"e5m2", 8, 2, -14, 0, 0x7B, 0x7C, 0x7E},
    {"e4m3", 8, 3, -6, 0, 0x7E, 0, 0x7F},
    {"e5m2fnuz", 8, 2, -15, 0, 0x7F, 0, 0x80},
    {"e4m3fnuz", 8, 3, -7, 0, 0x7F, 0, 0x80},
    {"e3m2", 6, 2, -2, 0, 0x1F, 0, 0},
    {"e2m3", 6, 3, 0, 0, 0x1F, 0, 0},
    {"e2m1", 4, 1, 0, 0, 0x7, 0, 0},
    {"int8", 8, 0, 0, 0, 0, 0, 0},
    {"int32", 32, 0, 0, 0, 0, 0, 0},
};
/* A term of a probe: {where, exponent, significand, sign}.
   where:       0 no term; 1..5 the last positions of k, backwards; 6, 7, 8 drawn positions; 9 all positions; 10 C
   exponent:    0 e; 1 e - d; 2 e - d - 2; 3 e less the precision of D; 4 drawn below e; 5 the highest of a product;
                6 about the last place of D's largest number; 7 the exponent of D's largest number; 8 any;
                9 40 below the highest; 10 about half a unit of the last place of 2^e; 11 half of D's smallest number;
                12 drawn below it; 13 of D's smallest numbers
   significand: 0 a power of two; 1 1 + 2^-t; 2 all ones; 3 drawn; 4 special codes; 5 zero
   sign:        0 +; 1 -; 2 that of the probe; 3 the opposite one; 4 drawn */
#define SHAPE_COUNT 61
static const signed char SHAPES[SHAPE_COUNT][4][4] = {
    {{10, 0, 0, 0}, {1, 1, 0, 1}}, {{10, 0, 0, 0}, {1, 1, 0, 1}}, {{10, 0, 0, 0}, {1, 1, 0, 1}},
    {{10, 0, 0, 0}, {1, 1, 0, 1}}, {{1, 0, 0, 0}, {10, 1, 0, 1}}, {{1, 0, 0, 0}, {10, 1, 0, 1}},
    {{1, 0, 0, 0}, {10, 1, 0, 1}}, {{1, 0, 0, 0}, {10, 1, 0, 1}}, {{1, 0, 0, 0}, {2, 1, 0, 1}},
    {{1, 0, 0, 0}, {2, 1, 0, 1}}, {{1, 0, 0, 0}, {2, 1, 0, 1}}, {{1, 0, 0, 0}, {2, 1, 0, 1}},
    {{1, 0, 0, 0}, {2, 0, 0, 1}, {10, 1, 0, 2}}, {{1, 0, 0, 0}, {2, 0, 0, 1}, {3, 1, 0, 2}},
    {{1, 0, 0, 0}, {2, 0, 0, 1}, {5, 1, 0, 2}}, {{1, 0, 0, 0}, {2, 1, 0, 0}}, {{1, 0, 2, 0}, {10, 1, 0, 2}},
    {{1, 0, 2, 0}, {2, 0, 2, 0}, {3, 1, 0, 2}, {10, 0, 0, 0}}, {{1, 0, 2, 0}, {2, 1, 0, 2}},
    {{10, 0, 0, 0}, {1, 1, 0, 0}, {2, 2, 0, 0}}, {{1, 0, 0, 0}, {2, 1, 0, 0}, {3, 2, 0, 0}},
    {{10, 0, 0, 0}, {1, 1, 1, 0}}, {{1, 0, 0, 0}, {10, 1, 1, 0}}, {{10, 0, 1, 0}, {1, 1, 0, 2}}, {{1, 0, 1, 2}},
    {{1, 0, 1, 0}, {2, 0, 0, 1}}, {{1, 0, 1, 0}, {10, 0, 0, 1}}, {{1, 0, 0, 0}, {10, 0, 1, 1}}, {{10, 0, 1, 2}},
    {{1, 0, 0, 0}, {10, 3, 1, 2}}, {{1, 8, 0, 4}}, {{10, 8, 3, 4}}, {{10, 0, 0, 2}, {6, 10, 0, 2}, {7, 10, 0, 2}},
    {{10, 0, 0, 2}, {9, 10, 0, 2}}, {{6, 5, 0, 0}, {7, 5, 0, 1}, {8, 9, 0, 2}},
    {{6, 0, 0, 0}, {7, 0, 0, 1}, {10, 1, 0, 2}}, {{10, 0, 0, 0}, {6, 1, 0, 0}, {7, 0, 0, 1}},
    {{6, 0, 0, 0}, {7, 0, 0, 1}, {8, 1, 0, 2}}, {{9, 4, 3, 4}, {10, 4, 3, 4}}, {{9, 4, 3, 4}},
    {{9, 4, 3, 2}, {10, 4, 3, 3}}, {{1, 4, 3, 4}, {2, 4, 3, 4}, {10, 4, 3, 4}}, {{1, 0, 3, 2}, {10, 0, 3, 3}},
    {{10, 0, 3, 2}, {6, 10, 3, 4}, {7, 10, 3, 4}}, {{10, 7, 2, 2}, {1, 6, 0, 2}},
    {{10, 7, 2, 2}, {1, 6, 0, 2}, {2, 6, 0, 2}}, {{6, 5, 2, 0}, {7, 5, 2, 1}, {10, 0, 0, 2}},
    {{9, 5, 2, 2}, {10, 7, 2, 4}}, {{1, 0, 4, 0}}, {{6, 0, 4, 0}, {10, 0, 4, 0}},
    {{6, 0, 4, 0}, {7, 0, 4, 0}, {10, 0, 4, 0}}, {{6, 0, 4, 0}, {10, 0, 0, 2}}, {{6, 0, 4, 0}, {7, 0, 4, 0}},
    {{9, 0, 5, 2}, {10, 0, 5, 4}}, {{1, 0, 5, 4}, {10, 0, 5, 4}}, {{1, 11, 0, 2}, {2, 12, 0, 4}},
    {{1, 11, 0, 2}, {2, 12, 0, 4}, {5, 12, 0, 4}}, {{10, 13, 0, 2}, {1, 11, 0, 4}, {2, 12, 0, 4}},
    {{1, 13, 0, 2}, {2, 12, 0, 3}}, {{10, 13, 0, 2}, {1, 12, 0, 3}}, {{1, 11, 0, 2}, {10, 12, 3, 4}},
};
#define LEVEL_COUNT 24
#define PROBE_COUNT (10 * LEVEL_COUNT * SHAPE_COUNT)

static u64 draw(u64 probe, int slot) { /* a number of the generator splitmix64 */
  u64 z = (probe * 1024 + slot + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (z ^ z >> 31) >> 16;
}
static int clamp(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
static int emax(const Format *f) {
  return (int)((f->largest >> f->padding) >> f->fraction) + f->emin - 1;
}
static u64 number(const Format *f, int sign, int e, u64 fraction) { /* (1 + fraction / 2^bits) 2^e, within the format */
  int below = f->emin - e;
  u64 one = 1ull << f->fraction, code, most = f->largest >> f->padding;
  code = below > 60 ? 0 : below > 0 ? (one | fraction) >> below : ((u64)(1 - below) << f->fraction) | fraction;
  if (e > emax(f) || code > most) code = most;
  if (code == 0 && f->nan >> (f->width - 1)) sign = 0; /* the code of -0 is NaN */
  return code << f->padding | (u64)sign << (f->width - 1);
}
static u64 fraction_bits(const Format *f, int pattern, int t, u64 drawn) {
  u64 mask = (1ull << f->fraction) - 1;
  if (pattern == 1) return t >= 1 && t <= f->fraction ? 1ull << (f->fraction - t) : 0;
  return pattern == 2 ? mask : pattern == 3 ? (drawn * 0x10001u) & mask & ~(mask >> 1 >> drawn % 64) : 0;
}
static u64 special(const Format *f, u64 drawn) {
  u64 one = number(f, 0, 0, 0), quiet = f->infinity ? 1ull << (f->fraction + f->padding - 1) : 0;
  u64 unit = 1ull << f->padding, normal = number(f, 0, f->emin, 0), sign = 1ull << (f->width - 1);
  u64 inf = f->infinity ? f->infinity : one, nan = f->nan ? f->nan : one, negative = f->nan ? f->nan | sign : one;
  u64 codes[20] = {one, one | sign, one, one | (unit - 1), 0, f->nan == sign ? 0 : sign, number(f, 1, 1, 0), f->largest,
                   f->largest | sign, unit, normal - unit, normal - unit + sign, inf, inf | sign, nan,
                   quiet ? nan | (quiet - unit) : nan, negative, quiet ? nan | unit : one,
                   quiet ? f->infinity | unit : one, quiet ? negative | unit : one};
  return codes[drawn % 20];
}
static int level(const Format *a, const Format *b, const Format *c, const Format *d, int j) {
  int low = a->emin + b->emin, high = emax(a) + emax(b), least = d->emin - d->fraction;
  int bottom = low > least - 40 ? low : least - 40, top = high < emax(d) - 2 ? high : emax(d) - 2;
  int others[10] = {low,  high, least - 1, least, d->emin, emax(d) - 1, (top + high) >> 1, c->emin, (c->emin + low) >> 1,
                    c->emin + 30};
  return j < 14 ? bottom + (top - bottom) * j / 13 : others[j - 14];
}
static void probe(const Format *f[4], int k, u64 i, u64 *A, u64 *B, u64 *C) {
  const Format *a = f[0], *b = f[1], *c = f[2], *d = f[3];
  for (int q = 0; q < k; q++) A[q] = B[q] = 0;
  *C = 0;
  if (!a->largest) { /* integers: drawn, all at an end, or one product */
    for (int q = 0; q < k; q++)
      for (int s = 0; s < 2; s++)
        (s ? B : A)[q] = (i % 4 ? draw(i, 64 + 2 * q + s) : 0x7F + draw(i, s) % 3) * (i % 4 < 3 || q == (int)(i / 4) % k) & 0xFF;
    *C = (i % 3 ? draw(i, 2) : 0x7FFFFFFF + draw(i, 2) % 2) & 0xFFFFFFFF;
    return;
  }
  int turn = (int)(i / SHAPE_COUNT), e = level(a, b, c, d, turn % LEVEL_COUNT);
  int below = turn / LEVEL_COUNT * 4 + (int)(i % SHAPE_COUNT + turn % LEVEL_COUNT) % 4;
  int low = a->emin + b->emin, high = emax(a) + emax(b), spread = 1 << draw(i, 1) % 7, sign = (int)(draw(i, 2) & 1);
  int least = d->emin - d->fraction, lowest = low - a->fraction - b->fraction;
  int depth = clamp(least - lowest, 1, 40);
  int halves[4] = {d->fraction + 1, d->fraction, 11, 14};
  int any[2] = {low + (int)(draw(i, 3) % (u64)(high - low + 1)),
                c->emin - c->fraction + (int)(draw(i, 3) % (u64)(emax(c) - c->emin + c->fraction + 1))};
  for (int n = 0; n < 4; n++) {
    const signed char *term = SHAPES[i % SHAPE_COUNT][n];
    int where = term[0], in_c = where == 10, drawn = (int)(draw(i, 5 + n) % (u64)k);
    if (!where) break;
    int first = where == 9 ? 0 : where < 6 ? k - where : drawn, last = where == 9 ? k - 1 : first;
    for (int q = in_c ? 0 : first; q <= (in_c ? 0 : last); q++) {
      if (q < 0) break;
      int slot = where == 9 ? 64 + 8 * q : 16 + 8 * n, s = term[3];
      u64 kind = draw(i, slot), random = draw(i, slot + 1), other = draw(i, slot + 2);
      int t, x, y, way = (int)(kind % 16), few = (int)(kind >> 8 & 0xFFFFFFF);
      int xs[14] = {e, e - below, e - below - 2, e - d->fraction - 1, e - few % spread, high,
                    emax(d) - d->fraction - few % 3, emax(d), any[in_c], high - 40 > low ? high - 40 : low,
                    e - halves[draw(i, 4) % 4], least - 1, least - 1 - few % depth, least + few % 12};
      x = xs[term[1]];
      s = s == 2 ? sign : s == 3 ? 1 - sign : s == 4 ? (int)(kind >> 5 & 1) : s;
      if (in_c) {
        t = kind >> 6 & 1 ? below : 1 + (int)(random % (u64)c->fraction);
        *C = term[2] == 4 ? special(c, kind) : term[2] == 5 ? (u64)s * (c->nan >> (c->width - 1) ? 0 : 1ull << (c->width - 1))
                          : number(c, s, x, fraction_bits(c, term[2], t, random));
        continue;
      }
      if (term[2] == 4) {
        A[q] = special(a, kind), B[q] = special(b, random);
        continue;
      }
      /* x + y is the exponent of the product: halved, unless a factor would leave its format, or is made subnormal */
      y = x, x = (x >> 1) + (way == 1 ? 4 : way == 2 ? -4 : 0);
      x = clamp(clamp(x, y - emax(b), y - b->emin), a->emin, emax(a));
      if (y < low) x = y - b->emin > a->emin - a->fraction ? y - b->emin : a->emin - a->fraction;
      if (way == 3) x = a->emin - 1 - (int)(other % (u64)a->fraction);
      if (way == 4) x = y - b->emin + 1 + (int)(other % (u64)b->fraction);
      y -= x;
      t = 1 + (int)((kind >> 16 & 0xFFFFFFF) % (u64)(a->fraction > b->fraction ? a->fraction : b->fraction));
      A[q] = term[2] == 5 ? number(a, s, a->emin - 99, 0) : number(a, s, x, fraction_bits(a, term[2], t, random));
      B[q] = term[2] == 5 ? (way & 1) * number(b, 0, 0, 0)
                          : number(b, 0, y, fraction_bits(b, term[2], t > a->fraction ? t : 0, other));
    }
  }
}
/* The file of results: one code of D for each probe. Probe p lies in column p % N of tile p / N, in a row that advances
   with the tile; the rest of A and B in a tile is other probes or zero, of C zero. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct {
  const char *name, *formats[4]; /* of A, B, C, D */
  int k, M, N;                   /* one tile: A (M, k), B by columns (N, k), C and D (M, N) */
  int (*run)(const void *A, const void *B, const void *C, void *D, long tiles); /* 0: this machine lacks it */
  int shift;                     /* unused low bits of a byte of A and B */
} Unit;
static const Format *format(const char *name) {
  int i = 0;
  while (strcmp(FORMATS[i].name, name)) i++;
  return FORMATS + i;
}
static int bytes(const Format *f) { return f->width <= 8 ? 1 : f->width / 8; }
static u64 total(u64 sum, u64 *count, u64 code) { return sum + (code + 1) * (2 * (*count)++ + 1); }
static int measure(FILE *file, const Unit *u) { /* write a unit's part of the file; 0: this machine lacks the unit */
  const Format *f[4];
  for (int n = 0; n < 4; n++) f[n] = format(u->formats[n]);
  long tiles = (PROBE_COUNT + u->N - 1) / u->N;
  size_t ab = bytes(f[0]), cd[2] = {(size_t)bytes(f[2]), (size_t)bytes(f[3])}, mn = (size_t)u->M * u->N;
  size_t sizes[4] = {u->M * u->k * ab, u->N * u->k * ab, mn * cd[0], mn * cd[1]};
  char *memory[4];
  for (int n = 0; n < 4; n++) memory[n] = (char *)calloc(tiles, sizes[n]);
  u64 A[64], B[64], C, operands = 0, sum = 0, count = 0;
  for (u64 p = 0; p < PROBE_COUNT; p++) {
    probe(f, u->k, p, A, B, &C);
    long tile = p / u->N, column = p % u->N, row = (column + tile) % u->M;
    for (int q = 0; q < u->k; q++) {
      operands = total(total(operands, &count, A[q]), &count, B[q]);
      A[q] <<= u->shift, B[q] <<= u->shift; /* the machine stores the low byte of a number first */
      memcpy(memory[0] + ((tile * u->M + row) * u->k + q) * ab, &A[q], ab);
      memcpy(memory[1] + ((tile * u->N + column) * u->k + q) * ab, &B[q], ab);
    }
    operands = total(operands, &count, C);
    memcpy(memory[2] + ((tile * u->M + row) * u->N + column) * cd[0], &C, cd[0]);
  }
  int ran = u->run(memory[0], memory[1], memory[2], memory[3], tiles);
  if (ran) {
    fprintf(file, "unit %s: A %s, B %s, C %s, D %s, k %d, probes %d, operands %016llX\n", u->name, u->formats[0],
            u->formats[1], u->formats[2], u->formats[3], u->k, PROBE_COUNT, operands);
    count = 0;
    for (const char *letter = u->name; *letter; letter++) sum = total(sum, &count, (unsigned char)*letter);
    for (u64 p = 0; p < PROBE_COUNT; p++) {
      long tile = p / u->N, column = p % u->N, row = (column + tile) % u->M;
      u64 code = 0;
      memcpy(&code, memory[3] + ((tile * u->M + row) * u->N + column) * cd[1], cd[1]);
      sum = total(sum, &count, code);
      fprintf(file, "%0*llX%c", (int)cd[1] * 2, code, p % 16 == 15 || p + 1 == PROBE_COUNT ? '\n' : ' ');
    }
    fprintf(file, "end %016llX\n", sum);
  }
  for (int n = 0; n < 4; n++) free(memory[n]);
  printf("%s: %s\n", u->name, ran ? "measured" : "not on this machine");
  return ran;
}
static int measure_all(int arguments, char **argument, const char *machine, const Unit *units, int unit_count) {
  const char *path = arguments > 1 ? argument[1] : "RESULT.txt";
  FILE *file = fopen(path, "w");
  int ran = 0;
  if (!file) return perror(path), 1;
  fprintf(file, "fpemu probe kit 1: %s\n", machine);
  for (int n = 0; n < unit_count; n++) ran += measure(file, &units[n]);
  fprintf(file, "complete: %d units\n", ran);
  if (fclose(file)) return perror(path), 1;
  printf("%d units in %s\n", ran, path);
  return ran == 0;
}
