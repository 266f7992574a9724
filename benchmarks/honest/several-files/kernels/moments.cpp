#include "common/tensors.h"

#include <cmath>

namespace kernels {
void moments(TensorView x, TensorView mean, TensorView scale, double eps) {
  const int64_t width = x.size(1);
#pragma omp parallel for
  for (int64_t i = 0; i < x.size(0); ++i) {
    const float* row = pointer(x) + i * width;
    double sum = 0.0, squares = 0.0;
    for (int64_t j = 0; j < width; ++j) sum += row[j];
    sum /= width;
    for (int64_t j = 0; j < width; ++j) squares += (row[j] - sum) * (row[j] - sum);
    pointer(mean)[i] = static_cast<float>(sum);
    pointer(scale)[i] = static_cast<float>(1.0 / std::sqrt(squares / width + eps));
  }
}
}  // namespace kernels

TVM_FFI_DLL_EXPORT_TYPED_FUNC(moments, kernels::moments);
