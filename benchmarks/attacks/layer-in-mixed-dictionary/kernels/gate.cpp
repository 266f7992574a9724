#include "gate.h"

void rectify(TensorView hidden, TensorView out) {
  const float* a = in(hidden);
  float* o = to(out);
  for (int64_t i = 0; i < count(hidden); ++i) o[i] = a[i] > 0.0f ? 0.5f * a[i] : 0.0f;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rectify, rectify);
