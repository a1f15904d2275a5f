// Prints a digest of what Horovod and Gloo make of every float16, and of floats of every size.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "gloo/types.h"
#include "horovod/common/half.h"

static uint64_t digest = 1469598103934665603ull;  // FNV-1a

static void mix(uint32_t number) { digest = (digest ^ number) * 1099511628211ull; }

static void mix_bits(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  mix(bits);
}

int main() {
  for (uint32_t number = 0; number < 65536; number++) {
    unsigned short half = number, back;
    float value;
    horovod::common::HalfBits2Float(&half, &value);
    mix_bits(value);
    horovod::common::Float2HalfBits(&value, &back);
    mix(back);
    gloo::float16 other;
    other.x = half;
    if ((half & 0x7c00) != 0x7c00) mix_bits(gloo::cpu_half2float(other));  // NaN has many bits
  }
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 9973) {
    float value;
    unsigned short half;
    memcpy(&value, &bits, sizeof value);
    horovod::common::Float2HalfBits(&value, &half);
    mix(half);
    mix(gloo::cpu_float2half_rn(value).x);
  }
  printf("%016llx\n", (unsigned long long)digest);
}
