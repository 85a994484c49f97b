// Attention: where the CPU would take its flash kernel, so do we, under the name of one of CUDA's
// that torch calls on any device and that DTensor knows how to shard ("efficient attention"). The
// CPU's own name it does not know.
#include "operations.h"

#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>

namespace pretend {

std::tuple<Tensor, Tensor, Tensor, Tensor> attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias, bool,
    double dropout, bool is_causal, std::optional<double> scale) {
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      q, k, v, dropout, is_causal, bias, scale);
  auto seed = at::empty({}, q.options().dtype(at::kLong));
  return {out, logsumexp, seed, seed};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
    const Tensor& out, const Tensor& logsumexp, const Tensor&, const Tensor&, double dropout,
    std::array<bool, 4>, bool is_causal, std::optional<double> scale) {
  std::optional<Tensor> mask;
  if (bias.defined())
    mask = bias;
  auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, q, k, v, out, logsumexp, dropout, is_causal, mask, scale);
  return {grad_q, grad_k, grad_v, Tensor()};
}

namespace {
constexpr int64_t kMath = static_cast<int64_t>(at::SDPBackend::math);
constexpr int64_t kFlash = static_cast<int64_t>(at::SDPBackend::flash_attention);
constexpr int64_t kEfficient = static_cast<int64_t>(at::SDPBackend::efficient_attention);

int64_t choose(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask,
    double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  if (q.unsafeGetTensorImpl()->is_python_dispatch()) // a DTensor
    return mask || dropout > 0 || enable_gqa ? kMath : kEfficient;
  std::optional<Tensor> host_mask;
  if (mask)
    host_mask = host(*mask);
  const auto of_the_host = at::_fused_sdp_choice(
      host(q), host(k), host(v), host_mask, dropout, is_causal, scale, enable_gqa);
  const bool wants_mask_grad = mask && mask->requires_grad();
  return of_the_host == kFlash && !wants_mask_grad ? kEfficient : kMath;
}
} // namespace
} // namespace pretend

namespace at::native {
static auto choose_on_pretend = &pretend::choose;
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, choose_on_pretend)
} // namespace at::native
