// What a reshard changes of the values, each only when it was asked for: data types of kinds, rows of the
// vocabulary, whether the embeddings are tied.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/contents.h"
#include "reshard/model_spec.h"

namespace shardwright::reshard {

enum class Tie : std::uint8_t { kept, tie, untie };

struct Conversion {
  bool weights_only = false;                      // keep the kind `param` alone
  std::map<std::string, ckpt::DType> casts = {};  // by kind of state
  /// Rows of the embeddings. Rows beyond the source's are new: of `param` the mean of those kept, summed in
  /// double in the order of rows; zero of all other kinds.
  std::optional<std::int64_t> vocab = {};
  /// untie: lm_head begins as a copy of the embeddings, their moments too. tie: lm_head is dropped, which its
  /// values must allow (check_tie).
  Tie tie = Tie::kept;
};

/// Adds "KIND=DTYPE" (fp32, bf16, fp16 or fp64, also as the files name them). Error(usage) for anything else,
/// and for a kind that was named before.
void add_cast(Conversion& conversion, const std::string& text);

/// The same text for the same conversion.
std::string to_string(const Conversion& conversion);

/// The model of the target. Error(usage) for a vocabulary that it cannot have, and for what is tied or untied
/// already.
ModelConfig converted(const ModelConfig& source, const Conversion& conversion);

/// Error(usage) for a cast of a kind that the source does not have or that is not kept, or of one that is not
/// floating-point.
void check_casts(const ckpt::Manifest& source, const Conversion& conversion, const std::string& path);

/// Error(mismatch) unless lm_head and the embeddings hold the same values in every kind that is kept.
void check_tie(const ckpt::Manifest& source, const ModelSpec& model, const Conversion& conversion,
               const std::string& path);

/// The documents of the target: those of the source, with the model's new fields in `model` and in the
/// training configuration.
ckpt::Description converted(const ckpt::Description& source, const ModelConfig& from, const ModelConfig& to);

}  // namespace shardwright::reshard
