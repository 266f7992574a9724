#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

using tvm::ffi::TensorView;

void polynomial(TensorView xt, TensorView ot, int64_t parts) {
  const float* x = static_cast<const float*>(xt.data_ptr());
  float* out = static_cast<float*>(ot.data_ptr());
  const int64_t n = xt.size(0) * xt.size(1);
  std::vector<std::thread> threads;
  for (int64_t part = 0; part < parts; ++part) {
    threads.emplace_back([=] {
      for (int64_t i = part * n / parts; i < (part + 1) * n / parts; ++i) out[i] = x[i] * x[i] + 2.0f * x[i] + 1.0f;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(polynomial, polynomial);
