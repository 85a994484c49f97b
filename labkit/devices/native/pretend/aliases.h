// The same bytes, seen as a tensor of the host.
#pragma once
#include "device.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace pretend {
using at::Tensor, c10::Storage;

inline bool is_pretend(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kPretend;
}

// A tensor of the given key over a storage, with the shape, strides and bits of another.
Tensor tensor_over(Storage storage, c10::DispatchKey key, const Tensor& like);

// A storage of the host over the bytes of one of the device. It does not keep them alive: it is for
// one call of a kernel.
Storage host_storage(const Storage& storage);

// A tensor of the host over the bytes of one of the device; a tensor of the host as it is.
Tensor host(const Tensor& tensor);
// One call of a CPU kernel: aliases of its arguments are handed in, and its results taken out.
class Call {
 public:
  explicit Call(const std::string& op) : op_(op) {}

  // Which device this is about. Throws where it is about two.
  void look_at(c10::DeviceIndex device);
  void look_at(const Tensor& tensor);
  c10::DeviceIndex device() const; // the current one, if nothing names another

  // Throws torch's error about two devices.
  [[noreturn]] void refuse(const c10::Device& other, const std::string& argument) const;

  const Tensor& enter(const Tensor& tensor); // the alias with which the kernel works
  void settle();                             // after the kernel: what it did to aliases, done to ours
  const Tensor& leave(const Tensor& tensor); // a result, made a tensor of the device

 private:
  const std::string& op_;
  c10::DeviceIndex device_ = -1;
  // the device's and its alias; a tensor on the host is its own
  c10::SmallVector<std::pair<c10::StorageImpl*, Storage>, 6> storages_;
  c10::SmallVector<std::pair<Tensor, Tensor>, 6> tensors_;
};
} // namespace pretend
