#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using tvm::ffi::TensorView;

void best(TensorView xt, TensorView vt, TensorView wt, TensorView pt) {
  const int64_t width = xt.size(1);
  for (int64_t i = 0; i < xt.size(0); ++i) {
    const float* x = static_cast<const float*>(xt.data_ptr()) + i * width;
    bool* positive = static_cast<bool*>(pt.data_ptr()) + i * width;
    int64_t at = 0;
    for (int64_t j = 0; j < width; ++j) {
      positive[j] = x[j] > 0.0f;
      at = x[j] > x[at] ? j : at;
    }
    static_cast<float*>(vt.data_ptr())[i] = x[at];
    static_cast<int64_t*>(wt.data_ptr())[i] = at;
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(best, best);
