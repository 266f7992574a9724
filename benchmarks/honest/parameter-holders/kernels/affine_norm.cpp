#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using tvm::ffi::TensorView;

static const float* in(TensorView t) { return static_cast<const float*>(t.data_ptr()); }

void affine_norm(TensorView x, TensorView gain, TensorView shift, TensorView w, TensorView b, TensorView mean,
                 TensorView var, TensorView mask, TensorView out, double eps) {
  const int64_t rows = x.size(0), width = x.size(1);
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      const float y = in(x)[i * width + j] * in(gain)[j] + in(shift)[j];
      const float scale = in(w)[j] / std::sqrt(in(var)[j] + static_cast<float>(eps));
      static_cast<float*>(out.data_ptr())[i * width + j] = ((y - in(mean)[j]) * scale + in(b)[j]) * in(mask)[j];
    }
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(affine_norm, affine_norm);
