// The allocator of the device, and the CPU's allocator while a kernel works for the device.
#include "memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

namespace pretend {
using c10::DataPtr, c10::Device, c10::DeviceIndex;
using c10::CachingAllocator::format_size;
using Stats = c10::CachingDeviceAllocator::DeviceStats;

namespace {
constexpr size_t kRoundBytes = 512;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

thread_local DeviceIndex computing = -1; // the device for which a CPU kernel runs, or -1

// The counts that are numbers of blocks, and those that are their bytes.
std::array<c10::CachingAllocator::Stat*, 3> block_counts(Stats& stats) {
  return {&stats.allocation[kAll], &stats.active[kAll], &stats.segment[kAll]};
}
std::array<c10::CachingAllocator::Stat*, 3> byte_counts(Stats& stats) {
  return {&stats.allocated_bytes[kAll], &stats.active_bytes[kAll], &stats.reserved_bytes[kAll]};
}
std::vector<c10::CachingAllocator::Stat*> all_counts(Stats& stats) {
  std::vector<c10::CachingAllocator::Stat*> all{&stats.requested_bytes[kAll]};
  for (auto* count : block_counts(stats))
    all.push_back(count);
  for (auto* count : byte_counts(stats))
    all.push_back(count);
  return all;
}
} // namespace

Memory& memory() {
  static auto* made = new Memory; // never destroyed: tensors may outlive everything
  return *made;
}

DataPtr Memory::allocate_on(DeviceIndex device, size_t requested_bytes, Device tag) {
  if (!requested_bytes)
    return {nullptr, nullptr, &Memory::release, tag};
  const size_t size_bytes = (requested_bytes + kRoundBytes - 1) / kRoundBytes * kRoundBytes;
  std::lock_guard<std::mutex> lock(mutex_);
  check_room(device, size_bytes);
  void* bytes = c10::alloc_cpu(size_bytes);
  live_[bytes] = {device, size_bytes, requested_bytes};
  auto& stats = stats_[device];
  for (auto* count : block_counts(stats))
    count->increase(1);
  for (auto* count : byte_counts(stats))
    count->increase(size_bytes);
  stats.requested_bytes[kAll].increase(requested_bytes);
  stats.num_device_alloc++;
  return {bytes, bytes, &Memory::release, tag};
}

void Memory::check_room(DeviceIndex device, size_t size_bytes) {
  auto& stats = stats_[device];
  const size_t used_bytes = stats.allocated_bytes[kAll].current;
  if (used_bytes + size_bytes <= limit_bytes_)
    return;
  stats.num_ooms++;
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "pretend out of memory. Tried to allocate ", format_size(size_bytes),
      ". Device ", name(device), " has a total capacity of ", format_size(limit_bytes_),
      " of which ", format_size(limit_bytes_ - std::min(used_bytes, limit_bytes_)),
      " is free. Of the allocated memory ", format_size(used_bytes),
      " is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.");
}

void Memory::release(void* bytes) {
  if (!bytes)
    return;
  auto& all = memory();
  {
    std::lock_guard<std::mutex> lock(all.mutex_);
    if (auto found = all.live_.find(bytes); found != all.live_.end()) {
      const Block block = found->second;
      all.live_.erase(found);
      auto& stats = all.stats_[block.device];
      for (auto* count : block_counts(stats))
        count->decrease(1);
      for (auto* count : byte_counts(stats))
        count->decrease(block.size_bytes);
      stats.requested_bytes[kAll].decrease(block.requested_bytes);
      stats.num_device_free++;
    }
  }
  c10::free_cpu(bytes);
}

void Memory::set_limit(size_t num_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  limit_bytes_ = num_bytes;
}

DataPtr Memory::allocate(size_t num_bytes) {
  return allocate_on(current, num_bytes, Device(kPretend, current));
}
c10::DeleterFnPtr Memory::raw_deleter() const {
  return &Memory::release;
}
void Memory::copy_data(void* to, const void* from, size_t num_bytes) const {
  default_copy_data(to, from, num_bytes);
}

// What torch.accelerator asks.
bool Memory::initialized() {
  return true;
}
Stats Memory::getDeviceStats(DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_.at(device);
}
void Memory::resetAccumulatedStats(DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto* count : all_counts(stats_.at(device)))
    count->reset_accumulated();
}
void Memory::resetPeakStats(DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto* count : all_counts(stats_.at(device)))
    count->reset_peak();
}
std::pair<size_t, size_t> Memory::getMemoryInfo(DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t used_bytes = stats_.at(device).allocated_bytes[kAll].current;
  return {limit_bytes_ - std::min(used_bytes, limit_bytes_), limit_bytes_};
}

Computing::Computing(DeviceIndex device) : before_(computing) {
  computing = device;
}
Computing::~Computing() {
  computing = before_;
}

namespace {

// The CPU's allocator: the one that there was before, or the device's.
struct HostMemory final : c10::Allocator {
  c10::Allocator* plain = c10::GetCPUAllocator();

  DataPtr allocate(size_t num_bytes) override {
    if (computing < 0)
      return plain->allocate(num_bytes);
    return memory().allocate_on(computing, num_bytes, c10::kCPU);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &Memory::release;
  }
  bool is_simple_data_ptr(const DataPtr& data) const override {
    return plain->is_simple_data_ptr(data);
  }
  void copy_data(void* to, const void* from, size_t num_bytes) const override {
    default_copy_data(to, from, num_bytes);
  }
};

// Pinned memory: host memory that knows that it is pinned.
struct Pinned final : at::HostAllocator {
  std::mutex mutex;
  std::unordered_map<void*, size_t> live; // where it begins -> how many bytes

  static void release(void* bytes);
  DataPtr allocate(size_t num_bytes) override {
    void* bytes = c10::alloc_cpu(std::max<size_t>(num_bytes, 1));
    std::lock_guard<std::mutex> lock(mutex);
    live[bytes] = num_bytes;
    return {bytes, bytes, &Pinned::release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &Pinned::release;
  }
  void copy_data(void* to, const void* from, size_t num_bytes) const override {
    default_copy_data(to, from, num_bytes);
  }
  bool record_event(void*, void*, c10::Stream) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    return {};
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

Pinned& pinned() {
  static auto* made = new Pinned;
  return *made;
}
void Pinned::release(void* bytes) {
  {
    std::lock_guard<std::mutex> lock(pinned().mutex);
    pinned().live.erase(bytes);
  }
  c10::free_cpu(bytes);
}
} // namespace

at::HostAllocator& pinned_memory() {
  return pinned();
}

bool is_pinned(const void* at) {
  std::lock_guard<std::mutex> lock(pinned().mutex);
  for (const auto& [bytes, num_bytes] : pinned().live)
    if (at >= bytes && at < static_cast<char*>(bytes) + num_bytes)
      return true;
  return false;
}

void install_memory() {
  c10::SetAllocator(kPretend, &memory());
  c10::SetCPUAllocator(new HostMemory, /*priority=*/100);
  at::setHostAllocator(kPretend, &pinned_memory());
}
} // namespace pretend
