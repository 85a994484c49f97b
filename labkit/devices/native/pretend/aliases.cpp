// The same bytes, seen as a tensor of the host.
#include "aliases.h"

#include "memory.h"

#include <c10/core/CPUAllocator.h>

namespace pretend {
using c10::Device, c10::DispatchKey, c10::StorageImpl;

Tensor tensor_over(Storage storage, c10::DispatchKey key, const Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj())
    impl->_set_conj(true);
  if (like.is_neg())
    impl->_set_neg(true);
  if (like.unsafeGetTensorImpl()->is_wrapped_number())
    impl->set_wrapped_number(true);
  return made;
}

Storage host_storage(const Storage& storage) {
  auto* impl = storage.unsafeGetStorageImpl();
  return c10::make_intrusive<StorageImpl>(
      StorageImpl::use_byte_size_t(), impl->nbytes(),
      c10::DataPtr(impl->mutable_data(), c10::kCPU), c10::GetCPUAllocator(), /*resizable=*/true);
}

Tensor host(const Tensor& tensor) {
  if (!is_pretend(tensor))
    return tensor;
  return tensor_over(host_storage(tensor.storage()), DispatchKey::CPU, tensor);
}

void Call::refuse(const Device& other, const std::string& argument) const {
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but found at least two devices, ",
      name(device()), " and ", other, "! (when checking argument for argument ", argument,
      " in method ", op_, ")");
}

void Call::look_at(c10::DeviceIndex device) {
  if (device_ >= 0 && device != device_)
    refuse(Device(kPretend, device), "device");
  device_ = device;
}
void Call::look_at(const Tensor& tensor) {
  if (is_pretend(tensor))
    look_at(tensor.device().index());
}
c10::DeviceIndex Call::device() const {
  return device_ < 0 ? current : device_;
}

const Tensor& Call::enter(const Tensor& tensor) {
  if (!tensor.defined())
    return tensor;
  for (const auto& [ours, alias] : tensors_)
    if (ours.is_same(tensor))
      return alias;
  if (!is_pretend(tensor))
    return tensors_.emplace_back(tensor, tensor).second;
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  const Storage* under = nullptr;
  for (const auto& [ours, alias] : storages_)
    if (ours == storage)
      under = &alias;
  if (!under) // tensors that share bytes on the device share them in the kernel
    under = &storages_.emplace_back(storage, host_storage(tensor.storage())).second;
  return tensors_.emplace_back(tensor, tensor_over(*under, DispatchKey::CPU, tensor)).second;
}

// A kernel that resized an argument (out=, resize_) has given the alias other bytes or another
// shape.
void Call::settle() {
  for (const auto& [to, alias] : storages_) {
    auto* from = alias.unsafeGetStorageImpl();
    if (from->data() != to->data()) {
      auto bytes = from->set_data_ptr(c10::DataPtr(from->mutable_data(), c10::kCPU));
      bytes.unsafe_set_device(to->device());
      to->set_data_ptr_noswap(std::move(bytes));
    }
    to->set_nbytes(from->nbytes());
  }
  for (const auto& [ours, alias] : tensors_) {
    const bool has_changed = ours.sizes() != alias.sizes() || ours.strides() != alias.strides();
    if (!ours.is_same(alias) && has_changed)
      ours.unsafeGetTensorImpl()->set_sizes_and_strides(
          alias.sizes(), alias.strides(), alias.storage_offset());
  }
}

const Tensor& Call::leave(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage())
    return tensor;
  for (const auto& [ours, alias] : tensors_)
    if (alias.is_same(tensor)) // an argument given back, as add_ does
      return ours;
  const Device here(kPretend, device());
  auto storage = tensor.storage();
  auto* bytes = storage.unsafeGetStorageImpl();
  for (const auto& [ours, alias] : storages_)
    if (alias.unsafeGetStorageImpl() == bytes) // a view of one
      storage = c10::intrusive_ptr<StorageImpl>::reclaim_copy(ours);
  if (storage.device().is_cpu()) { // nobody has it but the results
    auto counted = bytes->set_data_ptr(c10::DataPtr());
    counted.unsafe_set_device(here);
    bytes->set_data_ptr_noswap(std::move(counted));
    bytes->set_allocator(&memory());
  }
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->_change_backend_component_keys(here);
  impl->set_storage_keep_dtype(std::move(storage));
  return tensor;
}
} // namespace pretend
