// The device's memory: what lies there is counted and limited.
#pragma once
#include "device.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/flat_hash_map.h>

#include <array>
#include <mutex>
#include <unordered_map>

namespace pretend {

// A c10::DeviceAllocator, so that torch.accelerator's memory functions read its counts. There is no
// cache: what is freed is gone, and reserved bytes are allocated bytes.
class Memory final : public c10::DeviceAllocator {
 public:
  // Bytes on a device, 512 more at a time as on CUDA. `tag` is the device that the bytes bear:
  // the host's while a CPU kernel works with them. Throws torch.OutOfMemoryError beyond the limit.
  c10::DataPtr allocate_on(c10::DeviceIndex device, size_t num_bytes, c10::Device tag);
  static void release(void* bytes); // frees any bytes of c10::alloc_cpu, counted or not
  void set_limit(size_t num_bytes); // of every device

  c10::DataPtr allocate(size_t num_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t num_bytes) const override;

  bool initialized() override;
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

 private:
  struct Block {
    c10::DeviceIndex device;
    size_t size_bytes, requested_bytes;
  };
  void check_room(c10::DeviceIndex device, size_t num_bytes);

  std::mutex mutex_;
  ska::flat_hash_map<void*, Block> live_;
  std::array<c10::CachingDeviceAllocator::DeviceStats, kMostDevices> stats_;
  size_t limit_bytes_ = 0;
};
Memory& memory();

// While this lives, the thread runs a CPU kernel for the device: what the kernel allocates, its
// results and its workspaces, is the device's memory.
class Computing {
 public:
  explicit Computing(c10::DeviceIndex device);
  ~Computing();

 private:
  c10::DeviceIndex before_;
};

at::HostAllocator& pinned_memory();
bool is_pinned(const void* bytes);
} // namespace pretend
