// The documents that a program saves beside its tensors.
#pragma once

#include <cstdint>
#include <string>

#include "ckpt/contents.h"

namespace shardwright::ckpt {

/// Error(usage) unless `text` is a JSON object that every reader can show: of numbers that fit, at most
/// kMaxJsonDepth deep and kMaxDocumentBytes long. `name` ("training", ...) is for the message. Thread-safe.
void check_document(const std::string& name, const std::string& text);

/// The same of all documents of a save at `step` (one may be empty: there is none), and that a `step` in the
/// training document is that one.
void check_documents(const Description& description, std::uint64_t step);

}  // namespace shardwright::ckpt
