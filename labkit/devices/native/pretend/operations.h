// The operations that are written here, and what was copied between host and device.
#pragma once
#include "aliases.h"

#include <array>
#include <atomic>
#include <optional>

namespace pretend {

// The one way between the two memories: counted, and as slow as it is said to be.
struct Link {
  std::atomic<int64_t> to_device_bytes{0};
  std::atomic<int64_t> to_host_bytes{0};
  std::atomic<int64_t> crossings{0};
  std::atomic<int64_t> crossing_ns{0}; // by the clock
  std::atomic<double> bytes_per_s{0}; // 0: as fast as the copy itself
  std::atomic<double> latency_s{0};
};
extern Link host_link;

// copies.cpp
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking);
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to);
at::Scalar local_scalar_dense(const Tensor& self);

// attention.cpp
std::tuple<Tensor, Tensor, Tensor, Tensor> attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
    bool compute_log_sumexp, double dropout, bool is_causal, std::optional<double> scale);
std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
    const Tensor& out, const Tensor& logsumexp, const Tensor& seed, const Tensor& offset,
    double dropout, std::array<bool, 4> wanted, bool is_causal, std::optional<double> scale);
} // namespace pretend
