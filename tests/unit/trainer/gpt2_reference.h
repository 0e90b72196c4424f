// GPT-2 in float64 with plain loops over whole tensors: no parallelism, no fusing, nothing shared with what
// it checks but the table of tensors. Itself proven by finite differences (gpt2_test.cc).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "reshard/model_spec.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

/// The model of a test, and values for its tensors: a pure function of tensor and element, so large that no
/// nonlinearity is idle.
inline reshard::ModelSpec test_model(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                                     std::int64_t ffn, std::int64_t vocab, std::int64_t seq_len,
                                     bool tied = true) {
  reshard::ModelConfig config;
  config.layers = layers;
  config.hidden = hidden;
  config.heads = heads;
  config.ffn = ffn;
  config.vocab = vocab;
  config.seq_len = seq_len;
  config.tie_embeddings = tied;
  return reshard::build_model(config);
}

/// Uniform in [-1, 1) by a 64-bit mix of (stream, i).
inline double test_uniform(std::uint64_t stream, std::uint64_t i) {
  std::uint64_t h = (stream + 1) * 0x9E3779B97F4A7C15U + i * 0xBF58476D1CE4E5B9U;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9U;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBU;
  h ^= h >> 31;
  return static_cast<double>(h >> 11) * 0x1p-52 - 1.0;
}

inline float test_value(const reshard::ModelSpec& model, std::size_t tensor, std::uint64_t i) {
  const reshard::TensorSpec& spec = model.tensors[tensor];
  const double u = test_uniform(tensor, i);
  using reshard::Role;
  if (spec.role == Role::input_norm || spec.role == Role::post_norm || spec.role == Role::final_norm)
    return static_cast<float>(1 + 0.4 * u);
  if (spec.shape.size() == 1) return static_cast<float>(0.3 * u);
  return static_cast<float>(u * std::sqrt(3.0 / static_cast<double>(spec.shape[1])));
}

/// Calls visit(global element index, index in the box) for each element of a box of one or two dimensions.
template <typename Visit>
void for_each_element(const reshard::TensorSpec& spec, const ckpt::Box& box, const Visit& visit) {
  const bool matrix = spec.shape.size() == 2;
  const std::uint64_t columns = matrix ? box.shape[1] : 1;
  const std::uint64_t row_stride = matrix ? spec.shape[1] : 1;
  for (std::uint64_t r = 0; r < box.shape[0]; ++r)
    for (std::uint64_t c = 0; c < columns; ++c)
      visit((box.offset[0] + r) * row_stride + (matrix ? box.offset[1] + c : 0), r * columns + c);
}

inline void fill_parameters(Parameters& parameters) {
  for (Parameter& p : parameters.all()) {
    for_each_element(*p.spec, p.placed.holds, [&](std::uint64_t global, std::uint64_t local) {
      p.value[local] = test_value(parameters.model(), p.placed.tensor, global);
    });
  }
}

/// A global batch of `samples` sequences; about a fifth of the targets is masked, an unequal number in each
/// sequence, if asked.
struct TestBatch {
  std::vector<std::int32_t> tokens, targets;
  std::int64_t samples, positions;

  TestBatch(std::int64_t vocab, std::int64_t sample_count, std::int64_t position_count, bool masked)
      : samples(sample_count), positions(position_count) {
    for (std::int64_t i = 0; i < samples * positions; ++i) {
      const auto at = static_cast<std::uint64_t>(i);
      const auto draw = [&](std::uint64_t stream) {
        const double u = (test_uniform(stream, at) + 1) / 2;
        return static_cast<std::int32_t>(u * static_cast<double>(vocab));
      };
      tokens.push_back(draw(1000));
      const double share = 0.4 * static_cast<double>(i / positions) / static_cast<double>(samples);
      const bool hidden = masked && (test_uniform(1002, at) + 1) / 2 < share;
      targets.push_back(hidden ? -1 : draw(1001));
    }
  }
  std::span<const std::int32_t> part(const std::vector<std::int32_t>& all, std::int64_t first,
                                     std::int64_t count) const {
    return std::span(all).subspan(static_cast<std::size_t>(first * positions),
                                  static_cast<std::size_t>(count * positions));
  }
};

class Gpt2Reference {
 public:
  using Tensor = std::vector<double>;

  explicit Gpt2Reference(const reshard::ModelSpec& model) : model_(model), c_(model.config.hidden) {
    for (std::size_t t = 0; t < model.tensors.size(); ++t) {
      Tensor values(ckpt::element_count(model.tensors[t].shape));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<double>(test_value(model, t, i));
      gradients.emplace_back(values.size(), 0.0);
      parameters.push_back(std::move(values));
    }
  }

  std::vector<Tensor> parameters, gradients;  // by the tensor's number

  /// Sum of losses over the batch; adds scale * gradient to `gradients`.
  double run(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, std::int64_t batch,
             std::int64_t positions, double scale) {
    const std::int64_t rows = batch * positions;
    const std::int64_t vocab = model_.config.vocab;
    const std::size_t embedding = number(reshard::Role::embed_tokens, -1);
    const std::size_t table = number(reshard::Role::embed_positions, -1);
    const std::size_t head = model_.config.tie_embeddings ? embedding : number(reshard::Role::lm_head, -1);
    Tensor x(size(rows * c_));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < c_; ++c)
        x[size(r * c_ + c)] = parameters[embedding][size(tokens[size(r)] * c_ + c)] +
                              parameters[table][size(r % positions * c_ + c)];
    std::vector<Kept> kept;
    for (std::int64_t layer = 0; layer < model_.config.layers; ++layer)
      kept.push_back(layer_forward(layer, x, batch, positions));
    const Tensor normed = norm(reshard::Role::final_norm, reshard::Role::final_norm_bias, -1, x);

    double loss = 0;
    Tensor dnormed(x.size(), 0.0);
    for (std::int64_t r = 0; r < rows; ++r) {
      if (targets[size(r)] < 0) continue;
      Tensor logits(size(vocab), 0.0);
      double sum = 0;
      for (std::int64_t v = 0; v < vocab; ++v) {
        for (std::int64_t c = 0; c < c_; ++c)
          logits[size(v)] += normed[size(r * c_ + c)] * parameters[head][size(v * c_ + c)];
        sum += std::exp(logits[size(v)]);
      }
      loss += std::log(sum) - logits[size(targets[size(r)])];
      for (std::int64_t v = 0; v < vocab; ++v) {
        const double d = scale * (std::exp(logits[size(v)]) / sum - (v == targets[size(r)] ? 1 : 0));
        for (std::int64_t c = 0; c < c_; ++c) {
          dnormed[size(r * c_ + c)] += d * parameters[head][size(v * c_ + c)];
          gradients[head][size(v * c_ + c)] += d * normed[size(r * c_ + c)];
        }
      }
    }
    Tensor dx = norm_backward(reshard::Role::final_norm, reshard::Role::final_norm_bias, -1, x, dnormed);
    for (std::int64_t layer = model_.config.layers; layer-- > 0;)
      layer_backward(layer, kept[size(layer)], dx, batch, positions);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < c_; ++c) {
        gradients[embedding][size(tokens[size(r)] * c_ + c)] += dx[size(r * c_ + c)];
        gradients[table][size(r % positions * c_ + c)] += dx[size(r * c_ + c)];
      }
    }
    return loss;
  }

 private:
  struct Kept {
    Tensor input, normed1, q, k, v, probabilities, mixed, middle, normed2, up, gelu;
  };

  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  std::size_t number(reshard::Role role, std::int64_t layer) const {
    for (std::size_t t = 0; t < model_.tensors.size(); ++t) {
      if (model_.tensors[t].role == role && (layer < 0 || model_.tensors[t].layer() == layer)) return t;
    }
    throw std::logic_error("no such tensor");
  }

  /// y(rows, out) = x(rows, in) w^T + b
  Tensor linear(reshard::Role weight, reshard::Role bias, std::int64_t layer, const Tensor& x) const {
    const Tensor& w = parameters[number(weight, layer)];
    const Tensor& b = parameters[number(bias, layer)];
    const std::size_t out = b.size(), in = w.size() / out, rows = x.size() / in;
    Tensor y(rows * out);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        double sum = b[o];
        for (std::size_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
        y[r * out + o] = sum;
      }
    }
    return y;
  }

  Tensor linear_backward(reshard::Role weight, reshard::Role bias, std::int64_t layer, const Tensor& x,
                         const Tensor& dy) {
    const Tensor& w = parameters[number(weight, layer)];
    Tensor& dw = gradients[number(weight, layer)];
    Tensor& db = gradients[number(bias, layer)];
    const std::size_t out = db.size(), in = w.size() / out, rows = x.size() / in;
    Tensor dx(x.size(), 0.0);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        const double d = dy[r * out + o];
        db[o] += d;
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
  Moments moments(const double* x) const {
    double mean = 0, variance = 0;
    for (std::int64_t c = 0; c < c_; ++c) mean += x[c] / static_cast<double>(c_);
    for (std::int64_t c = 0; c < c_; ++c) variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(c_);
    return {mean, 1 / std::sqrt(variance + 1e-5)};
  }

  Tensor norm(reshard::Role weight, reshard::Role bias, std::int64_t layer, const Tensor& x) const {
    const Tensor& w = parameters[number(weight, layer)];
    const Tensor& b = parameters[number(bias, layer)];
    Tensor y(x.size());
    for (std::size_t r = 0; r < x.size() / w.size(); ++r) {
      const Moments m = moments(&x[r * w.size()]);
      for (std::size_t c = 0; c < w.size(); ++c)
        y[r * w.size() + c] = (x[r * w.size() + c] - m.mean) * m.rstd * w[c] + b[c];
    }
    return y;
  }

  Tensor norm_backward(reshard::Role weight, reshard::Role bias, std::int64_t layer, const Tensor& x,
                       const Tensor& dy) {
    const Tensor& w = parameters[number(weight, layer)];
    Tensor& dw = gradients[number(weight, layer)];
    Tensor& db = gradients[number(bias, layer)];
    const std::size_t n = w.size();
    Tensor dx(x.size());
    for (std::size_t r = 0; r < x.size() / n; ++r) {
      const Moments m = moments(&x[r * n]);
      double sum = 0, dot = 0;
      for (std::size_t c = 0; c < n; ++c) {
        const double h = (x[r * n + c] - m.mean) * m.rstd, d = dy[r * n + c];
        dw[c] += d * h;
        db[c] += d;
        sum += d * w[c] / static_cast<double>(n);
        dot += d * w[c] * h / static_cast<double>(n);
      }
      for (std::size_t c = 0; c < n; ++c) {
        const double h = (x[r * n + c] - m.mean) * m.rstd;
        dx[r * n + c] = m.rstd * (dy[r * n + c] * w[c] - sum - h * dot);
      }
    }
    return dx;
  }

  static constexpr double kGelu = 0.79788456080286535588;  // sqrt(2 / pi)
  static double gelu(double x) { return 0.5 * x * (1 + std::tanh(kGelu * (x + 0.044715 * x * x * x))); }
  static double gelu_slope(double x) {
    const double t = std::tanh(kGelu * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGelu * (1 + 3 * 0.044715 * x * x);
  }

  /// x becomes the layer's output.
  Kept layer_forward(std::int64_t layer, Tensor& x, std::int64_t batch, std::int64_t positions) const {
    using reshard::Role;
    Kept k;
    k.input = x;
    k.normed1 = norm(Role::input_norm, Role::input_norm_bias, layer, x);
    k.q = linear(Role::q, Role::q_bias, layer, k.normed1);
    k.k = linear(Role::k, Role::k_bias, layer, k.normed1);
    k.v = linear(Role::v, Role::v_bias, layer, k.normed1);
    const std::int64_t heads = model_.config.heads, d = c_ / heads;
    k.probabilities.assign(size(batch * heads * positions * positions), 0.0);
    k.mixed.assign(x.size(), 0.0);
    for_each_query(batch, positions, [&](std::int64_t b, std::int64_t h, std::int64_t t) {
      double* p = &k.probabilities[size(((b * heads + h) * positions + t) * positions)];
      double sum = 0;
      for (std::int64_t u = 0; u <= t; ++u) {
        double score = 0;
        for (std::int64_t i = 0; i < d; ++i)
          score += k.q[at(b, t, h, i, positions)] * k.k[at(b, u, h, i, positions)];
        sum += p[u] = std::exp(score / std::sqrt(static_cast<double>(d)));
      }
      for (std::int64_t u = 0; u <= t; ++u) {
        p[u] /= sum;
        for (std::int64_t i = 0; i < d; ++i)
          k.mixed[at(b, t, h, i, positions)] += p[u] * k.v[at(b, u, h, i, positions)];
      }
    });
    k.middle = linear(Role::o, Role::o_bias, layer, k.mixed);
    add(k.middle, x);
    k.normed2 = norm(Role::post_norm, Role::post_norm_bias, layer, k.middle);
    k.up = linear(Role::up, Role::up_bias, layer, k.normed2);
    k.gelu = k.up;
    for (double& value : k.gelu) value = gelu(value);
    x = linear(Role::down, Role::down_bias, layer, k.gelu);
    add(x, k.middle);
    return k;
  }

  /// dx: gradient of the layer's output, then of its input.
  void layer_backward(std::int64_t layer, const Kept& k, Tensor& dx, std::int64_t batch,
                      std::int64_t positions) {
    using reshard::Role;
    Tensor dup = linear_backward(Role::down, Role::down_bias, layer, k.gelu, dx);
    for (std::size_t i = 0; i < dup.size(); ++i) dup[i] *= gelu_slope(k.up[i]);
    const Tensor dnormed2 = linear_backward(Role::up, Role::up_bias, layer, k.normed2, dup);
    add(dx, norm_backward(Role::post_norm, Role::post_norm_bias, layer, k.middle, dnormed2));

    const Tensor dmixed = linear_backward(Role::o, Role::o_bias, layer, k.mixed, dx);
    Tensor dq(dx.size(), 0.0), dk(dx.size(), 0.0), dv(dx.size(), 0.0);
    const std::int64_t heads = model_.config.heads, d = c_ / heads;
    for_each_query(batch, positions, [&](std::int64_t b, std::int64_t h, std::int64_t t) {
      const double* p = &k.probabilities[size(((b * heads + h) * positions + t) * positions)];
      Tensor dp(size(positions), 0.0);
      double mean = 0;
      for (std::int64_t u = 0; u <= t; ++u) {
        for (std::int64_t i = 0; i < d; ++i) {
          dp[size(u)] += dmixed[at(b, t, h, i, positions)] * k.v[at(b, u, h, i, positions)];
          dv[at(b, u, h, i, positions)] += p[u] * dmixed[at(b, t, h, i, positions)];
        }
        mean += p[u] * dp[size(u)];
      }
      for (std::int64_t u = 0; u <= t; ++u) {
        const double ds = p[u] * (dp[size(u)] - mean) / std::sqrt(static_cast<double>(d));
        for (std::int64_t i = 0; i < d; ++i) {
          dq[at(b, t, h, i, positions)] += ds * k.k[at(b, u, h, i, positions)];
          dk[at(b, u, h, i, positions)] += ds * k.q[at(b, t, h, i, positions)];
        }
      }
    });
    Tensor dnormed1 = linear_backward(Role::q, Role::q_bias, layer, k.normed1, dq);
    add(dnormed1, linear_backward(Role::k, Role::k_bias, layer, k.normed1, dk));
    add(dnormed1, linear_backward(Role::v, Role::v_bias, layer, k.normed1, dv));
    add(dx, norm_backward(Role::input_norm, Role::input_norm_bias, layer, k.input, dnormed1));
  }

  template <typename Visit>
  void for_each_query(std::int64_t batch, std::int64_t positions, const Visit& visit) const {
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t h = 0; h < model_.config.heads; ++h)
        for (std::int64_t t = 0; t < positions; ++t) visit(b, h, t);
  }
  /// Index of channel i of head h at position t of sequence b in (B, T, H, D).
  std::size_t at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t i,
                 std::int64_t positions) const {
    return size((b * positions + t) * c_ + h * (c_ / model_.config.heads) + i);
  }
  static void add(Tensor& y, const Tensor& x) {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }

  reshard::ModelSpec model_;
  std::int64_t c_;
};

/// Euclidean norm of all tensors together.
inline double norm_of(const std::vector<Gpt2Reference::Tensor>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors)
    for (double x : tensor) sum += x * x;
  return std::sqrt(sum);
}

/// Distance of the gradient that a rank holds of a box of a tensor from the reference, relative to the norm
/// of the tensor's gradient. A tensor whose gradient vanishes by symmetry (k's bias: softmax ignores it) is
/// measured against a hundredth of the whole gradient.
inline double gradient_error(const Gpt2Reference& reference, const Parameter& p, const ckpt::Box& box,
                             const float* grad) {
  const Gpt2Reference::Tensor& expected = reference.gradients[p.placed.tensor];
  double norm = 0, error = 0;
  for (double x : expected) norm += x * x;
  for_each_element(*p.spec, box, [&](std::uint64_t global, std::uint64_t local) {
    const double d = static_cast<double>(grad[local]) - expected[global];
    error += d * d;
  });
  return std::sqrt(error) / std::max(std::sqrt(norm), 1e-2 * norm_of(reference.gradients));
}

}  // namespace shardwright::trainer
