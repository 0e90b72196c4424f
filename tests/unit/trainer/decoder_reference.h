// A decoder in float64 with plain loops over whole tensors, in all families: GPT-2 (learned positions,
// LayerNorm, GELU, biases), BLOOM (the same, but ALiBi for positions and a norm after the embedding) and
// Llama (rotary positions, RMSNorm, grouped-query attention, SwiGLU). No parallelism, no fusing, nothing
// shared with what it checks but the table of tensors. Itself proven by finite differences
// (decoder_reference_test.cc).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "reshard/model_spec.h"
#include "tests/unit/trainer/decoder_inputs.h"
#include "trainer/decoder_layer.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

class DecoderReference {
 public:
  using Tensor = std::vector<double>;
  /// What the element of this index is multiplied by: 0 or 1 / (1 - p). The layer of the embedding is 0.
  /// Indices: (first sequence * T + row) * C + channel; in attention ((sequence * H + head) * T + query) * T
  /// + key.
  using Mask = std::function<double(DropoutSite site, std::int64_t layer, std::uint64_t index)>;

  explicit DecoderReference(const reshard::ModelSpec& model)
      : model_(model),
        c_(model.config.hidden),
        heads_(model.config.heads),
        kv_heads_(model.config.kv_heads),
        d_(c_ / heads_) {
    for (std::size_t t = 0; t < model.tensors.size(); ++t) {
      Tensor values(ckpt::element_count(model.tensors[t].shape));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<double>(test_value(model, t, i));
      gradients.emplace_back(values.size(), 0.0);
      parameters.push_back(std::move(values));
    }
  }

  std::vector<Tensor> parameters, gradients;  // by the tensor's number
  Mask mask;                                  // none: no dropout

  /// Sum of losses over the batch; adds scale * gradient to `gradients`.
  double run(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, std::int64_t batch,
             std::int64_t positions, double scale, std::int64_t first_sequence = 0) {
    b_ = batch;
    t_ = positions;
    first_sequence_ = first_sequence;
    const std::int64_t rows = batch * positions;
    const std::size_t embedding = number(Role::embed_tokens, -1);
    const std::optional<std::size_t> table = find(Role::embed_positions, -1);
    Tensor x(size(rows * c_));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < c_; ++c) {
        x[size(r * c_ + c)] = parameters[embedding][size(tokens[size(r)] * c_ + c)];
        if (table) x[size(r * c_ + c)] += parameters[*table][size(r % positions * c_ + c)];
      }
    }
    const Tensor embedded = x;
    if (bloom()) x = norm(Role::embed_norm, Role::embed_norm_bias, -1, embedded);
    drop(DropoutSite::embedding, 0, x);
    std::vector<Kept> kept;
    for (std::int64_t layer = 0; layer < model_.config.layers; ++layer)
      kept.push_back(layer_forward(layer, x));

    const Tensor normed = norm(Role::final_norm, Role::final_norm_bias, -1, x);
    Tensor dnormed(x.size(), 0.0);
    const double loss = head(normed, targets, scale, dnormed);

    Tensor dx = norm_backward(Role::final_norm, Role::final_norm_bias, -1, x, dnormed);
    for (std::int64_t layer = model_.config.layers; layer-- > 0;)
      layer_backward(layer, kept[size(layer)], dx);
    drop(DropoutSite::embedding, 0, dx);
    if (bloom()) dx = norm_backward(Role::embed_norm, Role::embed_norm_bias, -1, embedded, dx);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < c_; ++c) {
        gradients[embedding][size(tokens[size(r)] * c_ + c)] += dx[size(r * c_ + c)];
        if (table) gradients[*table][size(r % positions * c_ + c)] += dx[size(r * c_ + c)];
      }
    }
    return loss;
  }

 private:
  using Role = reshard::Role;
  struct Kept {
    Tensor input, normed1, q, k, v, probabilities, mixed, middle, normed2, gate, up, inner;
  };

  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  /// Nothing if this family has no such tensor.
  std::optional<std::size_t> find(std::optional<Role> role, std::int64_t layer) const {
    if (!role) return std::nullopt;
    for (std::size_t t = 0; t < model_.tensors.size(); ++t) {
      if (model_.tensors[t].role == role && (layer < 0 || model_.tensors[t].layer() == layer)) return t;
    }
    return std::nullopt;
  }
  std::size_t number(Role role, std::int64_t layer) const {
    const auto found = find(role, layer);
    if (!found) throw std::logic_error("no such tensor");
    return *found;
  }
  bool llama() const { return model_.config.arch == "llama"; }
  bool bloom() const { return model_.config.arch == "bloom"; }

  /// Cross entropy of each row's next token: the sum of losses; dnormed and the head's gradient +=.
  double head(const Tensor& normed, std::span<const std::int32_t> targets, double scale, Tensor& dnormed) {
    const std::size_t weight = number(model_.config.tie_embeddings ? Role::embed_tokens : Role::lm_head, -1);
    const std::int64_t vocab = model_.config.vocab;
    double loss = 0;
    for (std::int64_t r = 0; r < b_ * t_; ++r) {
      if (targets[size(r)] < 0) continue;
      Tensor logits(size(vocab), 0.0);
      double sum = 0;
      for (std::int64_t v = 0; v < vocab; ++v) {
        for (std::int64_t c = 0; c < c_; ++c)
          logits[size(v)] += normed[size(r * c_ + c)] * parameters[weight][size(v * c_ + c)];
        sum += std::exp(logits[size(v)]);
      }
      loss += std::log(sum) - logits[size(targets[size(r)])];
      for (std::int64_t v = 0; v < vocab; ++v) {
        const double d = scale * (std::exp(logits[size(v)]) / sum - (v == targets[size(r)] ? 1 : 0));
        for (std::int64_t c = 0; c < c_; ++c) {
          dnormed[size(r * c_ + c)] += d * parameters[weight][size(v * c_ + c)];
          gradients[weight][size(v * c_ + c)] += d * normed[size(r * c_ + c)];
        }
      }
    }
    return loss;
  }

  /// x(rows, C) with elements dropped; its own backward.
  void drop(DropoutSite site, std::int64_t layer, Tensor& x) const {
    if (!mask) return;
    const auto first = static_cast<std::uint64_t>(first_sequence_ * t_ * c_);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= mask(site, layer, first + i);
  }

  /// y(rows, out) = x(rows, in) w^T + b, b where the family has one
  Tensor linear(Role weight, std::optional<Role> bias, std::int64_t layer, const Tensor& x) const {
    const std::size_t t = number(weight, layer);
    const Tensor& w = parameters[t];
    const auto b = find(bias, layer);
    const std::size_t out = model_.tensors[t].shape[0], in = model_.tensors[t].shape[1], rows = x.size() / in;
    Tensor y(rows * out);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        double sum = b ? parameters[*b][o] : 0;
        for (std::size_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
        y[r * out + o] = sum;
      }
    }
    return y;
  }

  Tensor linear_backward(Role weight, std::optional<Role> bias, std::int64_t layer, const Tensor& x,
                         const Tensor& dy) {
    const std::size_t t = number(weight, layer);
    const Tensor& w = parameters[t];
    Tensor& dw = gradients[t];
    const auto b = find(bias, layer);
    const std::size_t out = model_.tensors[t].shape[0], in = model_.tensors[t].shape[1], rows = x.size() / in;
    Tensor dx(x.size(), 0.0);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        const double d = dy[r * out + o];
        if (b) gradients[*b][o] += d;
        for (std::size_t i = 0; i < in; ++i) {
          dx[r * in + i] += d * w[o * in + i];
          dw[o * in + i] += d * x[r * in + i];
        }
      }
    }
    return dx;
  }

  struct Moments {
    double mean, rstd;
  };
  /// RMS norm is layer norm without the mean (and the bias).
  Moments moments(const double* x) const {
    const auto n = static_cast<double>(c_);
    double mean = 0, variance = 0;
    if (!llama()) {
      for (std::int64_t c = 0; c < c_; ++c) mean += x[c] / n;
    }
    for (std::int64_t c = 0; c < c_; ++c) variance += (x[c] - mean) * (x[c] - mean) / n;
    return {mean, 1 / std::sqrt(variance + 1e-5)};
  }

  Tensor norm(Role weight, std::optional<Role> bias, std::int64_t layer, const Tensor& x) const {
    const Tensor& w = parameters[number(weight, layer)];
    const auto b = find(bias, layer);
    Tensor y(x.size());
    for (std::size_t r = 0; r < x.size() / w.size(); ++r) {
      const Moments m = moments(&x[r * w.size()]);
      for (std::size_t c = 0; c < w.size(); ++c)
        y[r * w.size() + c] = (x[r * w.size() + c] - m.mean) * m.rstd * w[c] + (b ? parameters[*b][c] : 0);
    }
    return y;
  }

  Tensor norm_backward(Role weight, std::optional<Role> bias, std::int64_t layer, const Tensor& x,
                       const Tensor& dy) {
    const Tensor& w = parameters[number(weight, layer)];
    Tensor& dw = gradients[number(weight, layer)];
    const auto b = find(bias, layer);
    const std::size_t n = w.size();
    Tensor dx(x.size());
    for (std::size_t r = 0; r < x.size() / n; ++r) {
      const Moments m = moments(&x[r * n]);
      double sum = 0, dot = 0;
      for (std::size_t c = 0; c < n; ++c) {
        const double h = (x[r * n + c] - m.mean) * m.rstd, d = dy[r * n + c];
        dw[c] += d * h;
        if (b) gradients[*b][c] += d;
        if (!llama()) sum += d * w[c] / static_cast<double>(n);
        dot += d * w[c] * h / static_cast<double>(n);
      }
      for (std::size_t c = 0; c < n; ++c) {
        const double h = (x[r * n + c] - m.mean) * m.rstd;
        dx[r * n + c] = m.rstd * (dy[r * n + c] * w[c] - sum - h * dot);
      }
    }
    return dx;
  }

  /// Turns the pairs (i, i + D/2) of each head of x(rows, heads * D) by position * 10000^(-2i/D); backward
  /// the other way.
  void rotate(Tensor& x, std::int64_t heads, double direction) const {
    if (!llama()) return;
    for (std::int64_t r = 0; r < b_ * t_; ++r) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < d_ / 2; ++i) {
          const double angle = direction * static_cast<double>(r % t_) *
                               std::pow(10000.0, -2 * static_cast<double>(i) / static_cast<double>(d_));
          double& one = x[size((r * heads + h) * d_ + i)];
          double& two = x[size((r * heads + h) * d_ + i + d_ / 2)];
          const double turned = one * std::cos(angle) - two * std::sin(angle);
          two = one * std::sin(angle) + two * std::cos(angle);
          one = turned;
        }
      }
    }
  }

  static constexpr double kGelu = 0.79788456080286535588;  // sqrt(2 / pi)
  static double gelu(double x) { return 0.5 * x * (1 + std::tanh(kGelu * (x + 0.044715 * x * x * x))); }
  static double gelu_slope(double x) {
    const double t = std::tanh(kGelu * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGelu * (1 + 3 * 0.044715 * x * x);
  }
  static double logistic(double x) { return 1 / (1 + std::exp(-x)); }

  /// x becomes the layer's output.
  Kept layer_forward(std::int64_t layer, Tensor& x) const {
    Kept k;
    k.input = x;
    k.normed1 = norm(Role::input_norm, Role::input_norm_bias, layer, x);
    k.q = linear(Role::q, Role::q_bias, layer, k.normed1);
    k.k = linear(Role::k, Role::k_bias, layer, k.normed1);
    k.v = linear(Role::v, Role::v_bias, layer, k.normed1);
    rotate(k.q, heads_, 1);
    rotate(k.k, kv_heads_, 1);
    attention(layer, k);
    k.middle = linear(Role::o, Role::o_bias, layer, k.mixed);
    drop(DropoutSite::attention_output, layer, k.middle);
    add(k.middle, x);

    k.normed2 = norm(Role::post_norm, Role::post_norm_bias, layer, k.middle);
    if (llama()) k.gate = linear(Role::gate, std::nullopt, layer, k.normed2);
    k.up = linear(Role::up, Role::up_bias, layer, k.normed2);
    k.inner.resize(k.up.size());
    for (std::size_t i = 0; i < k.up.size(); ++i)
      k.inner[i] = llama() ? k.gate[i] * logistic(k.gate[i]) * k.up[i] : gelu(k.up[i]);
    x = linear(Role::down, Role::down_bias, layer, k.inner);
    drop(DropoutSite::mlp_output, layer, x);
    add(x, k.middle);
    return k;
  }

  /// dx: gradient of the layer's output, then of its input.
  void layer_backward(std::int64_t layer, const Kept& k, Tensor& dx) {
    Tensor dbranch = dx;
    drop(DropoutSite::mlp_output, layer, dbranch);
    Tensor dup = linear_backward(Role::down, Role::down_bias, layer, k.inner, dbranch);
    Tensor dnormed2(dx.size(), 0.0);
    if (llama()) {
      Tensor dgate = dup;
      for (std::size_t i = 0; i < dup.size(); ++i) {
        const double s = logistic(k.gate[i]);
        dgate[i] *= k.up[i] * s * (1 + k.gate[i] * (1 - s));
        dup[i] *= k.gate[i] * s;
      }
      add(dnormed2, linear_backward(Role::gate, std::nullopt, layer, k.normed2, dgate));
    } else {
      for (std::size_t i = 0; i < dup.size(); ++i) dup[i] *= gelu_slope(k.up[i]);
    }
    add(dnormed2, linear_backward(Role::up, Role::up_bias, layer, k.normed2, dup));
    add(dx, norm_backward(Role::post_norm, Role::post_norm_bias, layer, k.middle, dnormed2));

    dbranch = dx;
    drop(DropoutSite::attention_output, layer, dbranch);
    const Tensor dmixed = linear_backward(Role::o, Role::o_bias, layer, k.mixed, dbranch);
    Tensor dq(k.q.size(), 0.0), dk(k.k.size(), 0.0), dv(k.v.size(), 0.0);
    attention_backward(layer, k, dmixed, dq, dk, dv);
    rotate(dq, heads_, -1);
    rotate(dk, kv_heads_, -1);
    Tensor dnormed1 = linear_backward(Role::q, Role::q_bias, layer, k.normed1, dq);
    add(dnormed1, linear_backward(Role::k, Role::k_bias, layer, k.normed1, dk));
    add(dnormed1, linear_backward(Role::v, Role::v_bias, layer, k.normed1, dv));
    add(dx, norm_backward(Role::input_norm, Role::input_norm_bias, layer, k.input, dnormed1));
  }

  /// Fills probabilities (before dropout) and what they mix of the values.
  void attention(std::int64_t layer, Kept& k) const {
    k.probabilities.assign(size(b_ * heads_ * t_ * t_), 0.0);
    k.mixed.assign(k.q.size(), 0.0);
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t t) {
      double* p = &k.probabilities[size(((b * heads_ + h) * t_ + t) * t_)];
      double sum = 0;
      for (std::int64_t u = 0; u <= t; ++u) {
        double score = 0;
        for (std::int64_t i = 0; i < d_; ++i) score += k.q[query(b, t, h, i)] * k.k[key(b, u, h, i)];
        score /= std::sqrt(static_cast<double>(d_));
        if (bloom()) score -= alibi_slope(heads_, h) * static_cast<double>(t - u);
        sum += p[u] = std::exp(score);
      }
      for (std::int64_t u = 0; u <= t; ++u) {
        p[u] /= sum;
        const double kept = p[u] * factor(layer, b, h, t, u);
        for (std::int64_t i = 0; i < d_; ++i) k.mixed[query(b, t, h, i)] += kept * k.v[key(b, u, h, i)];
      }
    });
  }

  void attention_backward(std::int64_t layer, const Kept& k, const Tensor& dmixed, Tensor& dq, Tensor& dk,
                          Tensor& dv) const {
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t t) {
      const double* p = &k.probabilities[size(((b * heads_ + h) * t_ + t) * t_)];
      Tensor dp(size(t_), 0.0);
      double mean = 0;
      for (std::int64_t u = 0; u <= t; ++u) {
        const double f = factor(layer, b, h, t, u);
        for (std::int64_t i = 0; i < d_; ++i) {
          dp[size(u)] += f * dmixed[query(b, t, h, i)] * k.v[key(b, u, h, i)];
          dv[key(b, u, h, i)] += f * p[u] * dmixed[query(b, t, h, i)];
        }
        mean += p[u] * dp[size(u)];
      }
      for (std::int64_t u = 0; u <= t; ++u) {
        const double ds = p[u] * (dp[size(u)] - mean) / std::sqrt(static_cast<double>(d_));
        for (std::int64_t i = 0; i < d_; ++i) {
          dq[query(b, t, h, i)] += ds * k.k[key(b, u, h, i)];
          dk[key(b, u, h, i)] += ds * k.q[query(b, t, h, i)];
        }
      }
    });
  }

  /// Of head h of n, as get_slopes of the authors' code (Press et al. 2022) has it.
  static double alibi_slope(std::int64_t n, std::int64_t h) {
    std::int64_t power = 1;
    while (2 * power <= n) power *= 2;
    if (h >= power) return alibi_slope(2 * power, 2 * (h - power));
    const double ratio = std::pow(2.0, -std::pow(2.0, 3 - std::log2(static_cast<double>(power))));
    return ratio * std::pow(ratio, static_cast<double>(h));
  }

  /// What dropout multiplies a probability by.
  double factor(std::int64_t layer, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t u) const {
    if (!mask) return 1;
    const std::int64_t index = (((first_sequence_ + b) * heads_ + h) * t_ + t) * t_ + u;
    return mask(DropoutSite::attention, layer, static_cast<std::uint64_t>(index));
  }

  template <typename Visit>
  void for_each_query(const Visit& visit) const {
    for (std::int64_t b = 0; b < b_; ++b)
      for (std::int64_t h = 0; h < heads_; ++h)
        for (std::int64_t t = 0; t < t_; ++t) visit(b, h, t);
  }
  /// Index of channel i of head h at position t of sequence b in (B, T, H, D).
  std::size_t query(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t i) const {
    return size(((b * t_ + t) * heads_ + h) * d_ + i);
  }
  /// The same in (B, T, KV, D) for the KV head that head h shares with its neighbours.
  std::size_t key(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t i) const {
    return size(((b * t_ + t) * kv_heads_ + h / (heads_ / kv_heads_)) * d_ + i);
  }
  static void add(Tensor& y, const Tensor& x) {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }

  reshard::ModelSpec model_;
  std::int64_t c_, heads_, kv_heads_, d_;
  std::int64_t b_ = 0, t_ = 0, first_sequence_ = 0;  // of the present run
};

/// The masks of a run of this seed, by the definition in kernels/ops.h.
inline DecoderReference::Mask philox_mask(double dropout, std::uint64_t seed) {
  return [p = static_cast<double>(static_cast<float>(dropout)), seed](DropoutSite site, std::int64_t layer,
                                                                      std::uint64_t index) {
    const kernels::PhiloxWords words = kernels::philox(seed, dropout_purpose(layer, site), index / 4);
    return static_cast<double>(words.w[index % 4]) < p * 0x1p32 ? 0 : 1 / (1 - p);
  };
}

/// Euclidean norm of all tensors together.
inline double norm_of(const std::vector<DecoderReference::Tensor>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors)
    for (double x : tensor) sum += x * x;
  return std::sqrt(sum);
}

/// Distance of the gradient that a rank holds of a box of a tensor from the reference, relative to the norm
/// of the tensor's gradient. A tensor whose gradient vanishes by symmetry (k's bias: softmax ignores it) is
/// measured against a hundredth of the whole gradient.
inline double gradient_error(const DecoderReference& reference, const Parameter& p, const ckpt::Box& box,
                             const float* grad) {
  const DecoderReference::Tensor& expected = reference.gradients[p.placed.tensor];
  double norm = 0, error = 0;
  for (double x : expected) norm += x * x;
  for_each_element(*p.spec, box, [&](std::uint64_t global, std::uint64_t local) {
    const double d = static_cast<double>(grad[local]) - expected[global];
    error += d * d;
  });
  return std::sqrt(error) / std::max(std::sqrt(norm), 1e-2 * norm_of(reference.gradients));
}

}  // namespace shardwright::trainer
