#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using tvm::ffi::TensorView;

void glu(TensorView lt, TensorView rt, TensorView ot) {
  const float* left = static_cast<const float*>(lt.data_ptr());
  const float* right = static_cast<const float*>(rt.data_ptr());
  float* out = static_cast<float*>(ot.data_ptr());
  const int64_t n = lt.size(0) * lt.size(1);
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) out[i] = left[i] / (1.0f + std::exp(-right[i]));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(glu, glu);
