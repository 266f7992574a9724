#include "gate.h"

void finish(TensorView y, TensorView b, TensorView out) {
  const float* a = in(y);
  float* o = to(out);
  const int64_t width = y.size(1);
  for (int64_t i = 0; i < count(y); ++i) {
    const float sum = a[i] + in(b)[i % width];
    o[i] = sum > 0.0f ? 0.5f * sum : 0.0f;
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(finish, finish);
