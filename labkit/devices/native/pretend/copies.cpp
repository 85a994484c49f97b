// Copies between host and device.
#include "operations.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <chrono>
#include <thread>

namespace pretend {
Link host_link;

namespace {

// One crossing of the link, from now to the end of its scope. It lasts as long as the link says, or
// as the real copy if that is slower.
class Crossing {
 public:
  Crossing(std::atomic<int64_t>& way, int64_t num_bytes) : num_bytes_(num_bytes) {
    way += num_bytes;
    host_link.crossings++;
  }
  ~Crossing() {
    double stated_s = host_link.latency_s;
    if (const double bytes_per_s = host_link.bytes_per_s; bytes_per_s > 0)
      stated_s += num_bytes_ / bytes_per_s;
    if (stated_s > 0)
      std::this_thread::sleep_until(began_ + std::chrono::duration<double>(stated_s));
    const auto took = std::chrono::steady_clock::now() - began_;
    host_link.crossing_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  int64_t num_bytes_;
};
} // namespace

// Where the two have different types, torch converts on the host: before a copy to the device,
// after a copy from it.
Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::optional<Crossing> crossing;
  if (!is_pretend(from))
    crossing.emplace(host_link.to_device_bytes, to.numel() * to.itemsize());
  else if (!is_pretend(to))
    crossing.emplace(host_link.to_host_bytes, to.numel() * from.itemsize());
  host(to).copy_(host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes())
    to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// A number for Python: x.item(), bool(x), and whatever has to look at a value.
at::Scalar local_scalar_dense(const Tensor& self) {
  const Crossing crossing(host_link.to_host_bytes, self.itemsize());
  return host(self).item();
}
} // namespace pretend
