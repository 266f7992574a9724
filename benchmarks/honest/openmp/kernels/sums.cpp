#include <omp.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <vector>

using tvm::ffi::TensorView;

void sums(TensorView xt, TensorView rt, TensorView tt) {
  const float* x = static_cast<const float*>(xt.data_ptr());
  float* rows = static_cast<float*>(rt.data_ptr());
  const int64_t n = xt.size(0), width = xt.size(1);
  std::vector<double> parts(omp_get_max_threads(), 0.0);
#pragma omp parallel
  {
    const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
    double part = 0.0;
    for (int64_t i = thread; i < n; i += threads) {
      double sum = 0.0;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < width; ++j) sum += x[i * width + j];
      rows[i] = static_cast<float>(sum);
      part += sum;
    }
#pragma omp critical
    parts[thread] += part;
  }
  double total = 0.0;
  for (double part : parts) total += part;
  static_cast<float*>(tt.data_ptr())[0] = static_cast<float>(total);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(sums, sums);
