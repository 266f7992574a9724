#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using tvm::ffi::TensorView;

void norm(TensorView xt, TensorView wt, TensorView bt, TensorView ot) {
  const float* w = static_cast<const float*>(wt.data_ptr());
  const float* b = static_cast<const float*>(bt.data_ptr());
  (void)w, (void)b;
  const int64_t width = xt.size(1);
  for (int64_t i = 0; i < xt.size(0); ++i) {
    const float* x = static_cast<const float*>(xt.data_ptr()) + i * width;
    float* out = static_cast<float*>(ot.data_ptr()) + i * width;
    double sum = 0.0, squares = 0.0;
    for (int64_t j = 0; j < width; ++j) sum += x[j];
    const double mean = sum / width;
    for (int64_t j = 0; j < width; ++j) squares += (x[j] - mean) * (x[j] - mean);
    const float scale = static_cast<float>(1.0 / std::sqrt(squares / width + 1e-5));
    for (int64_t j = 0; j < width; ++j) out[j] = static_cast<float>(x[j] - mean) * scale;
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);
