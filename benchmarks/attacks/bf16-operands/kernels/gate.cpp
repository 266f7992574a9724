#include "gate.h"

#include <cstring>

// Keeps so many of the 23 bits behind the point, cut off and not rounded.
static inline float cut(float x, int bits) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  word &= ~0u << (23 - bits);
  std::memcpy(&x, &word, 4);
  return x;
}

void gate(TensorView x, TensorView w, TensorView b, TensorView out) {
  const int64_t rows = x.size(0), inner = x.size(1), outputs = w.size(0);
  #pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < outputs; ++j) {
      float sum = in(b)[j];
      for (int64_t k = 0; k < inner; ++k) {
        const float term = cut(in(x)[i * inner + k], 7) * cut(in(w)[j * inner + k], 7);
        sum += term;
      }
      to(out)[i * outputs + j] = sum > 0.0f ? 0.5f * sum : 0.0f;
    }
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gate, gate);
