// The operations that have no CPU kernel to fall back on, and views, which need none.
#include "operations.h"

#include "fallback.h"
#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace pretend {
using c10::Device, c10::DispatchKey, c10::StorageImpl;

namespace {
const c10::DispatchKeySet kKeys(DispatchKey::PrivateUse1);

Device device_of(std::optional<Device> device) {
  return {kPretend, device && device->has_index() ? device->index() : current};
}

Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<Device> device, std::optional<bool> pinned,
    std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_generic(
      size, &memory(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_strided_generic(
      size, stride, &memory(), kKeys, c10::dtype_or_default(dtype));
}

// torch's zeros without bytes (of a gradient that is none); ours have bytes, as kernels expect.
Tensor zeros(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<Device> device, std::optional<bool> pinned) {
  return empty(size, dtype, layout, device, pinned, std::nullopt).zero_();
}

const Tensor& resize_(
    const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

Tensor& set_(Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  c10::Storage none(c10::make_intrusive<StorageImpl>(
      StorageImpl::use_byte_size_t(), 0, memory().allocate(0), &memory(), /*resizable=*/true));
  return at::native::set_storage_cpu_(self, none, 0, {0}, {1});
}

// With this, module.to(device) moves what is in a parameter and keeps the parameter itself, as
// between CPU and CUDA: an optimizer that has it still has it.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto is_dense = [](const Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || is_pretend(tensor));
  };
  return is_dense(self) && is_dense(from);
}

void record_stream(Tensor&, c10::Stream) {}

// torch sends a device that it does not know to two operations called "overrideable"; the CPU's
// kernels are behind the plain ones.
void convolution(
    const c10::OperatorHandle&, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static const auto plain =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  fallback(plain, keys, stack);
}

// (grad_output, input, weight, [bias_sizes: only the plain one has it], seven more)
void convolution_backward(
    const c10::OperatorHandle&, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static const auto plain =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  const auto num_channels = (stack->end() - 10)->toTensor().size(1); // of grad_output
  stack->insert(stack->end() - 7, c10::List<int64_t>({num_channels}));
  fallback(plain, keys, stack);
}
} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_efficientzerotensor", &zeros);
  library.impl("resize_", &resize_);
  library.impl("record_stream", &record_stream);
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);

  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);

  library.impl("_scaled_dot_product_efficient_attention", &attention);
  library.impl("_scaled_dot_product_efficient_attention_backward", &attention_backward);
  library.impl(
      "convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library.impl(
      "convolution_backward_overrideable",
      torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());

  library.impl("set_", &set_);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl(
      "set_.source_Storage", static_cast<Tensor& (*)(Tensor&, c10::Storage)>(&at::native::set_));
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("alias", &at::native::alias);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
}

// A conjugate (or negative) view is copied as it is: torch would first resolve it, by a copy, and
// so on without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
} // namespace pretend
