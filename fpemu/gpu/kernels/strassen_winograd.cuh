// The seven operands of one side of Strassen's algorithm in Winograd's form: fpemu/schemes/strassen.py has the
// formulas.
#pragma once
#include "integers.cuh"

// Blocks 00, 01, 10, 11 by rows and k. For B these are its blocks 11, 21, 12, 22.
FPEMU_FUNCTION void winograd_operands(float x00, float x01, float x10, float x11, bool second, float (&s)[7]) {
  if (second) {
    const float t1 = x10 - x00, t2 = x11 - t1;
    s[0] = x00, s[1] = x01, s[2] = x11, s[3] = t2 - x01, s[4] = t1, s[5] = t2, s[6] = x11 - x10;
  } else {
    const float s1 = x10 + x11, s2 = s1 - x00;
    s[0] = x00, s[1] = x01, s[2] = x01 - s2, s[3] = x11, s[4] = s1, s[5] = s2, s[6] = x00 - x10;
  }
}
