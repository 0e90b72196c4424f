// Names of tensors and kinds, as writers give them: they become names of datasets and travel in JSON.
#pragma once

#include <string>

namespace shardwright::ckpt {

/// Error(usage) unless a tensor's state can be saved by these names: text of 1 to 1024 bytes in UTF-8, other
/// than "." and "..", without '/', '@' and control characters; the kind not "chunks". Thread-safe.
void check_names(const std::string& tensor, const std::string& kind);

}  // namespace shardwright::ckpt
