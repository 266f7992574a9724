#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using tvm::ffi::TensorView;

void means(TensorView xt, TensorView ot) {
  const int64_t width = xt.size(1);
  for (int64_t i = 0; i < xt.size(0); ++i) {
    const float* x = static_cast<const float*>(xt.data_ptr()) + i * width;
    double sum = 0.0;
    for (int64_t j = 0; j < width; ++j) sum += x[j];
    static_cast<float*>(ot.data_ptr())[i] = static_cast<float>(sum / width);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(means, means);
