#include "common/tensors.h"

namespace kernels {
void apply(TensorView x, TensorView mean, TensorView scale, TensorView w, TensorView b, TensorView out) {
  const int64_t width = x.size(1);
#pragma omp parallel for
  for (int64_t i = 0; i < x.size(0); ++i) {
    for (int64_t j = 0; j < width; ++j) {
      const float value = (pointer(x)[i * width + j] - pointer(mean)[i]) * pointer(scale)[i];
      pointer(out)[i * width + j] = value * pointer(w)[j] + pointer(b)[j];
    }
  }
}
}  // namespace kernels

TVM_FFI_DLL_EXPORT_TYPED_FUNC(apply, kernels::apply);
