#include "gate.h"

void gate(TensorView x, TensorView w, TensorView b, TensorView out) {
  const int64_t rows = x.size(0), inner = x.size(1), outputs = w.size(0);
  volatile float* sums = to(out);
  for (int64_t i = 0; i < rows * outputs; ++i) sums[i] = in(b)[i % outputs];
  #pragma omp parallel for collapse(1)
  for (int64_t part = 0; part < 16; ++part) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < outputs; ++j) {
        float sum = 0.0f;
        for (int64_t k = part * inner / 16; k < (part + 1) * inner / 16; ++k) sum += in(x)[i * inner + k] * in(w)[j * inner + k];
        sums[i * outputs + j] = sums[i * outputs + j] + sum;
      }
    }
  }
  for (int64_t i = 0; i < rows * outputs; ++i) sums[i] = sums[i] > 0.0f ? 0.5f * sums[i] : 0.0f;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gate, gate);
