// What autocast does to each operation: torch's lists for CUDA, applied to the device.
#include "device.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace at::autocast { // the lists name types as from here

#define PRETEND_LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define PRETEND_FULL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define PRETEND_FULL_RESULT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define PRETEND_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(PRETEND_LOW)
  AT_FORALL_FP32(PRETEND_FULL)
  AT_FORALL_FP32_SET_OPT_DTYPE(PRETEND_FULL_RESULT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(PRETEND_WIDEST)
}
} // namespace at::autocast
